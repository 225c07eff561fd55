"""Environment variables: the one place that reads them, and what each means.

Nothing else in the package takes a setting from the environment (`secrets.py` looks for values to mask, and
`journal/environment.py` records what was set), so the table here is the whole list. To add a variable, append
it to `VARIABLES` and regenerate the docs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Protocol

from verl.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Variable:
    """An environment variable that changes what the package does.

    Attributes:
        name: Its name.
        meaning: What it does, as a sentence.
        reader: Who reads it: this package, or a package that it uses.
    """

    name: str
    meaning: str
    reader: str = "verl"


VARIABLES: tuple[Variable, ...] = (
    Variable("VERL_LOG_DIR", "Run directory if `trainer.log_dir` is not given; `{rank}` is replaced by the rank."),
    Variable("RANK", "Number of this process in the whole run, set by torchrun; 0 if not set."),
    Variable("WORLD_SIZE", "Number of processes of the run, set by torchrun; 1 if not set."),
    Variable("LOCAL_RANK", "Number of this process on its machine, set by torchrun; 0 if not set."),
    Variable("CUDA_VISIBLE_DEVICES", "GPUs of the process; `system/gpu_<index>/...` are logged for these only."),
    Variable("NO_COLOR", "Any non-empty value turns colours off (no-color.org)."),
    Variable("HF_HUB_CACHE", "Where models from the hub are kept; $HF_HOME/hub if not set."),
    Variable("HF_HOME", "Folder of everything from the hub; ~/.cache/huggingface if not set."),
    Variable("VERL_WANDB_PROXY", "Proxy for W&B alone if `trainer.wandb_proxy` is not given, such as for `verl sync`."),
    Variable("WANDB_API_KEY", "Login for W&B (or `wandb login`)."),
    Variable("WANDB_BASE_URL", "Server of W&B, for your own; nothing = the public one."),
    Variable("WANDB_MODE", "`offline` = W&B writes to the disk only, `disabled` = nothing; `online` if not set."),
    Variable("WANDB_ENTITY", "Team or user that W&B runs belong to; nothing = the default of the login."),
    Variable("WANDB_CONFIG_DIR", "Folder of the settings file of W&B; ~/.config/wandb if not set."),
    Variable("WANDB_DIR", "Folder for the files of W&B; the run directory if not set."),
    Variable("MLFLOW_TRACKING_URI", "Where MLflow keeps its runs: `http://host:port`, `sqlite:///file.db`, ..."),
    Variable("MLFLOW_EXPERIMENT_NAME", "MLflow experiment instead of `trainer.project_name`."),
    Variable("MLFLOW_TRACKING_USERNAME", "Login for an MLflow server; with MLFLOW_TRACKING_PASSWORD."),
    Variable("MLFLOW_TRACKING_PASSWORD", "Password of that login."),
    Variable("MLFLOW_TRACKING_TOKEN", "Login for an MLflow server by token."),
    Variable("MLFLOW_ALLOW_FILE_STORE", "`true` = MLflow may keep runs in folders, which it hardly supports any more."),
    Variable("SWANLAB_API_KEY", "Login for SwanLab (or `swanlab login`)."),
    Variable("SWANLAB_MODE", "`online`, `offline`, `local` or `disabled`; `online` if not set."),
    Variable("SWANLAB_API_HOST", "Server of SwanLab, for your own; nothing = the public one."),
    Variable("SWANLAB_LOG_DIR", "Folder for the files of SwanLab; the run directory if not set."),
    Variable("SWANLAB_ROOT", "Folder in which `swanlab login` writes; `~/.swanlab` if not set."),
    Variable("SWANLAB_SAVE_DIR", "The older name of SWANLAB_ROOT."),
    Variable("TRACKIO_DIR", "Folder for the databases of trackio; $HF_HOME/trackio if not set."),
    Variable("TRACKIO_SPACE_ID", "Space that trackio logs to; not used here: trackio is written on this machine."),
    Variable("TRACKIO_SERVER_URL", "Server that trackio logs to; not used here: trackio is written on this machine."),
    Variable("NETRC", "File with logins, `~/.netrc` if not set; `wandb login` writes there."),
    Variable("HTTPS_PROXY", "Proxy of whatever speaks https (HTTP_PROXY for http, NO_PROXY for exceptions).", "all"),
    Variable("HF_HUB_OFFLINE", "1 = never ask the hub, use what is on the disk.", "huggingface_hub"),
    Variable("HF_TOKEN", "Login for private models on the hub.", "huggingface_hub"),
)

_READ_HERE = frozenset(variable.name for variable in VARIABLES if variable.reader == "verl")


@dataclass(frozen=True, slots=True)
class ProcessRank:
    """Which process of a run this is.

    Attributes:
        rank: Number among all processes.
        world_size: How many there are.
        local_rank: Number among those of this machine.
    """

    rank: int
    world_size: int
    local_rank: int

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which alone writes records and starts trackers."""
        return self.rank == 0


