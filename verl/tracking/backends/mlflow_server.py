"""The connection to MLflow: where it is, how it is asked, and what went wrong, in words."""

from __future__ import annotations

import errno
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl.config.environment import package_default, variable
from verl.config.secrets import mask_text
from verl.tracking.diagnosis.reachability import without_credentials
from verl.tracking.logger import StateLostError

if TYPE_CHECKING:
    from mlflow import MlflowClient

DEFAULT_URI = "sqlite:///mlflow.db"
SQLITE = "sqlite:///"
REQUEST_SECONDS = 15

# For the package alone, where the user has not decided otherwise. Failed requests are tried again by the feed.
_PACKAGE_SETTINGS = {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": str(REQUEST_SECONDS),
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_LOGGING_LEVEL": "WARNING",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
}
_SPEAKERS = ("mlflow", "requests", "sqlalchemy", "urllib3")
"""Packages whose errors are about MLflow's work; all others are told as they are."""

_REFUSED = frozenset({400, 413, 422})
_LOGIN = frozenset({401, 403})
_DISK_TROUBLE = {
    "database or disk is full": errno.ENOSPC,
    "disk I/O error": errno.EIO,
    "readonly database": errno.EROFS,
}
_BARE_STATUS = re.compile(r"failed with error code (\d+)")  # an answer that is not MLflow's own
_WORDS = (
    (re.compile(r"too many (\d+) error responses|failed with error code (\d+)"), "it answers {}"),
    (re.compile(r"Connection refused"), "it takes no connection"),
    (re.compile(r"[Tt]imed? ?out"), f"it does not answer within {REQUEST_SECONDS} s"),
    (re.compile(r"database is locked"), "another process holds the database"),
)
_LONGEST_REASON = 400


class MlflowTroubleError(Exception):
    """MLflow is away, or does not do what it was asked; the message says so without secrets."""


class RefusedError(MlflowTroubleError):
    """MLflow works, but does not take what it was given."""


class GoneError(MlflowTroubleError, StateLostError):
    """What was asked for does not exist (any more): the run, unless MLflow was asked for something else."""


class MlflowServer:
    """One MLflow server or database.

    Args:
        uri: Tracking URI.

    Attributes:
        uri: The same. shown: The same without user and password.
    """

    def __init__(self, uri: str) -> None:
        self.uri = uri
        self.shown = without_credentials(uri)
        with self._in_words("open"):
            from mlflow import MlflowClient

            self._client = MlflowClient(tracking_uri=uri)

    @contextmanager
    def asked_to(self, what: str) -> Iterator[MlflowClient]:
        """The client, for one piece of work.

        Args:
            what: The work, for the message, such as "store metrics".

        Raises:
            RefusedError, GoneError, MlflowTroubleError: It failed.
            OSError: The disk of a database or folder on this machine is full or broken.
        """
        with self._in_words(what):
            yield self._client

    @contextmanager
    def _in_words(self, what: str) -> Iterator[None]:
        try:
            with warnings.catch_warnings():
                # MLflow's own use of its packages, of which it gets to know elsewhere.
                warnings.simplefilter("ignore", DeprecationWarning)
                yield
        except Exception as error:
            if type(error).__module__.partition(".")[0] not in _SPEAKERS:
                raise
            # Without its cause, whose text may hold the login of the address.
            raise _explained(error, what, self.shown) from None


def _explained(error: Exception, what: str, where: str) -> Exception:
    text = str(error)
    for words, number in _DISK_TROUBLE.items():
        if words in text:
            return OSError(number, f"{os.strerror(number)} ({words})", where)
    status = _http_status(error)
    begin = f"MLflow at {where} cannot {what}"
    if status in _LOGIN:
        return MlflowTroubleError(
            f"{begin}: it refuses the login ({status}). Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or"
            " MLFLOW_TRACKING_TOKEN"
        )
    if getattr(error, "error_code", None) == "RESOURCE_DOES_NOT_EXIST" and not _BARE_STATUS.search(text):
        return GoneError(f"{begin}: {_reason(text)}")
    kind = RefusedError if status in _REFUSED else MlflowTroubleError
    return kind(f"{begin}: {_reason(text)}")


def _http_status(error: Exception) -> int:
    response = getattr(error, "response", None)
    if response is not None:
        return response.status_code
    get_status: Any = getattr(error, "get_http_status_code", None)
    found = _BARE_STATUS.search(str(error))
    return int(found[1]) if found else get_status() if get_status else 500


def _reason(text: str) -> str:
    for pattern, words in _WORDS:
        if found := pattern.search(text):
            return words.format(next(filter(None, found.groups()), ""))
    reason = " ".join(mask_text(text).split())
    return reason if len(reason) <= _LONGEST_REASON else f"{reason[:_LONGEST_REASON]}…"


def set_package_defaults() -> None:
    """Settings of the package that its own defaults are too patient for; before it is imported."""
    for name, value in _PACKAGE_SETTINGS.items():
        package_default(name, value)


def tracking_uri(known: str | None) -> str:
    """Where MLflow is: MLFLOW_TRACKING_URI, else where the run is already, else MLflow's own default.

    Args:
        known: Where the run is already, if it was begun.

    Returns:
        The address, a database file with its absolute path.
    """
    given = variable("MLFLOW_TRACKING_URI") or known
    if given is None:
        from mlflow import get_tracking_uri

        given = get_tracking_uri()
    path = sqlite_path(given)
    return given if path is None else f"{SQLITE}{path}{_query(given)}"


def sqlite_path(uri: str) -> Path | None:
    """Absolute path of the file of a SQLite database; nothing if it is another kind of address."""
    if not uri.startswith(SQLITE):
        return None
    return Path(os.path.abspath(uri.removeprefix(SQLITE).partition("?")[0]))


def _query(uri: str) -> str:
    _, mark, query = uri.partition("?")
    return mark + query
