"""Whether a server answers: a look that takes no longer than it is given, through the proxy that would be used."""

from __future__ import annotations

import re
import socket
import threading
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from verl.config.secrets import is_secret_name, mask_text

REACH_SECONDS = 2.0
_PORTS = {"http": 80, "https": 443, "socks4": 1080, "socks4a": 1080, "socks5": 1080, "socks5h": 1080}
# The second form: a password with characters that should have been escaped, and no port instead of it.
_LOGIN = re.compile(r"^((?:[A-Za-z][\w+.-]*:)?//)(?:[^/?#]*@|[^/?#@:\[]+:(?!\d+(?:[/?#]|$))\S*@)")
# "user:password@proxy:3128", as proxies may be given
_LOGIN_OF_A_BARE_ADDRESS = re.compile(r"^[^/?#@:]+:(?!//|\d+(?:[/?#]|$))\S*@")


def proxy_for(url: str, proxy: str | None = None, *, reads_all_proxy: bool = True) -> str | None:
    """The proxy that leads to a server.

    Args:
        url: Address of the server.
        proxy: Proxy for it; nothing = that of the environment (HTTPS_PROXY, ALL_PROXY, NO_PROXY, ...), if any.
        reads_all_proxy: Whether what will talk to the server reads ALL_PROXY.

    Returns:
        The proxy as it was given; nothing without one, or if the address has no host.
    """
    if proxy is not None:
        return proxy
    try:
        parts = urlsplit(url)
        host = parts.hostname
    except ValueError:
        return None
    if not host or proxy_bypass(host):
        return None
    proxies = getproxies()
    return proxies.get(parts.scheme) or (proxies.get("all") if reads_all_proxy else None)


def unreachable(
    url: str, proxy: str | None = None, seconds: float = REACH_SECONDS, *, reads_all_proxy: bool = True
) -> str | None:
    """Why a server cannot be reached; nothing if it, or the proxy that leads to it, takes a connection.

    Args:
        url: `http://` or `https://` address of the server.
        proxy, reads_all_proxy: As for `proxy_for`.
        seconds: Longest time that this takes, name look-up included.

    Returns:
        The reason, in words and without credentials.
    """
    through = proxy_for(url, proxy, reads_all_proxy=reads_all_proxy)
    whose = "the proxy's" if through else "its"
    try:
        asked = without_login(through or url)  # the reason must not have any of it
        target = urlsplit(asked if "//" in asked or not through else f"//{asked}")
        host, port = target.hostname, target.port or _PORTS.get(target.scheme, 80)
    except ValueError as error:
        return mask_text(f"{whose} address is not one: {error}")
    if not host:
        return f"{whose} address has no host name"
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
    except ValueError as error:  # a name that no look-up takes
        return str(error)
    return None


def without_login(url: str) -> str:
    """An address without the user and password in it, which may be no address at all."""
    return _LOGIN_OF_A_BARE_ADDRESS.sub("", _LOGIN.sub(r"\1", url))


def without_credentials(url: str) -> str:
    """An address that can be shown: user, password and secret parameters are left out, other secrets masked."""
    address, mark, rest = without_login(url).partition("?")
    query, hash_mark, fragment = rest.partition("#")
    shown = [item for item in query.split("&") if not is_secret_name(item.partition("=")[0])]
    return mask_text(address + (mark if any(shown) else "") + "&".join(shown) + hash_mark + fragment)
