"""Environment variables and the run directory."""

from __future__ import annotations

import ast
from datetime import datetime
from pathlib import Path

import pytest

from verl.config import PPOConfig, process_rank, resolve_log_dir
from verl.config.environment import VARIABLES, hub_cache, variable, wants_color
from verl.config.naming import experiment_name
from verl.errors import ConfigError

NOW = datetime(2025, 4, 5, 14, 23, 1)
PACKAGE = Path(__file__).parents[2] / "verl"


@pytest.fixture(autouse=True)
def _no_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    for entry in VARIABLES:
        monkeypatch.delenv(entry.name, raising=False)


def test_without_anything_the_run_directory_is_a_time_stamp() -> None:
    assert resolve_log_dir(PPOConfig(), NOW) == Path("logs/20250405_142301")


def test_the_variable_comes_before_the_time_stamp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_LOG_DIR", "/runs/a")
    assert resolve_log_dir(PPOConfig(), NOW) == Path("/runs/a")


def test_the_setting_comes_before_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_LOG_DIR", "/runs/a")
    assert resolve_log_dir(PPOConfig(log_dir="./test_logs"), NOW) == Path("test_logs")


def test_an_empty_variable_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VERL_LOG_DIR", "")
    assert resolve_log_dir(PPOConfig(), NOW) == Path("logs/20250405_142301")


@pytest.mark.parametrize("by_variable", [True, False])
def test_rank_is_replaced(monkeypatch: pytest.MonkeyPatch, by_variable: bool) -> None:
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "4")
    if by_variable:
        monkeypatch.setenv("VERL_LOG_DIR", "logs/rank_{rank}")
    config = PPOConfig() if by_variable else PPOConfig(log_dir="logs/rank_{rank}")
    assert resolve_log_dir(config, NOW) == Path("logs/rank_3")


def test_home_is_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert resolve_log_dir(PPOConfig(log_dir="~/runs"), NOW) == Path("/home/someone/runs")


def test_one_process_without_torchrun() -> None:
    process = process_rank()
    assert (process.rank, process.world_size, process.local_rank) == (0, 1, 0)
    assert process.is_main


def test_rank_under_torchrun(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("RANK", "5"), ("WORLD_SIZE", "8"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    process = process_rank()
    assert (process.rank, process.world_size, process.local_rank) == (5, 8, 1)
    assert not process.is_main


@pytest.mark.parametrize(
    ("variables", "part"),
    [
        ({"RANK": "one"}, "RANK must be a whole number; given: 'one'"),
        ({"RANK": "-1"}, "RANK must be a whole number"),
        ({"RANK": "1"}, "RANK must be from 0 to WORLD_SIZE - 1; given: RANK=1, WORLD_SIZE=1"),
        ({"RANK": "4", "WORLD_SIZE": "4"}, "given: RANK=4, WORLD_SIZE=4"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE=0"),
    ],
)
def test_wrong_ranks_are_config_errors(monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], part: str) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as raised:
        process_rank()
    assert part in str(raised.value)


def test_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    assert wants_color()
    monkeypatch.setenv("NO_COLOR", "")
    assert wants_color()
    monkeypatch.setenv("NO_COLOR", "1")
    assert not wants_color()


def test_models_of_the_hub_are_where_the_hub_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    assert hub_cache() == Path("/home/someone/.cache/huggingface/hub")
    monkeypatch.setenv("HF_HOME", "/big/hf")
    assert hub_cache() == Path("/big/hf/hub")
    monkeypatch.setenv("HF_HUB_CACHE", "~/models")
    assert hub_cache() == Path("/home/someone/models")


def test_a_variable_that_is_not_listed_cannot_be_read() -> None:
    with pytest.raises(KeyError):
        variable("VERL_SECRET_SWITCH")
    with pytest.raises(KeyError):
        variable("HF_TOKEN")


def reads_environment(node: ast.AST) -> bool:
    """Whether `node` is `os.getenv`, `os.environ[...]`, `os.environ.get` or the like; passing it on whole is not."""
    match node:
        case ast.Attribute(value=ast.Name(id="os"), attr="getenv"):
            return True
        case ast.Subscript(value=ast.Attribute(value=ast.Name(id="os"), attr="environ"), ctx=ast.Load()):
            return True
        case ast.Attribute(value=ast.Attribute(value=ast.Name(id="os"), attr="environ")):
            return True
        case ast.ImportFrom(module="os", names=names):
            return any(name.name in ("environ", "getenv") for name in names)
    return False


def test_nothing_else_in_the_package_reads_the_environment() -> None:
    # secrets.py looks for values to mask, journal/environment.py records what was set: they take no setting.
    names = ("config/environment.py", "config/secrets.py", "journal/environment.py")
    allowed = {PACKAGE / name for name in names}
    readers = [
        path.relative_to(PACKAGE)
        for path in sorted(PACKAGE.rglob("*.py"))
        if path not in allowed and any(map(reads_environment, ast.walk(ast.parse(path.read_text(encoding="utf-8")))))
    ]
    assert readers == []


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({}, "ppo_builtin_20250405"),
        ({"experiment_name": "mine"}, "mine"),
        ({"actor_model_name_or_path": "facebook/opt-125m", "algorithm.type": "grpo"}, "grpo_opt-125m_20250405"),
        ({"actor_model_name_or_path": "models/tiny/"}, "ppo_tiny_20250405"),
        ({"actor_model_name_or_path": "models/a b?"}, "ppo_a-b_20250405"),
        ({"actor_model_name_or_path": ".."}, "ppo_model_20250405"),
    ],
)
def test_a_run_without_a_name_gets_one(values: dict[str, str], expected: str) -> None:
    assert experiment_name(PPOConfig(**values), NOW) == expected


def test_the_home_of_a_user_whom_there_is_not_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.log_dir must be a folder; given: '~no-such-user/x'"):
        resolve_log_dir(PPOConfig(log_dir="~no-such-user/x"), datetime.now())
    monkeypatch.setenv("VERL_LOG_DIR", "~no-such-user/x")
    with pytest.raises(ConfigError, match="the environment variable VERL_LOG_DIR must be a folder"):
        resolve_log_dir(PPOConfig(), datetime.now())
