"""A server that speaks as much of SwanLab's API as the real SDK 0.10 needs for an online run, and can fail.

It keeps every point that it is sent, also the same one twice: what a test reads is what really arrived.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import quote, unquote, urlsplit

from verl.testing.services import Fault

KEY, OTHER_KEY = "k" * 21, "o" * 21
"""The login that it expects, and another one."""
USER = "tester"
_UNAUTHORIZED = ({"code": "Unauthorized", "message": "wrong key"}, 401)
_NOT_FOUND = ({"code": "Not_Found", "message": "there is no such thing"}, 404)
_LONG_FROM_NOW = "2999-01-01T00:00:00.000Z"
_UPLOADS = re.compile(r"/api/house/metrics|/api/projects/[^/]+/[^/]+/series|/api/resources/|/put/|.*/profile|.*/files/")

Reply = tuple[Any, int]


@dataclass(slots=True)
class Experiment:
    """What the server has of one run.

    Attributes:
        cuid: Its id. project: Name of its project. settings: What it was made with (name, group, ...).
        states: Each state that it was in, the last one being its state now.
        profile: Configuration and the like. logins: How often it was made or resumed.
        scalars: (key, step, value) in the order in which they came; value "nan" as the SDK sends it.
        media: Records as sent, with `key`, `index` (the step), `data` (paths in `blobs`).
        blobs: Content of media and files by path.
        files: Paths of the files whose upload was completed.
    """

    cuid: str
    project: str
    settings: dict[str, Any]
    created_at: str
    states: list[str] = field(default_factory=lambda: ["RUNNING"])
    profile: dict[str, Any] = field(default_factory=dict)
    logins: int = 1
    scalars: list[tuple[str, int, Any]] = field(default_factory=list)
    media: list[dict[str, Any]] = field(default_factory=list)
    logs: list[dict[str, Any]] = field(default_factory=list)
    blobs: dict[str, bytes] = field(default_factory=dict)
    files: set[str] = field(default_factory=set)

    @property
    def config(self) -> dict[str, Any]:
        """The configuration, nested."""
        return {key: entry["value"] for key, entry in (self.profile.get("config") or {}).items()}

    def summary(self) -> dict[str, Any]:
        """Highest step of each key, as the SDK asks for when it resumes."""
        scalar: dict[str, int] = {}
        for key, step, _ in self.scalars:
            scalar[key] = max(step, scalar.get(key, -1))
        media: dict[str, int] = {}
        for record in self.media:
            media[record["key"]] = max(record["index"], media.get(record["key"], -1))
        as_list = [[{"key": key, "step": step} for key, step in steps.items()] for steps in (scalar, media)]
        return {"scalar": as_list[0], "media": as_list[1], "log": []}


class SwanlabServer:
    """SwanLab's API on a loopback port, in threads of this process.

    Attributes:
        experiments: By id. columns: (project, key) -> type of a metric. refused: Requests that it does not know.
        lost_answers: So many uploads are stored but answered with 503, as when an answer is lost on its way.
        key: Login that it accepts; sessions that were begun with another one are over.
        has_files: Whether it offers the upload of files.
    """

    def __init__(self) -> None:
        self.experiments: dict[str, Experiment] = {}
        self.columns: dict[tuple[str, str], str] = {}
        self.projects: dict[str, dict[str, Any]] = {}
        self.refused: list[str] = []
        self.lost_answers = 0
        self.key = KEY
        self.has_files = True
        self.requests: list[str] = []
        self._fault: Fault | None = None
        self._uploads_only = False
        self._recovered = threading.Event()
        self._lock = threading.RLock()
        self._connections: set[socket.socket] = set()
        self._http: _Server | None = None
        self._port = 0

    @property
    def url(self) -> str:
        """Its address."""
        return f"http://127.0.0.1:{self._port}"

    def environment(self) -> Mapping[str, str]:
        """Variables with which SwanLab finds it."""
        return {
            "SWANLAB_API_HOST": self.url,
            "SWANLAB_WEB_HOST": self.url,
            "SWANLAB_API_KEY": self.key,
            "SWANLAB_MODE": "online",
            "NO_PROXY": "127.0.0.1,localhost",
            "no_proxy": "127.0.0.1,localhost",
        }

    def start(self) -> SwanlabServer:
        """Listen, on the same port as before if it listened before."""
        self._http = _Server(("127.0.0.1", self._port), _handler(self))
        self._port = self._http.server_address[1]
        threading.Thread(target=self._http.serve_forever, args=(0.05,), daemon=True).start()
        return self

    def stop(self) -> None:
        """Listen no longer and end all connections."""
        self._recovered.set()
        if self._http is None:
            return
        self._http.shutdown()
        self._http.server_close()
        self._http = None
        with self._lock:
            for connection in self._connections:
                with contextlib.suppress(OSError):  # ended by the other side
                    connection.shutdown(socket.SHUT_RDWR)
            self._connections.clear()

    def fail(self, fault: Fault | None, *, uploads_only: bool = False) -> None:
        """Fail in this way from now on; nothing = recover. `uploads_only` leaves login and resume in order."""
        self._recovered.set()
        self._recovered = threading.Event()
        self._fault, self._uploads_only = fault, uploads_only
        if fault == "down":
            self.stop()
        elif self._http is None:
            self.start()

    def answer(self, method: str, path: str, body: bytes, key: str | None, cookie: str) -> Reply | None:
        """What to answer to a request; nothing = end the connection without an answer."""
        fault, recovered = self._fault, self._recovered
        if fault is not None and not (self._uploads_only and not _UPLOADS.fullmatch(path)):
            if isinstance(fault, int):
                return {"code": str(fault), "message": "injected"}, fault
            recovered.wait()
            return None
        with self._lock:
            self.requests.append(f"{method} {path}")
            reply = self._answer(method, path, body, key, cookie)
            if self.lost_answers and _UPLOADS.fullmatch(path):
                self.lost_answers -= 1
                return {"code": "503", "message": "the answer got lost"}, 503
            return reply

    def _answer(self, method: str, path: str, body: bytes, key: str | None, cookie: str) -> Reply:
        if path.startswith("/put/"):
            _, _, cuid, name = path.split("/", 3)
            self.experiments[cuid].blobs[name] = body
            return {}, 200
        if path == "/api/login/api_key":
            return self._login(key)
        if self._session not in cookie:
            return _UNAUTHORIZED
        sent = json.loads(body) if body else {}
        for pattern, handle in _ROUTES:
            if match := pattern.fullmatch(f"{method} {path}"):
                return handle(self, match.groups(), sent)
        self.refused.append(f"{method} {path}")
        return _NOT_FOUND

    @property
    def _session(self) -> str:
        return f"session-of-{self.key}"

    def _login(self, key: str | None) -> Reply:
        if key != self.key:
            return _UNAUTHORIZED
        return {"sid": self._session, "expiredAt": _LONG_FROM_NOW, "userInfo": {"username": USER, "name": USER}}, 200

    def _project(self, names: tuple[str, ...], sent: dict[str, Any]) -> Reply:
        known = self.projects.get(names[1])
        return (known, 200) if known else _NOT_FOUND

    def _new_project(self, names: tuple[str, ...], sent: dict[str, Any]) -> Reply:
        name = sent["name"]
        self.projects[name] = {
            "cuid": f"project-{name}",
            "name": name,
            "path": f"/{USER}/{name}",
            "group": {"username": USER},
            "_count": {"experiments": 0},
            "version": 1,
        }
        return {}, 201

    def _experiment(self, names: tuple[str, ...], sent: dict[str, Any]) -> Reply:
        cuid = sent["cuid"]
        known = self.experiments.get(cuid)
        if known:
            known.logins += 1
            known.states.append("RUNNING")
        else:
            known = self.experiments[cuid] = Experiment(cuid, names[1], sent, sent["createdAt"])
            known.logins = 0
        return _described(known), 200 if known.logins else 201

    def _run(self, names: tuple[str, ...], sent: dict[str, Any]) -> Reply:
        known = self.experiments.get(names[2])
        return (_described(known), 200) if known else _NOT_FOUND

    def _profile(self, names: tuple[str, ...], sent: dict[str, Any]) -> Reply:
        self.experiments[names[2]].profile.update(sent)
        return {}, 200

    def _state(self, names: tuple[str, ...], sent: dict[str, Any]) -> Reply:
        if names[2] not in self.experiments:
            return _NOT_FOUND
        self.experiments[names[2]].states.append(sent["state"])
        return {}, 200

    def _series(self, names: tuple[str, ...], sent: dict[str, Any]) -> Reply:
        for column in sent["series"]:
            self.columns[names[1], column["key"]] = column["type"]
        return {}, 200

    def _metrics(self, names: tuple[str, ...], sent: dict[str, Any]) -> Reply:
        experiment = self.experiments[sent["experimentId"]]
        if sent["type"] == "scalar":
            experiment.scalars += [(point["key"], point["index"], point["data"]) for point in sent["metrics"]]
        else:
            (experiment.media if sent["type"] == "media" else experiment.logs).extend(sent["metrics"])
        return {}, 200

    def _summary(self, names: tuple[str, ...], sent: dict[str, Any]) -> Reply:
        return self.experiments[names[1]].summary(), 200

    def _heartbeat(self, names: tuple[str, ...], sent: dict[str, Any]) -> Reply:
        return {}, 200

    def _presigned(self, names: tuple[str, ...], sent: dict[str, Any]) -> Reply:
        return {"urls": [self._put_url(sent["experimentId"], path) for path in sent["paths"]]}, 200

    def _prepare_files(self, names: tuple[str, ...], sent: dict[str, Any]) -> Reply:
        if not self.has_files:
            return _NOT_FOUND
        return {"urls": [self._put_url(names[0], file["path"]) for file in sent["files"]]}, 200

    def _complete_files(self, names: tuple[str, ...], sent: dict[str, Any]) -> Reply:
        self.experiments[names[0]].files |= {file["path"] for file in sent["files"]}
        return {}, 201

    def _put_url(self, cuid: str, path: str) -> str:
        return f"{self.url}/put/{quote(cuid)}/{quote(path)}"


def _described(experiment: Experiment) -> dict[str, Any]:
    return {
        "cuid": experiment.cuid,
        "slug": experiment.cuid,
        "name": experiment.settings["name"],
        "createdAt": experiment.created_at,
        "state": experiment.states[-1],
    }


_ROUTES: list[tuple[re.Pattern[str], Callable[[SwanlabServer, tuple[str, ...], dict[str, Any]], Reply]]] = [
    (re.compile(pattern), handle)
    for pattern, handle in (
        (r"GET /api/project/([^/]+)/([^/]+)", SwanlabServer._project),
        (r"POST /api/projects/([^/]+)", SwanlabServer._new_project),
        (r"POST /api/project/([^/]+)/([^/]+)/experiment", SwanlabServer._experiment),
        (r"GET /api/project/([^/]+)/([^/]+)/runs/([^/]+)", SwanlabServer._run),
        (r"PUT /api/project/([^/]+)/([^/]+)/runs/([^/]+)/profile", SwanlabServer._profile),
        (r"PUT /api/project/([^/]+)/([^/]+)/runs/([^/]+)/state", SwanlabServer._state),
        (r"POST /api/projects/([^/]+)/([^/]+)/series", SwanlabServer._series),
        (r"POST /api/house/metrics", SwanlabServer._metrics),
        (r"GET /api/house/metrics/summaries/([^/]+)/([^/]+)", SwanlabServer._summary),
        (r"POST /api/house/experiments/([^/]+)/heartbeat", SwanlabServer._heartbeat),
        (r"POST /api/resources/presigned/put", SwanlabServer._presigned),
        (r"POST /api/experiment/([^/]+)/files/prepare", SwanlabServer._prepare_files),
        (r"POST /api/experiment/([^/]+)/files/complete", SwanlabServer._complete_files),
    )
]


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    allow_reuse_address = True
    request_queue_size = 64

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that was killed is no error of the server."""


def _handler(server: SwanlabServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            with server._lock:
                server._connections.add(self.connection)

        def finish(self) -> None:
            with server._lock:
                server._connections.discard(self.connection)
            super().finish()

        def log_message(self, format: str, *args: Any) -> None:
            """Quiet."""

        def _who(self) -> tuple[str | None, str]:
            return self.headers.get("authorization"), self.headers.get("cookie") or ""

        def handle_request(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length)
            if len(body) < length:
                return  # the client died in the middle
            path = unquote(urlsplit(self.path).path)
            reply = server.answer(self.command, path, body, *self._who())
            if reply is None:
                self.close_connection = True
                return
            content = json.dumps(reply[0]).encode()
            self.send_response(reply[1])
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_PATCH = handle_request

    return Handler
