"""Find out, without the SDK, how it will work: which server, whose key, online or not."""

from __future__ import annotations

import configparser
import netrc
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from verl.config.environment import variable
from verl.tracking.diagnosis.reachability import proxy_for, unreachable, without_credentials, without_login
from verl.tracking.logger import Check

DEFAULT_BASE_URL = "https://api.forge.coreweave.com"
_UPSTREAM = {"api.forge.coreweave.com": "api.wandb.ai"}  # one server by two names: a login for either will do
_MODES = {"dryrun": "offline", "run": "online", "shared": "online"}


@dataclass(frozen=True, slots=True)
class WandbLogin:
    """What the SDK will find.

    Attributes:
        base_url: Server, without a user and password, and without a slash at the end.
        key: Key for it, if there is one. source: Where that was found.
        mode: "online", "offline" or "disabled".
        mode_source: What says so; empty if nothing does, and the default holds.
        entity: Team or user, if one is set.
    """

    base_url: str
    key: str | None
    source: str
    mode: str
    mode_source: str
    entity: str | None

    @property
    def shown_url(self) -> str:
        """The server as it may be shown."""
        return without_credentials(self.base_url)


def find_login() -> WandbLogin:
    """Look at the environment, the settings files and the netrc file, in the SDK's order of precedence."""
    settings = _settings_files()
    given = (variable("WANDB_BASE_URL") or settings.get("base_url") or DEFAULT_BASE_URL).rstrip("/")
    mode, mode_source = _mode(settings)
    key, source = _key(given, settings)
    entity = variable("WANDB_ENTITY") or settings.get("entity")
    return WandbLogin(without_login(given), key, source, mode, mode_source, entity)


def check_login(login: WandbLogin, proxy: str | None) -> list[Check]:
    """What the diagnosis says: the mode, the key, the server.

    Args:
        login: As found. proxy: `trainer.wandb_proxy`, if it is set.
    """
    if login.mode == "disabled":
        return [Check("mode", "ok", f"{login.mode_source}: nothing is recorded", "unset WANDB_MODE to record")]
    if login.mode == "offline":
        found = f"{login.mode_source}: files are written to the disk, no server is asked"
        return [Check("mode", "ok", found, "wandb sync uploads them later")]
    if login.mode != "online":
        allowed = "online, offline or disabled"
        return [Check("mode", "error", f"{login.mode_source}: there is no mode {login.mode!r}", f"allowed: {allowed}")]
    return [_check_key(login), _check_server(login, proxy)]


def _check_key(login: WandbLogin) -> Check:
    if login.key is None:
        found = f"there is no key for {login.shown_url}"
        return Check("login", "error", found, "run `wandb login`, or set WANDB_API_KEY, or WANDB_MODE=offline")
    if login.key != login.key.strip() or any(character.isspace() for character in login.key):
        return Check("login", "error", f"the key from {login.source} has blanks in it", "set it again without them")
    return Check("login", "ok", f"a key for {login.shown_url} from {login.source}")


def _check_server(login: WandbLogin, proxy: str | None) -> Check:
    through = proxy_for(login.base_url, proxy, reads_all_proxy=False)  # what uploads does not
    way = "directly"
    if through:
        name = "trainer.wandb_proxy" if proxy else f"{login.base_url.partition(':')[0].upper()}_PROXY"
        way = f"through the proxy {without_credentials(through)} ({name})"
    reason = unreachable(login.base_url, proxy, reads_all_proxy=False)
    if reason is None:
        return Check("server", "ok", f"{login.shown_url} is reached {way}")
    advice = "the run is kept and delivered when it can be reached; if a proxy is needed, set trainer.wandb_proxy"
    return Check("server", "warning", f"{login.shown_url} is not reached {way}: {reason}", advice)


def _mode(settings: dict[str, str]) -> tuple[str, str]:
    given, source = variable("WANDB_MODE"), "WANDB_MODE"
    if given is None and (given := settings.get("mode")):
        source = "the settings file of wandb"
    if given is None and settings.get("disabled", "").lower() == "true":
        given, source = "disabled", "the settings file of wandb"
    if given is None:
        return "online", ""
    mode = given.strip().lower()
    return _MODES.get(mode, mode), f"{source}={given}" if source == "WANDB_MODE" else f"{source} says {given}"


def _key(base_url: str, settings: dict[str, str]) -> tuple[str | None, str]:
    if key := variable("WANDB_API_KEY"):
        return key, "WANDB_API_KEY"
    host = _host(without_login(base_url))
    path = _netrc_path()
    try:
        logins = netrc.netrc(path)
    except (OSError, netrc.NetrcParseError):
        return settings.get("api_key"), "the settings file of wandb"
    for name in (_host(base_url), host, _UPSTREAM.get(host, host)):  # `wandb login` writes the first
        if (found := logins.authenticators(name)) and found[2]:
            return found[2], str(path)
    return settings.get("api_key"), "the settings file of wandb"


def _host(url: str) -> str:
    try:
        return urlsplit(url).netloc
    except ValueError:  # the look at the server says so
        return url


def _netrc_path() -> Path:
    if given := variable("NETRC"):
        return Path(given).expanduser()
    usual, other = Path("~/.netrc").expanduser(), Path("~/_netrc").expanduser()
    return other if other.exists() and not usual.exists() else usual


def _settings_files() -> dict[str, str]:
    """The user's settings, then those of the working folder, which win."""
    user = Path(variable("WANDB_CONFIG_DIR") or "~/.config/wandb").expanduser() / "settings"
    found: dict[str, str] = {}
    for path in (user, Path("wandb/settings")):
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(path)
        except (configparser.Error, OSError, UnicodeDecodeError):
            continue  # the SDK, too, goes on without it
        if parser.has_section("default"):
            found |= dict(parser.items("default"))
    return found
