from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest
import yaml

from verl.errors import JournalError
from verl.journal import (
    RunDirectory,
    capture_environment,
    write_config_yaml,
    write_environment,
    write_environment_in_background,
)
from verl.journal.code_state import read_code_state
from verl.journal.environment import installed_packages
from verl.journal.fingerprints import ENDS, WHOLE, fingerprint_file, fingerprint_model
from verl.journal.hardware import read_gpus

MIB = 1024 * 1024


def git(folder: Path, *arguments: str) -> str:
    identity = {
        "GIT_AUTHOR_NAME": "a",
        "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a",
        "GIT_COMMITTER_EMAIL": "a@b",
    }
    environment = {**os.environ, **identity, "GIT_CONFIG_GLOBAL": "/dev/null"}
    return subprocess.run(
        ["git", "-C", str(folder), *arguments], check=True, capture_output=True, text=True, env=environment
    ).stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "repository"
    folder.mkdir()
    git(folder, "init", "-b", "trunk")
    (folder / "train.py").write_text("rate = 1\n")
    git(folder, "add", "train.py")
    git(folder, "commit", "-m", "first")
    return folder


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run", project="p", experiment="e")


# Code.


def test_a_clean_repository(repository: Path) -> None:
    state = read_code_state(repository)
    assert state is not None
    assert (state.root, state.branch, state.remote, state.diff) == (str(repository), "trunk", None, "")
    assert state.commit == git(repository, "rev-parse", "HEAD")
    assert state.changed_files == ()


def test_uncommitted_changes_are_kept(repository: Path) -> None:
    (repository / "train.py").write_text("rate = 2\n")
    (repository / "new file.py").write_text("x")
    git(repository, "remote", "add", "origin", "https://host/x.git")
    (repository / "sub").mkdir()
    state = read_code_state(repository / "sub")
    assert state is not None
    assert set(state.changed_files) == {".M train.py", "?? new file.py"}
    assert "-rate = 1\n+rate = 2" in state.diff
    assert not state.is_diff_cut
    assert state.remote == "https://host/x.git"


def test_a_large_diff_is_cut_and_says_so(repository: Path) -> None:
    (repository / "train.py").write_text("rate = 2\n" * 200_000)
    state = read_code_state(repository)
    assert state is not None
    assert state.is_diff_cut
    assert len(state.diff) == 512 * 1024


def test_a_repository_without_commits_and_a_detached_one(tmp_path: Path, repository: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    git(empty, "init", "-b", "trunk")
    (empty / "a").write_text("x")
    state = read_code_state(empty)
    assert state is not None
    assert (state.commit, state.branch, state.diff) == (None, "trunk", "")
    git(repository, "checkout", "--detach")
    detached = read_code_state(repository)
    assert detached is not None
    assert detached.branch is None


def test_a_folder_in_no_repository(tmp_path: Path) -> None:
    assert read_code_state(tmp_path) is None


# Fingerprints.


def test_a_small_file_is_hashed_whole(tmp_path: Path) -> None:
    path = tmp_path / "train.parquet"
    path.write_bytes(b"abc")
    found = fingerprint_file(path)
    # FIPS 180-2, example of SHA-256 for "abc".
    assert found.sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert (found.size, found.covers, found.path) == (3, WHOLE, str(path))


def test_a_huge_file_is_hashed_at_its_ends(tmp_path: Path) -> None:
    path = tmp_path / "huge"
    with path.open("wb") as file:
        file.write(b"a" * MIB)
        file.truncate(10**12)
        file.seek(10**12 - MIB)
        file.write(b"b" * MIB)
    found = fingerprint_file(path)
    assert found.covers == ENDS
    assert found.sha256 == hashlib.sha256(b"a" * MIB + b"b" * MIB + b"1000000000000").hexdigest()


def test_a_model_folder_by_its_config_index_and_weights(tmp_path: Path) -> None:
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    weights = len(header).to_bytes(8, "little") + header + b"\x00\x00\x80?"
    (tmp_path / "config.json").write_bytes(b"abc")
    (tmp_path / "model.safetensors.index.json").write_bytes(b"{}")
    (tmp_path / "model-1.safetensors").write_bytes(weights)
    (tmp_path / "model-2.safetensors").write_bytes(b"\xff" * 20)
    (tmp_path / "old.bin").write_bytes(b"x")
    (tmp_path / "tokenizer.json").write_bytes(b"{}")
    found = fingerprint_model("actor", tmp_path)
    assert found.config_sha256 == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert found.index_sha256 == hashlib.sha256(b"{}").hexdigest()
    assert [(file.name, file.size) for file in found.weights] == [
        ("model-1.safetensors", len(weights)), ("model-2.safetensors", 20), ("old.bin", 1),
    ]  # fmt: skip
    assert found.weights[0].header_sha256 == hashlib.sha256(header).hexdigest()
    assert found.weights[0].sha256 == hashlib.sha256(weights).hexdigest()
    assert (found.weights[1].header_sha256, found.weights[2].header_sha256) == (None, None)


def test_a_hub_model_by_the_commit_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path))
    assert fingerprint_model("actor", "team/tiny").revision is None
    cache = tmp_path / "models--team--tiny"
    (cache / "refs").mkdir(parents=True)
    (cache / "refs" / "main").write_text("c0ffee\n")
    (cache / "snapshots" / "c0ffee").mkdir(parents=True)
    (cache / "snapshots" / "c0ffee" / "config.json").write_bytes(b"abc")
    found = fingerprint_model("actor", "team/tiny")
    assert (found.path, found.revision) == ("team/tiny", "c0ffee")
    assert found.config_sha256 is not None


# The whole.


