"""Whether a server answers: a look that takes no longer than it is given, through the proxy that would be used."""

from __future__ import annotations

import socket
import threading
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

REACH_SECONDS = 2.0
_PORTS = {"http": 80, "https": 443}


def proxy_for(url: str, proxy: str | None = None) -> str | None:
    """The proxy that leads to a server: the one given, else that of the environment (HTTPS_PROXY, NO_PROXY, ...)."""
    if proxy is not None:
        return proxy
    parts = urlsplit(url)
    if not parts.hostname or proxy_bypass(parts.hostname):
        return None
    return getproxies().get(parts.scheme)


def unreachable(url: str, proxy: str | None = None, seconds: float = REACH_SECONDS) -> str | None:
    """Why a server cannot be reached; nothing if it, or the proxy that leads to it, takes a connection.

    Args:
        url: `http://` or `https://` address of the server.
        proxy: Proxy for it; nothing = that of the environment, if any.
        seconds: Longest time that this takes, name look-up included.

    Returns:
        The reason, in words and without credentials.
    """
    through = proxy_for(url, proxy)
    target = urlsplit(through if through and "//" in through else f"//{through}" if through else url)
    try:
        host, port = target.hostname, target.port or _PORTS.get(target.scheme, 80)
    except ValueError as error:
        return f"its address is not one: {error}"
    if not host:
        return "its address has no host name"
    place = f"{host}:{port}" + (" (the proxy)" if through else "")
    found: list[str | None] = []
    # A look-up of a name has no time limit of its own, so the whole of it runs where it can be left behind.
    thread = threading.Thread(target=lambda: found.append(_refusal(host, port, seconds)), daemon=True)
    thread.start()
    thread.join(seconds)
    if not found:
        return f"no answer from {place} within {seconds:.0f} s"
    return f"{place}: {found[0]}" if found[0] else None


def _refusal(host: str, port: int, seconds: float) -> str | None:
    try:
        socket.create_connection((host, port), timeout=seconds).close()
    except OSError as error:
        return error.strerror or str(error) or type(error).__name__
    return None


def without_credentials(url: str) -> str:
    """An address that can be shown: the user and password in it are left out."""
    parts = urlsplit(url)
    if "@" not in parts.netloc:
        return url
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()
