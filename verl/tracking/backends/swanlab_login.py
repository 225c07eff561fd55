"""What can be known about SwanLab before it is used, without importing it: mode, login, server."""

from __future__ import annotations

import netrc
from pathlib import Path

from verl.config.environment import variable
from verl.tracking.diagnosis.reachability import proxy_for, unreachable, without_credentials
from verl.tracking.logger import Check

DEFAULT_HOST = "https://api.swanlab.cn"
MODES = ("online", "offline", "local", "disabled")
_FOLDER = ".swanlab"


def look() -> list[Check]:
    """The checks of the preflight, in the order of the diagnosis."""
    dotenv = _dotenv(Path(".env"))
    mode = dotenv.get("SWANLAB_MODE") or variable("SWANLAB_MODE") or "online"
    mode = "online" if mode == "cloud" else mode
    if mode not in MODES:
        found = f"SWANLAB_MODE is {mode!r}; allowed are {', '.join(MODES)}."
        return [Check("mode", "error", found, "Set SWANLAB_MODE to one of them, or unset it.")]
    if mode != "online":
        return [Check("mode", "ok", f"SWANLAB_MODE is {mode}: no login and no server are needed.")]
    try:
        login = _login_file()
    except (OSError, netrc.NetrcParseError) as error:
        return [
            Check("login", "error", f"The login file of SwanLab cannot be read: {error}.", "swanlab login --relogin")
        ]
    chosen = dotenv.get("SWANLAB_API_HOST") or variable("SWANLAB_API_HOST")
    host = _with_scheme(chosen or (login[0] if login else DEFAULT_HOST))
    where = _key_source(dotenv, login, host if chosen else None)
    if where is None and (other := _other_settings()):
        checks = [Check("login", "warning", f"No login was found; {other} may hold one.", "swanlab login")]
    elif where is None:
        advice = "swanlab login, or set SWANLAB_API_KEY, or SWANLAB_MODE=offline to write to the disk only."
        checks = [Check("login", "error", f"There is no login for SwanLab at {without_credentials(host)}.", advice)]
    else:
        checks = [Check("login", "ok", f"The key is in {where}.")]
    return [*checks, _server(host)]


def _server(host: str) -> Check:
    shown = without_credentials(host)
    through = proxy_for(host)
    via = f" through the proxy {without_credentials(through)}" if through else ""
    if reason := unreachable(host):
        advice = "Training can start; `verl sync` completes the run. Otherwise look at HTTPS_PROXY, NO_PROXY."
        return Check("server", "warning", f"SwanLab at {shown} cannot be reached{via}: {reason}.", advice)
    return Check("server", "ok", f"SwanLab at {shown} can be reached{via}.")


def _key_source(dotenv: dict[str, str], login: tuple[str, Path] | None, host: str | None) -> str | None:
    if dotenv.get("SWANLAB_API_KEY"):
        return "./.env"
    if variable("SWANLAB_API_KEY"):
        return "SWANLAB_API_KEY"
    if login is None or (host is not None and _with_scheme(login[0]) != host):
        return None
    return str(login[1])


def _login_file() -> tuple[str, Path] | None:
    """Server and file of `swanlab login`: that of the working folder, else that of the user."""
    root = variable("SWANLAB_ROOT") or variable("SWANLAB_SAVE_DIR")
    for folder in (Path(_FOLDER), Path(root) if root else Path.home() / _FOLDER):
        path = folder / ".netrc"
        if path.is_file():
            hosts = netrc.netrc(path).hosts
            if hosts:
                return next(iter(hosts)).removesuffix("/api"), path
    return None


def _other_settings() -> str | None:
    """A file with settings in which the SDK looks, too."""
    folders = [(Path(), "swanlab"), (Path("/etc/swanlab"), "*"), (Path(_FOLDER), "config")]
    for folder, name in folders:
        for ending in ("yaml", "yml"):
            for path in sorted(folder.glob(f"{name}.{ending}")):
                return str(path)
    return None


def _dotenv(path: Path) -> dict[str, str]:
    """SwanLab's own variables of a `.env` file; for the SDK they come before those of the environment."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return {}
    pairs = (line.removeprefix("export ").partition("=") for line in map(str.strip, lines))
    return {name.strip(): value.strip().strip("'\"") for name, _, value in pairs if name.startswith("SWANLAB_")}


def _with_scheme(host: str) -> str:
    host = host.strip().rstrip("/")
    return host if "://" in host else f"https://{host}"