def test_capturing_finds_code_packages_machine_seeds_data_and_models(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    monkeypatch.setenv("UNRELATED_SETTING", "x")
    (tmp_path / "data.jsonl").write_text("{}")
    (tmp_path / "model").mkdir()
    found = capture_environment(
        attempt=2,
        seeds={"trainer": 7},
        data_files=[tmp_path / "data.jsonl"],
        models={"actor": str(tmp_path / "model")},
        working_folder=repository,
    )
    assert found.problems == []
    assert found.attempt == 2
    assert found.repositories[0].commit == git(repository, "rev-parse", "HEAD")
    assert found.packages["orjson"] == version("orjson")
    assert found.hardware is not None
    assert found.hardware.num_cores == os.cpu_count()
    assert found.hardware.memory_bytes > 0
    assert found.seeds == {"trainer": 7}
    assert [file.path for file in found.data] == [str(tmp_path / "data.jsonl")]
    assert [model.role for model in found.models] == ["actor"]
    assert found.variables["OMP_NUM_THREADS"] == "3"
    assert "UNRELATED_SETTING" not in found.variables
    assert sys.version.split()[0] in found.python


def test_what_cannot_be_found_out_is_listed_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / ".git").mkdir()
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\nexit 9\n")
    program.chmod(0o755)
    found = capture_environment(data_files=["/no/such/file"], working_folder=tmp_path)
    assert {problem.split(":")[0] for problem in found.problems} == {
        "code", "graphics processors", "data file /no/such/file",
    }  # fmt: skip
    assert found.data == []
    assert found.hardware is not None


def test_graphics_processors_as_nvidia_smi_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\necho 'NVIDIA H200, 143771 MiB, 570.1, GPU-1'\necho 'NVIDIA H200, 143771 MiB, 570.1, GPU-2'\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    gpus = read_gpus()
    assert [(gpu.name, gpu.memory, gpu.uuid) for gpu in gpus] == [
        ("NVIDIA H200", "143771 MiB", "GPU-1"), ("NVIDIA H200", "143771 MiB", "GPU-2"),
    ]  # fmt: skip
    monkeypatch.setenv("PATH", "/nonexistent")
    assert read_gpus() == ()


def test_every_installed_package_is_found_as_metadata_names_it() -> None:
    packages = installed_packages()
    for name in ("numpy", "pytest-randomly", "pydantic-core", "orjson"):
        assert packages[name] == version(name)


def test_environment_json_has_no_secrets(repository: Path, run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "tellNobody42")
    monkeypatch.setenv("HTTPS_PROXY", "http://me:secretWord@proxy:1")
    monkeypatch.setattr(sys, "orig_argv", ["python", "train.py", "--hf-token", "abc", "reward.api_key=abcdefgh1"])
    (repository / "train.py").write_text("login('hf_abcdefghijklmnop12345678')\nx = 'tellNobody42'\n")
    git(repository, "remote", "add", "origin", "https://me:ghostWriter@host/x.git")
    write_environment(run, capture_environment(attempt=1, working_folder=repository))
    content = run.environment_json.read_text()
    raw = json.loads(content)
    for secret in ("tellNobody42", "secretWord", "hf_abc", "ghostWriter", '"abc"', "abcdefgh1"):
        assert secret not in content
    assert raw["command_line"] == ["python", "train.py", "--hf-token", "***", "reward.api_key=***"]
    assert raw["variables"]["WANDB_API_KEY"] == "***"
    assert raw["repositories"][0]["remote"] == "https://me:***@host/x.git"
    assert "***" not in raw["packages"].values()


def test_the_environment_of_an_earlier_attempt_is_kept(run: RunDirectory) -> None:
    for attempt in (1, 1, 2):
        write_environment(run, capture_environment(attempt=attempt, seeds={"s": attempt}))
    assert json.loads(run.environment_json.read_text())["seeds"] == {"s": 2}
    assert json.loads((run.path / "environment.attempt_1.json").read_text())["seeds"] == {"s": 1}
    assert len(list(run.path.glob("environment*"))) == 2


def test_capturing_in_the_background(run: RunDirectory) -> None:
    write_environment_in_background(run, attempt=1, seeds={"s": 3}).join()
    assert json.loads(run.environment_json.read_text())["seeds"] == {"s": 3}


def test_a_failure_in_the_background_is_a_warning(run: RunDirectory, caplog: pytest.LogCaptureFixture) -> None:
    run.environment_json.mkdir()
    (run.environment_json / "file").write_text("x")
    (run.path / "environment.attempt_0.json").write_text("x")
    write_environment_in_background(run, attempt=1).join()
    assert "environment.json was not written" in caplog.text


def test_config_yaml_is_yaml_in_order_without_secrets(run: RunDirectory) -> None:
    config = {
        "trainer": {"project_name": "股票", "hf_token": "abc", "log_dir": Path("logs/a"), "betas": (0.9, 0.999)},
        "data": {"train_files": ["a.parquet"], "max_tokens": 5, "note": "${not.resolved}", "rate": float("nan")},
    }
    write_config_yaml(run, config)
    text = run.config_yaml.read_text()
    assert yaml.safe_load(text) == {
        "trainer": {"project_name": "股票", "hf_token": "***", "log_dir": "logs/a", "betas": [0.9, 0.999]},
        "data": {"train_files": ["a.parquet"], "max_tokens": 5, "note": "${not.resolved}", "rate": "NaN"},
    }
    assert text.startswith("trainer:\n  project_name: 股票\n")


def test_a_folder_that_is_gone_is_a_journal_error(run: RunDirectory) -> None:
    gone = RunDirectory(run.path / "gone")
    with pytest.raises(JournalError, match=r"Cannot write config\.yaml"):
        write_config_yaml(gone, {})
