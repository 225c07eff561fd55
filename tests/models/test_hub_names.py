"""Hub names against a small server of our own; nothing here reaches the internet."""

import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import huggingface_hub.constants
import pytest

from verl.errors import ModelError
from verl.models.loading import load_tokenizer
from verl.testing.models import make_tiny_model_folder

ANSWERS = {
    "/api/models/someone/missing": (404, "RepoNotFound"),
    "/api/models/someone/private": (401, "RepoNotFound"),
    "/api/models/someone/gated": (403, "GatedRepo"),
    "/api/models/someone/broken": (500, ""),
}


class Hub(BaseHTTPRequestHandler):
    def do_GET(self):
        status, code = ANSWERS.get(self.path.split("?")[0], (404, "RepoNotFound"))
        self.send_response(status)
        if code:
            self.send_header("X-Error-Code", code)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *args):
        pass


@pytest.fixture
def hub(monkeypatch):
    server = HTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    yield server
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("someone/missing", r"neither a folder here \(/.*someone/missing\) nor a model on the hub"),
        ("someone/private", r"private and you are not logged in: `hf auth login`"),
        ("someone/gated", r"is gated: ask for access on its hub page"),
        ("someone/broken", r"the hub cannot be reached"),
    ],
)
def test_each_refusal_of_the_hub_says_what_to_do(hub, name, message, capfd):
    with pytest.raises(ModelError, match=message) as caught:
        load_tokenizer(name)
    assert "give a local folder: actor_rollout_ref.model.path=/path/to/folder" in str(caught.value)
    assert capfd.readouterr() == ("", "")


@pytest.mark.slow
def test_a_hub_that_never_answers_is_given_up_within_seconds(monkeypatch):
    """A server that accepts connections and says nothing."""
    server = HTTPServer(("127.0.0.1", 0), Hub)
    monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    begin = time.monotonic()
    with pytest.raises(ModelError, match="the hub cannot be reached"):
        load_tokenizer("someone/anything")
    assert time.monotonic() - begin < 15
    server.server_close()


@pytest.mark.slow
def test_a_cached_model_is_used_while_the_hub_is_out_of_reach(tmp_path, monkeypatch):
    """In a process of its own, for the place of the cache is read once."""
    repository = tmp_path / "cache" / "models--someone--tiny"
    shutil.copytree(make_tiny_model_folder(tmp_path / "m"), repository / "snapshots" / ("0" * 40))
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("0" * 40)
    program = (
        "from verl.config.schema import ModelConfig\n"
        "from verl.models.loading import load_policy, load_tokenizer\n"
        "tokenizer = load_tokenizer('someone/tiny')\n"
        "policy = load_policy(ModelConfig(path='someone/tiny'), 'cpu', tokenizer=tokenizer)\n"
        "print('loaded', policy.transformer.config.model_type)\n"
    )
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "loaded llama\n", done.stderr
    assert done.stderr == ""