class TrainerSettings(Protocol):
    """The part of `TrainerConfig` that decides on the run directory."""

    log_dir: str | None


class Settings(Protocol):
    """The part of `PPOConfig` that decides on the run directory."""

    @property
    def trainer(self) -> TrainerSettings: ...


def variable(name: str) -> str | None:
    """Value of a variable of the table, nothing if it is not set or empty.

    Raises:
        KeyError: The variable is not in `VARIABLES` as one that this package reads.
    """
    if name not in _READ_HERE:
        raise KeyError(f"{name} is not listed in verl.config.environment.VARIABLES")
    return os.environ.get(name) or None


def package_default(name: str, value: str) -> None:
    """Gives a package of others a setting by its environment variable, unless the user has set it."""
    os.environ.setdefault(name, value)


@contextmanager
def package_environment(changes: Mapping[str, str | None]) -> Iterator[None]:
    """The environment as a package of others is to find it, and afterwards as it was.

    Args:
        changes: Variable -> value; nothing = not set.
    """
    before = {name: os.environ.get(name) for name in changes}
    _set(changes)
    try:
        yield
    finally:
        _set(before)


def _set(values: Mapping[str, str | None]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def process_rank() -> ProcessRank:
    """Which process this is, from the variables that torchrun sets.

    Raises:
        ConfigError: A variable is not a whole number, or they contradict each other.
    """
    process = ProcessRank(_number("RANK", 0), _number("WORLD_SIZE", 1), _number("LOCAL_RANK", 0))
    if not 0 <= process.rank < process.world_size:
        raise ConfigError(
            f"the environment variable RANK must be from 0 to WORLD_SIZE - 1; given: RANK={process.rank},"
            f" WORLD_SIZE={process.world_size}. Start with torchrun, which sets both, or unset them."
        )
    return process


def visible_gpus() -> list[str] | None:
    """The GPUs that this process may use, as CUDA_VISIBLE_DEVICES names them (indices or UUIDs); nothing = all."""
    given = os.environ.get("CUDA_VISIBLE_DEVICES")
    return None if given is None else [name.strip() for name in given.split(",")]


def wants_color() -> bool:
    """Whether output may be coloured (it should be a terminal, too)."""
    return variable("NO_COLOR") is None


def hub_cache() -> Path:
    """Where huggingface_hub keeps the models that it has loaded.

    Raises:
        ConfigError: `~` names a user whom there is not.
    """
    given = variable("HF_HUB_CACHE")
    if given is not None:
        return _folder(given, "HF_HUB_CACHE")
    return hf_home() / "hub"


def hf_home() -> Path:
    """Folder of everything from the hub.

    Raises:
        ConfigError: `~` names a user whom there is not.
    """
    home = variable("HF_HOME")
    return Path.home() / ".cache" / "huggingface" if home is None else _folder(home, "HF_HOME")


def trackio_folder() -> Path:
    """Where trackio keeps its databases.

    Raises:
        ConfigError: `~` names a user whom there is not.
    """
    given = variable("TRACKIO_DIR")
    return hf_home() / "trackio" if given is None else Path(given)


def resolve_log_dir(config: Settings, now: datetime) -> Path:
    """The run directory: `trainer.log_dir`, else VERL_LOG_DIR, else `logs/<YYYYmmdd_HHMMSS>`.

    `{rank}` becomes the number of this process and `~` the home folder. The folder is not created. With
    several processes only rank 0 should ask: clocks differ, and so would the time stamps.

    Args:
        config: The configuration, for its `trainer.log_dir`.
        now: Local time of the start of the run.

    Raises:
        ConfigError: `~` names a user whom there is not.
    """
    given = config.trainer.log_dir or variable("VERL_LOG_DIR")
    if given is None:
        return Path("logs") / now.strftime("%Y%m%d_%H%M%S")
    if "{rank}" in given:
        given = given.replace("{rank}", str(process_rank().rank))
    return _folder(given, "trainer.log_dir" if config.trainer.log_dir else "the environment variable VERL_LOG_DIR")


def _folder(given: str, setting: str) -> Path:
    try:
        return Path(given).expanduser()
    except RuntimeError as error:
        raise ConfigError(f"{setting} must be a folder; given: {given!r}, of which ~ is unknown ({error})") from None


def _number(name: str, default: int) -> int:
    text = variable(name)
    if text is None:
        return default
    if not text.strip().isdecimal():
        raise ConfigError(f"the environment variable {name} must be a whole number; given: {text!r}")
    return int(text)
