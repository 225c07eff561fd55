"""A reverse proxy in front of a real server, which can be away, hang, refuse, or lose its answers.

with FaultyProxy("127.0.0.1", server_port) as proxy:
    proxy.fault = 503
    ...                    # every request to proxy.url is answered with 503
    proxy.fault = None
"""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self

from verl.testing.services import Fault

_HOP_HEADERS = frozenset({"connection", "keep-alive", "proxy-authenticate", "te", "trailer", "transfer-encoding"})


class FaultyProxy:
    """Forwards HTTP requests to a server on this machine, with the faults that are asked for.

    Args:
        host: Where the server is. port: Its port; both may be changed while the proxy runs.

    Attributes:
        url: Address of the proxy; its port stays the same over all faults.
        requests: Method and path of each request that came, in order.
        authorization: Header that a request must have not to be answered with 401; nothing = none.
        fails: Decides by method and path whether one request has the fault; nothing = all have it.
        lost_answers: How many of the next answers to requests that `fails` chooses are not passed on, though the
            server did what was asked.
    """

    def __init__(self, host: str, port: int) -> None:
        self.host, self.port = host, port
        self.requests: list[tuple[str, str]] = []
        self.authorization: str | None = None
        self.fails: Callable[[str, str], bool] | None = None
        self.lost_answers = 0
        self._fault: Fault | None = None
        self._mended = threading.Event()
        self._mended.set()
        self._open: set[socket.socket] = set()
        self._server: _Server | None = None
        self._listen(0)
        self.own_port = self._server_port()
        self.url = f"http://127.0.0.1:{self.own_port}"

    @property
    def fault(self) -> Fault | None:
        """The present fault: "down", "hang", or an HTTP status; nothing = all is well."""
        return self._fault

    @fault.setter
    def fault(self, fault: Fault | None) -> None:
        before, self._fault = self._fault, fault
        if fault == "hang":
            self._mended.clear()
        else:
            self._mended.set()
        if fault == "down":
            self._stop_listening()
        elif before == "down":
            self._listen(self.own_port)

    def close(self) -> None:
        """End all connections and stop."""
        self._mended.set()
        self._stop_listening()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _listen(self, port: int) -> None:
        self._server = _Server(("127.0.0.1", port), _Handler)
        self._server.proxy = self
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()

    def _server_port(self) -> int:
        assert self._server is not None
        return self._server.server_address[1]

    def _stop_listening(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        server.shutdown()
        server.server_close()
        for connection in list(self._open):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    def _has_fault(self, method: str, path: str) -> bool:
        return self.fails is None or self.fails(method, path)

    def _loses_answer(self, method: str, path: str) -> bool:
        if self.lost_answers > 0 and self._has_fault(method, path):
            self.lost_answers -= 1
            return True
        return False


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True
    proxy: FaultyProxy

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def _proxy(self) -> FaultyProxy:
        assert isinstance(self.server, _Server)
        return self.server.proxy

    def setup(self) -> None:
        super().setup()
        self._proxy._open.add(self.connection)

    def finish(self) -> None:
        self._proxy._open.discard(self.connection)
        with contextlib.suppress(OSError):
            super().finish()

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def _handle(self) -> None:
        proxy = self._proxy
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        proxy.requests.append((self.command, self.path))
        if proxy.fault is not None and proxy._has_fault(self.command, self.path):
            if proxy.fault == "hang":
                proxy._mended.wait()
                self.close_connection = True
                return
            if isinstance(proxy.fault, int):
                self._answer(proxy.fault, {"Content-Type": "text/plain"}, b"injected fault")
                return
        if proxy.authorization not in (None, self.headers.get("Authorization")):
            self._answer(401, {"Content-Type": "text/plain"}, b"wrong login")
            return
        self._forward(proxy, body)

    def _forward(self, proxy: FaultyProxy, body: bytes) -> None:
        connection = http.client.HTTPConnection(proxy.host, proxy.port, timeout=120)
        try:
            headers = {name: value for name, value in self.headers.items() if name.lower() not in _HOP_HEADERS}
            connection.request(self.command, self.path, body or None, headers)
            response = connection.getresponse()
            content = response.read()
        except (OSError, http.client.HTTPException):  # the server behind is away
            self.close_connection = True
            return
        finally:
            connection.close()
        if proxy._loses_answer(self.command, self.path):
            self.close_connection = True
            return
        self._answer(response.status, dict(response.getheaders()), content)

    def _answer(self, status: int, headers: dict[str, str], content: bytes) -> None:
        self.send_response_only(status)
        for name, value in headers.items():
            if name.lower() not in _HOP_HEADERS | {"content-length"}:
                self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = _handle
