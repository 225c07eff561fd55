"""A W&B server for tests: it takes the runs of the real SDK, keeps what it was sent, and fails when told to.

    server = WandbServer()
    server.start()
    os.environ.update(server.environment())
    ...
    assert [row["loss"] for row in server.run("k3x9a2bc").history] == [0.5, 0.4]

It speaks as much of the protocol as wandb 0.31 needs for runs online: start, resume, rewind, media, tables, artifacts,
alerts and `wandb sync`. What the public server does beyond that (limits, entitlements) it does not know.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

from verl.testing.services import Fault
from verl.testing.wandb_graphql import WandbGraphql

HISTORY = "wandb-history.jsonl"
EVENTS = "wandb-events.jsonl"
SUMMARY = "wandb-summary.json"
API_KEY = "0123456789abcdef0123456789abcdef01234567"
OTHER_KEY = API_KEY[::-1]

FaultRule = Callable[[str, str], Fault | None]
"""Path of a request and its GraphQL operation ("" for others) -> the fault that it has."""


@dataclass(slots=True)
class ServedRun:
    """A run as the server has it.

    Attributes:
        entity: Owner. project: Project. name: Id of the run.
        config: As sent, `{key: {"value": ...}}`. summary: Last values.
        lines: File -> line number -> line; a line that is sent again replaces the old one.
        files: Uploaded files by name.
        alerts: Title and text of alerts, in order.
        exit_code: How it ended; nothing while it runs.
        rows_sent: Every history line that was ever sent, again or not.
    """

    entity: str
    project: str
    name: str
    display_name: str = ""
    group: str = ""
    tags: list[str] = field(default_factory=list)
    notes: str = ""
    config: dict[str, Any] = field(default_factory=dict)
    summary: dict[str, Any] = field(default_factory=dict)
    lines: dict[str, dict[int, str]] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    alerts: list[tuple[str, str]] = field(default_factory=list)
    exit_code: int | None = None
    rows_sent: int = 0

    def stream(self, file: str) -> list[str]:
        """Lines of a file, in order."""
        lines = self.lines.get(file, {})
        return [lines[number] for number in sorted(lines)]

    @property
    def history(self) -> list[dict[str, Any]]:
        """All rows."""
        return [json.loads(line) for line in self.stream(HISTORY)]

    def take(self, body: dict[str, Any]) -> None:
        """Take a request of the file stream."""
        for file, chunk in (body.get("files") or {}).items():
            if file == SUMMARY:
                self.summary = json.loads(chunk["content"][-1])
                continue
            lines = self.lines.setdefault(file, {})
            lines |= {chunk["offset"] + index: line for index, line in enumerate(chunk["content"])}
            self.rows_sent += len(chunk["content"]) if file == HISTORY else 0
        if body.get("complete"):
            self.exit_code = int(body.get("exitcode") or 0)


class _Handler(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    wandb: ClassVar[WandbServer]

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def handle_one_request(self) -> None:
        try:
            super().handle_one_request()
        except (ConnectionError, ValueError):  # the client was killed
            self.close_connection = True

    def _answer_any(self) -> None:
        body = self._body()
        path = urlsplit(self.path).path
        request = json.loads(body) if path == "/graphql" else {}
        operation = _operation(request) if request else ""
        if self._has_fault(path, operation):
            return
        if not self.wandb.knows(self.headers.get("Authorization")) and not path.startswith("/upload/"):
            self._reply({"errors": [{"message": "invalid API key"}]}, 401)
            return
        self._reply(*self.wandb.answer(path, body, request, operation))

    do_GET = do_POST = do_PUT = _answer_any

    def _has_fault(self, path: str, operation: str) -> bool:
        fault = self.wandb.fault_for(path, operation)
        if fault is None:
            return False
        if isinstance(fault, int):
            self._reply({"error": "injected"}, fault)
            return True
        if fault == "hang":
            self.wandb.hang()
        self.close_connection = True
        return True

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") == "chunked":
            body = b"".join(self._chunks())
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _chunks(self) -> list[bytes]:
        chunks = []
        while size := int(self.rfile.readline().split(b";")[0] or b"0", 16):
            chunks.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return chunks

    def _reply(self, answer: object, status: int = 200) -> None:
        data = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


class WandbServer:
    """The server.

    Args:
        entity: Owner of runs without one.

    Attributes:
        runs: By (entity, project, name).
        requests: Time, path and GraphQL operation of each request.
        unknown: Requests that it has no answer to; should stay empty.
        artifacts: By id, as they were sent; "committed" once they are whole.
        key: Key that it accepts.
        can_rewind: Whether it rewinds runs, which the public server does not for everybody.
        fault_rule: Finer faults than `fail`: for some requests only.
    """

    def __init__(self, entity: str = "me") -> None:
        self.entity = entity
        self.runs: dict[tuple[str, str, str], ServedRun] = {}
        self.requests: list[tuple[float, str, str]] = []
        self.unknown: list[str] = []
        self.artifacts: dict[str, dict[str, Any]] = {}
        self.key = API_KEY
        self.can_rewind = True
        self.fault_rule: FaultRule | None = None
        self.lock = threading.RLock()
        self.port = 0
        self._graphql = WandbGraphql(self)
        self._fault: Fault | None = None
        self._free = threading.Event()  # ends the requests that hang
        self._http: ThreadingHTTPServer | None = None

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self.port}"

    def environment(self) -> dict[str, str]:
        """Variables with which the SDK finds it."""
        return {"WANDB_BASE_URL": self.url, "WANDB_API_KEY": self.key, "WANDB_MODE": "online"}

    def start(self) -> None:
        """Listen; on the same port as before, if it was stopped."""
        handler = type("Handler", (_Handler,), {"wandb": self})
        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), handler)
        self._http.daemon_threads = True
        self.port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        """Refuse connections; what was stored stays."""
        self._free.set()
        if self._http:
            self._http.shutdown()
            self._http.server_close()
            self._http = None

    def fail(self, fault: Fault | None) -> None:
        """Have this fault from now on, or none any more."""
        was, self._fault = self._fault, fault
        self._free.set()
        self._free = threading.Event()
        if fault == "down":
            self.stop()
        elif was == "down":
            self.start()

    def run(self, name: str) -> ServedRun:
        """The run of this id.

        Raises:
            KeyError: There is none.
        """
        with self.lock:
            for (_, _, known), run in self.runs.items():
                if known == name:
                    return run
        raise KeyError(f"the server has no run {name!r}, only {[key[2] for key in self.runs]}")

    def knows(self, authorization: str | None) -> bool:
        """Whether a request has the right key."""
        return authorization == f"Basic {_base64(f'api:{self.key}')}"

    def fault_for(self, path: str, operation: str) -> Fault | None:
        """The fault that a request has."""
        with self.lock:
            self.requests.append((time.time(), path, operation))
        if self._fault is not None:
            return self._fault
        return self.fault_rule(path, operation) if self.fault_rule else None

    def hang(self) -> None:
        """Wait until the fault is over."""
        self._free.wait()

    def answer(self, path: str, body: bytes, request: dict[str, Any], operation: str) -> tuple[object, int]:
        """Answer and HTTP status for a request."""
        with self.lock:
            if request:
                return self._graphql.answer(operation, request.get("variables") or {})
            if match := re.fullmatch(r"/files/([^/]+)/([^/]+)/([^/]+)/file_stream", path):
                entity, project, name = map(unquote, match.groups())
                self.served(entity, project, name).take(json.loads(body))
                return {"limits": {}}, 200
            if match := re.fullmatch(r"/upload/([^/]+)/([^/]+)/([^/]+)/(.+)", path):
                *run, file = map(unquote, match.groups())
                self.served(*run).files[file] = body
                return {}, 200
            if path.startswith(("/upload/", "/sdk/otel")):
                return {}, 200
            self.unknown.append(path)
            return {"error": "unknown"}, 404

    def served(self, entity: str | None, project: str | None, name: str) -> ServedRun:
        """The run of this name, begun if need be."""
        key = (entity or self.entity, project or "uncategorized", name)
        return self.runs.setdefault(key, ServedRun(*key))

    def known(self, entity: str | None, project: str | None, name: str) -> ServedRun | None:
        """The run of this name, if there is one."""
        return self.runs.get((entity or self.entity, project or "uncategorized", name))


def _operation(request: dict[str, Any]) -> str:
    if name := request.get("operationName"):
        return str(name)
    match = re.search(r"(?:query|mutation)\s+(\w+)", request["query"])
    return match[1] if match else ""


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()
