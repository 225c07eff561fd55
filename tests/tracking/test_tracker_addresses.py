"""Addresses of W&B and MLflow with a login or other secrets in them: used as they are, shown without."""

from __future__ import annotations

import json
import shlex
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from verl.cli.main import main
from verl.testing.wandb_server import WandbServer
from verl.tracking import TrackedRun, Tracking
from verl.tracking.backends.mlflow_logger import MlflowLogger
from verl.tracking.backends.mlflow_server import MlflowServer
from verl.tracking.backends.wandb_logger import WandbLogger
from verl.tracking.backends.wandb_login import find_login
from verl.tracking.backends.wandb_remote import RemoteError, WandbRemote


@pytest.fixture(autouse=True)
def nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings but those of the test."""
    for name in ("WANDB_MODE", "WANDB_BASE_URL", "NETRC", "HTTPS_PROXY", "HTTP_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    for name in ("MLFLOW_TRACKING_USERNAME", "MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("WANDB_CONFIG_DIR", str(tmp_path / "settings of nobody"))
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def wandb_server(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """Address of a W&B server, with a login in it."""
    server = WandbServer()
    server.start()
    for name, value in server.environment().items():
        monkeypatch.setenv(name, value)
    url = find_login().base_url.replace("://", "://bob:geheim123@")
    monkeypatch.setenv("WANDB_BASE_URL", url)
    yield url
    server.stop()


def test_a_server_of_wandb_with_a_login_in_its_address_is_asked(wandb_server: str) -> None:
    assert WandbRemote(find_login(), "p", "no such run", None).look() is None
    assert WandbLogger.preflight(None)[1].result == "ok"


def test_the_key_is_found_for_the_address_with_and_without_the_login(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WANDB_API_KEY")
    monkeypatch.setenv("WANDB_BASE_URL", "http://bob:geheim123@127.0.0.1:9")
    for machine in ("127.0.0.1:9", "bob:geheim123@127.0.0.1:9"):
        (tmp_path / ".netrc").write_text(f"machine {machine}\n  login user\n  password {'k' * 40}\n")
        assert find_login().key == "k" * 40


def test_a_message_has_the_address_without_the_login(monkeypatch: pytest.MonkeyPatch) -> None:
    for address, shown in {
        "http://bob:geheim123@127.0.0.1:9": "W&B at http://127.0.0.1:9 does not answer",
        "http://bob:ge/heim123@127.0.0.1:9": "W&B at http://127.0.0.1:9 does not answer",
        "http://bob:geheim123@[::1": "does not answer",
        "bob:geheim123@wandb.here": "does not answer",
    }.items():
        monkeypatch.setenv("WANDB_BASE_URL", address)
        with pytest.raises(RemoteError, match=shown) as raised:
            WandbRemote(find_login(), "p", "r", None).look()
        assert "heim123" not in str(raised.value)


@pytest.mark.filterwarnings("ignore::ResourceWarning")
def test_a_run_keeps_nothing_of_the_login(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    password = uuid.uuid4().hex  # not that of this file, which may stand in the changes of a working folder
    monkeypatch.setenv("WANDB_BASE_URL", f"http://bob:{password}@127.0.0.1:9")
    with Tracking("p", "e", ["wandb"], log_dir=str(tmp_path / "run"), async_log=False) as tracking:
        tracking.log_metrics({"loss": 1.0}, 1)
        tracking.finish("finished", seconds=0.2)
    state = json.loads((tmp_path / "run/relay/wandb.json").read_text())
    assert "does not answer" in state["last_error"]
    files = [path for path in (tmp_path / "run").rglob("*") if path.is_file()]
    assert not [path for path in files if password.encode() in path.read_bytes()]


@pytest.mark.parametrize(
    ("tracker", "variable", "address"),
    [
        ("wandb", "WANDB_BASE_URL", "http://bob:geheim123@127.0.0.1:9"),
        ("wandb", "WANDB_BASE_URL", "http://127.0.0.1:9?password=geheim123"),
        ("wandb", "WANDB_BASE_URL", "http://bob:geheim123@[::1"),
        ("mlflow", "MLFLOW_TRACKING_URI", "http://127.0.0.1:9?password=geheim123"),
        ("mlflow", "MLFLOW_TRACKING_URI", "http://bob:geheim123@[::1"),
        ("mlflow", "MLFLOW_TRACKING_URI", "postgresql://bob:geheim123@host/db?password=geheim123"),
        ("mlflow", "MLFLOW_TRACKING_URI", "runs?password=geheim123"),
        ("mlflow", "MLFLOW_TRACKING_URI", "sqlite:///?password=geheim123"),
    ],
)
def test_the_doctor_shows_no_secret(
    tracker: str, variable: str, address: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(variable, address)
    main(["doctor", f"trainer.logger=[{tracker}]"])
    out, err = capsys.readouterr()
    assert "geheim123" not in out + err
    assert "the look at it failed" not in out


def test_where_mlflow_is_goes_to_no_file_with_a_secret() -> None:
    assert MlflowServer("http://bob:geheim123@h:1/x?password=geheim123&a=1").shown == "http://h:1/x?a=1"


def test_the_command_that_shows_mlflow_can_be_pasted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/my $(runs).db")
    logger = MlflowLogger()
    logger.open(TrackedRun("r1", "p", "e", tmp_path))
    assert shlex.split(logger.where())[-1] == f"sqlite:///{tmp_path}/my $(runs).db"
    logger.finish("finished")


class _Answering(BaseHTTPRequestHandler):
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None: ...


def test_mlflow_is_looked_for_through_the_proxy_for_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    _Answering.asked = []
    proxy = ThreadingHTTPServer(("127.0.0.1", 0), _Answering)
    thread = Thread(target=proxy.serve_forever)
    thread.start()
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://mlflow.example.invalid:5000")
    monkeypatch.setenv("ALL_PROXY", f"http://127.0.0.1:{proxy.server_port}")
    assert MlflowLogger.preflight(None)[1].found == "http://mlflow.example.invalid:5000 answers"
    assert _Answering.asked[0].startswith("http://mlflow.example.invalid:5000/api/")
    monkeypatch.setenv("ALL_PROXY", f"socks5://127.0.0.1:{proxy.server_port}")
    assert MlflowLogger.preflight(None)[1].result == "ok"
    proxy.shutdown()
    thread.join()
    proxy.server_close()


def test_wandb_is_looked_for_as_its_upload_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.2:9")
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")  # which its helper process does not read
    assert "is not reached directly: 127.0.0.2:9" in WandbLogger.preflight(None)[1].found
