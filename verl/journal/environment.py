"""What a run ran in: code, packages, hardware, seeds, data and models.

Capturing must not delay and never fail a run: parts run side by side, each with a time limit, and
what cannot be found out is listed in `problems`.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import platform
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import orjson
import yaml

from verl.config.secrets import mask, mask_command_line
from verl.errors import JournalError
from verl.journal.code_state import CodeState, read_code_state
from verl.journal.failures import journal_error
from verl.journal.files import replace_file
from verl.journal.fingerprints import FileFingerprint, ModelFingerprint, fingerprint_file, fingerprint_model
from verl.journal.hardware import Hardware, read_gpus, read_hardware
from verl.journal.plain_values import plain
from verl.journal.run_directory import RunDirectory

_LOG = logging.getLogger(__name__)
_PACKAGE_FOLDER = Path(__file__).resolve().parent.parent

# Variables that change what a run does; all others stay out of its record.
_VARIABLE_PREFIXES = (
    "CUBLAS_", "CUDA_", "GLOO_", "HF_", "MKL_", "MLFLOW_", "NCCL_", "NVIDIA_", "OMP_", "OPENAI_", "PYTORCH_", "RAY_",
    "SLURM_", "SWANLAB_", "TOKENIZERS_", "TORCH", "TRANSFORMERS_", "TRITON_", "VERL_", "VLLM_", "WANDB_", "WEAVE_",
)  # fmt: skip
_VARIABLE_NAMES = frozenset(
    {
        "ALL_PROXY", "CONDA_DEFAULT_ENV", "GROUP_RANK", "HTTPS_PROXY", "HTTP_PROXY", "LD_LIBRARY_PATH", "LOCAL_RANK",
        "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT", "NO_PROXY", "PYTHONHASHSEED", "PYTHONPATH", "RANK",
        "VIRTUAL_ENV", "WORLD_SIZE",
    }
)  # fmt: skip

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Environment:
    """What a run ran in; the content of `environment.json`.

    Attributes:
        captured: Unix seconds. seconds: How long it took to capture.
        attempt: Attempt of the run that it is about.
        repositories: Of the working folder, and of this package if that is another one.
        packages: Name -> version of every installed distribution.
        variables: Environment variables that matter to training, secrets masked.
        models: What the run started from.
        problems: What could not be found out.
    """

    captured: float
    seconds: float
    attempt: int | None
    command_line: list[str]
    working_folder: str
    repositories: list[CodeState]
    python: str
    operating_system: str
    host: str
    packages: dict[str, str]
    hardware: Hardware | None
    variables: dict[str, str]
    seeds: dict[str, int]
    data: list[FileFingerprint]
    models: list[ModelFingerprint]
    problems: list[str]

    def to_json(self) -> bytes:
        """JSON with every secret masked."""
        raw = plain(dataclasses.asdict(self))
        masked = {**mask({name: value for name, value in raw.items() if name != "packages"}), "packages": self.packages}
        return orjson.dumps(masked, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def capture_environment(
    *,
    attempt: int | None = None,
    seeds: Mapping[str, int] | None = None,
    data_files: Sequence[str | os.PathLike[str]] = (),
    models: Mapping[str, str] | None = None,
    working_folder: Path | None = None,
) -> Environment:
    """Finds out what this process runs in. Never raises; what fails is in `problems`.

    Args:
        attempt: Attempt of the run.
        seeds: Name -> seed.
        data_files: Files to fingerprint.
        models: Role ("actor", "reward") -> model folder or hub name.
        working_folder: Where to look for the repository; nothing = the current folder.
    """
    start = time.perf_counter()
    problems: list[str] = []
    folder = working_folder if working_folder is not None else Path(os.path.abspath(os.curdir))

    with ThreadPoolExecutor(max_workers=4, thread_name_prefix="verl-environment") as pool:

        def begin(what: str, call: Callable[[], Result], otherwise: Result) -> Callable[[], Result]:
            try:
                return pool.submit(_guarded, problems, what, call, otherwise).result
            except RuntimeError:  # the program is ending already; this thread is still waited for
                return lambda: _guarded(problems, what, call, otherwise)

        repositories = begin("code", lambda: _repositories(folder), [])
        gpus = begin("graphics processors", read_gpus, ())
        packages = begin("packages", installed_packages, {})
        files = [
            begin(f"data file {os.fspath(path)}", lambda path=path: fingerprint_file(path), None) for path in data_files
        ]
        named_models = [
            begin(f"model {name}", lambda role=role, name=name: fingerprint_model(role, name), None)
            for role, name in (models or {}).items()
        ]
        hardware = begin("hardware", lambda: read_hardware(gpus()), None)
        return Environment(
            captured=time.time(),
            attempt=attempt,
            command_line=mask_command_line(sys.orig_argv),
            working_folder=str(folder),
            repositories=repositories(),
            python=f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})",
            operating_system=platform.platform(),
            host=platform.node(),
            packages=packages(),
            hardware=hardware(),
            variables=mask(_relevant_variables()),
            seeds=dict(seeds or {}),
            data=[file for find in files if (file := find()) is not None],
            models=[model for find in named_models if (model := find()) is not None],
            problems=problems,
            seconds=time.perf_counter() - start,
        )


def write_environment(run_directory: RunDirectory, environment: Environment) -> None:
    """Writes `environment.json`; that of an earlier attempt is kept as `environment.attempt_<n>.json`.

    Raises:
        JournalError: The file cannot be written.
    """
    path = run_directory.environment_json
    if path.exists():
        earlier = _attempt_of(path)
        if earlier != environment.attempt:
            try:
                os.replace(path, path.with_name(f"environment.attempt_{earlier or 0}.json"))
            except OSError as error:
                raise journal_error("put aside environment.json of the earlier attempt", path, error) from error
    replace_file(path, environment.to_json())


def write_environment_in_background(
    run_directory: RunDirectory, written: Callable[[], object] = lambda: None, **inputs: Any
) -> threading.Thread:
    """Captures (`capture_environment(**inputs)`) and writes without keeping the caller waiting.

    Args:
        run_directory: Where to.
        written: Called in the thread once the file is there.
        inputs: For `capture_environment`.

    Returns:
        The started thread. A failure is logged as a warning; the run goes on.
    """

    def work() -> None:
        try:
            write_environment(run_directory, capture_environment(**inputs))
            written()
        except JournalError as error:
            _LOG.warning("environment.json was not written: %s", error)

    thread = threading.Thread(target=work, name="verl-environment")
    thread.start()
    return thread


def write_config_yaml(run_directory: RunDirectory, config: Mapping[str, Any]) -> None:
    """Writes the resolved configuration to `config.yaml`, secrets masked.

    Raises:
        JournalError: The file cannot be written.
    """
    text = yaml.safe_dump(mask(plain(config)), sort_keys=False, allow_unicode=True, width=120)
    replace_file(run_directory.config_yaml, text.encode())


def installed_packages() -> dict[str, str]:
    """Name -> version of every distribution on `sys.path`, by name.

    Read from the names of the `*.dist-info` folders (`<name>-<version>.dist-info` by the packaging
    standard): opening each one's metadata takes a hundred times longer.
    """
    found: dict[str, str] = {}
    for place in sys.path:
        try:
            names = os.listdir(place or os.curdir)
        except OSError:
            continue
        for name in names:
            stem, suffix = os.path.splitext(name)
            if suffix in (".dist-info", ".egg-info") and "-" in stem:
                package, version = stem.split("-")[:2]
                found.setdefault(package.replace("_", "-").lower(), version)
    return dict(sorted(found.items()))


def _repositories(folder: Path) -> list[CodeState]:
    own = read_code_state(folder)
    package = read_code_state(_PACKAGE_FOLDER) if own is None or not _is_in(_PACKAGE_FOLDER, own.root) else None
    return [state for state in (own, package) if state is not None]


def _is_in(folder: Path, root: str) -> bool:
    return folder.is_relative_to(Path(root).resolve())


def _relevant_variables() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.upper() in _VARIABLE_NAMES or name.startswith(_VARIABLE_PREFIXES)
    }


def _attempt_of(path: Path) -> int | None:
    try:
        return orjson.loads(path.read_bytes())["attempt"]
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _guarded(problems: list[str], what: str, call: Callable[[], Result], otherwise: Result) -> Result:
    try:
        return call()
    except Exception as error:  # whatever it is, it must not stop a run; it is listed
        problems.append(f"{what}: {type(error).__name__}: {error}")
        return otherwise
