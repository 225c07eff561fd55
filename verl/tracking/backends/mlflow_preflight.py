"""Whether MLflow can work, found without its package: login first, then the server or database."""

from __future__ import annotations

import base64
import os
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit
from urllib.request import ProxyHandler, Request, build_opener

from verl.config.environment import variable
from verl.tracking.backends.mlflow_server import DEFAULT_URI, SQLITE, sqlite_path
from verl.tracking.diagnosis.reachability import proxy_for, unreachable, without_credentials, without_login
from verl.tracking.logger import Check

_DATABASES = ("postgresql", "mysql", "mssql")
_SCHEMES = ("http://host:port", f"{SQLITE}file.db", "databricks", *(f"{name}://..." for name in _DATABASES))
_LOOK_SECONDS = 1.4  # for each of two looks
_IS_KEPT = "everything stays in the journal and is delivered later"


def mlflow_checks() -> list[Check]:
    """The answers, in the order of the diagnosis."""
    uri = variable("MLFLOW_TRACKING_URI") or DEFAULT_URI
    try:
        scheme = urlsplit(uri).scheme.partition("+")[0]
    except ValueError as error:
        found = f"MLFLOW_TRACKING_URI is {without_credentials(uri)}, which is no address: {error}"
        return [Check("server", "error", found, f"Set it to one of these: {', '.join(_SCHEMES)}")]
    if scheme in ("http", "https"):
        return _server_checks(uri)
    if scheme == "sqlite":
        return [_database_check(uri)]
    if scheme in ("", "file") and uri not in ("databricks", "uc"):
        return [_folder_check(uri)]
    if scheme in (*_DATABASES, "databricks", "uc") or uri in ("databricks", "uc"):
        return [Check("server", "ok", f"MLflow keeps its runs at {without_credentials(uri)}; not looked at")]
    return [
        Check(
            "server",
            "error",
            f"MLFLOW_TRACKING_URI begins with {scheme}:, which MLflow does not know",
            f"Set it to one of these: {', '.join(_SCHEMES)}",
        )
    ]


def _server_checks(uri: str) -> list[Check]:
    shown = without_credentials(uri)
    if reason := unreachable(uri, seconds=_LOOK_SECONDS):
        away = Check("server", "warning", f"{shown} cannot be reached: {reason}", f"Start it; {_IS_KEPT}")
        return [_login_check(uri), away]
    through = proxy_for(uri)
    if through and through.startswith("socks"):  # urllib does not speak it
        return [_login_check(uri), Check("server", "ok", f"the proxy to {shown} takes a connection")]
    status = _status_of_a_request(uri, through)
    if status in (401, 403):
        advice = "Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN"
        return [Check("login", "error", f"{shown} refuses the login ({status})", advice)]
    if status == 200:
        return [_login_check(uri), Check("server", "ok", f"{shown} answers")]
    if status is None:
        found = f"{shown} takes a connection, but does not answer within {_LOOK_SECONDS:g} s"
        return [_login_check(uri), Check("server", "warning", found, f"Look at its log; {_IS_KEPT}")]
    advice = "Check that MLFLOW_TRACKING_URI is the address of an MLflow server"
    return [_login_check(uri), Check("server", "warning", f"{shown} answers {status}", advice)]


def _login_check(uri: str) -> Check:
    user, password = variable("MLFLOW_TRACKING_USERNAME"), variable("MLFLOW_TRACKING_PASSWORD")
    if user and not password:
        found = "MLFLOW_TRACKING_USERNAME is set, MLFLOW_TRACKING_PASSWORD is not"
        return Check("login", "warning", found, "Set both or none")
    if user:
        return Check("login", "ok", "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD are set")
    if variable("MLFLOW_TRACKING_TOKEN"):
        return Check("login", "ok", "MLFLOW_TRACKING_TOKEN is set")
    if urlsplit(uri).username:
        return Check("login", "ok", "MLFLOW_TRACKING_URI holds a user")
    if (Path.home() / ".mlflow" / "credentials").exists():
        return Check("login", "ok", "~/.mlflow/credentials exists")
    return Check("login", "ok", "none is set, which is right for a server without users")


def _status_of_a_request(uri: str, through: str | None) -> int | None:
    """HTTP status of a light question with the login, through a proxy if there is one; nothing without an answer."""
    address = f"{without_login(uri).rstrip('/')}/api/2.0/mlflow/experiments/search?max_results=1"
    opener = build_opener(ProxyHandler({"http": through, "https": through} if through else {}))
    try:
        with opener.open(Request(address, headers=_login_headers(uri)), timeout=_LOOK_SECONDS) as response:
            return response.status
    except HTTPError as error:
        error.close()
        return error.code
    except (URLError, OSError, HTTPException, ValueError):
        return None


def _login_headers(uri: str) -> dict[str, str]:
    parts = urlsplit(uri)
    user, password = variable("MLFLOW_TRACKING_USERNAME"), variable("MLFLOW_TRACKING_PASSWORD")
    if not (user and password) and parts.username:
        user, password = unquote(parts.username), unquote(parts.password or "")
    if user and password:
        return {"Authorization": f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"}
    token = variable("MLFLOW_TRACKING_TOKEN")
    return {"Authorization": f"Bearer {token}"} if token else {}


def _database_check(uri: str) -> Check:
    path = sqlite_path(uri)
    if path is None or path.is_dir():
        return Check(
            "database",
            "error",
            f"MLFLOW_TRACKING_URI is {without_credentials(uri)!r}, which names no file",
            f"Write {SQLITE}name.db, or {SQLITE}/folder/name.db for an absolute path",
        )
    place = path if path.exists() else next(folder for folder in path.parents if folder.exists())
    if not os.access(place, os.W_OK):
        return Check(
            "database",
            "error",
            f"{place} cannot be written, and MLflow keeps its runs in {path}",
            "Change its permissions, or set MLFLOW_TRACKING_URI",
        )
    return Check("database", "ok", f"MLflow keeps its runs in {path}")


def _folder_check(uri: str) -> Check:
    advice = f"Set MLFLOW_TRACKING_URI={DEFAULT_URI}"
    shown = without_credentials(uri)
    if (variable("MLFLOW_ALLOW_FILE_STORE") or "").lower() in ("true", "1"):
        found = f"MLflow keeps its runs in the folder {shown}, where points may stand twice after an interruption"
        return Check("server", "warning", found, advice)
    found = f"MLflow does not keep runs in folders such as {shown} any more"
    return Check("server", "warning", found, f"{advice}, or MLFLOW_ALLOW_FILE_STORE=true")
