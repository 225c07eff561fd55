"""Ask a W&B server what it has of a run: a few small requests beside those of the SDK.

The SDK uploads in the background and says nothing of what arrived. These are the SDK's own requests
(`RunResumeStatus`, `RewindRun`, `UpsertBucket`) and one of its public API (`RunFiles`).
"""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from verl.config.secrets import mask_text
from verl.tracking.backends.wandb_login import WandbLogin
from verl.tracking.diagnosis.reachability import proxy_for

REQUEST_SECONDS = 5.0
_PAGE = 100
_AGENT = "verl"
_ADVICE = {401: "the login is not accepted", 403: "the login may not do this", 404: "there is no such thing there"}

_STATUS = """query RunResumeStatus($project: String, $entity: String, $name: String!) {
  model(name: $project, entityName: $entity) {
    bucket(name: $name, missingOk: true) { historyLineCount historyTail config tags }
  }
}"""
_FILES = """query RunFiles($project: String!, $entity: String!, $name: String!, $fileCursor: String,
    $fileLimit: Int = 50, $fileNames: [String] = []) {
  project(name: $project, entityName: $entity) {
    run(name: $name) {
      files(names: $fileNames, after: $fileCursor, first: $fileLimit) {
        edges { node { name sizeBytes } }
        pageInfo { endCursor hasNextPage }
      }
    }
  }
}"""
_REWIND = """mutation RewindRun($runName: String!, $entity: String, $project: String, $metricName: String!,
    $metricValue: Float!) {
  rewindRun(input: {runName: $runName, entityName: $entity, projectName: $project, metricName: $metricName,
      metricValue: $metricValue}) { rewoundRun { historyLineCount } }
}"""
_MARK = """mutation UpsertBucket($name: String, $project: String, $entity: String, $notes: String, $tags: [String!]) {
  upsertBucket(input: {name: $name, modelName: $project, entityName: $entity, notes: $notes, tags: $tags}) {
    bucket { id }
  }
}"""


class RemoteError(Exception):
    """The server is away, or does not accept the login."""


class RefusedError(RemoteError):
    """The server answers, but will not do this."""


@dataclass(frozen=True, slots=True)
class RemoteRun:
    """What a server has of a run.

    Attributes:
        rows: Number of rows of its history.
        tail: The last of them.
        config: Its configuration, as `{key: value}`.
        tags: Its tags.
    """

    rows: int
    tail: Mapping[str, Any]
    config: Mapping[str, Any]
    tags: tuple[str, ...]


class WandbRemote:
    """One run on a server.

    Args:
        login: Server, key and entity.
        project: Project. run_id: Id of the run.
        proxy: Proxy for W&B alone; nothing = that of the environment.
    """

    def __init__(self, login: WandbLogin, project: str, run_id: str, proxy: str | None) -> None:
        self._login = login
        self._run_id = run_id
        self._place: dict[str, Any] = {"project": project, "entity": login.entity}
        through = _proxy(login.base_url, proxy)
        handler = urllib.request.ProxyHandler({"http": through, "https": through} if through else {})
        self._opener = urllib.request.build_opener(handler)

    def belongs_to(self, entity: str, project: str) -> None:
        """Name owner and project as the server does, once they are known."""
        self._place = {"project": project, "entity": entity}

    def look(self) -> RemoteRun | None:
        """What the server has now; nothing if it does not know the run.

        Raises:
            RemoteError: It does not answer.
        """
        data = self._ask(_STATUS, name=self._run_id, **self._place)
        bucket = (data.get("model") or {}).get("bucket")
        if not bucket:
            return None
        lines = json.loads(bucket["historyTail"] or "[]")
        config = json.loads(bucket["config"] or "{}")
        return RemoteRun(
            rows=bucket["historyLineCount"] or 0,
            tail=json.loads(lines[-1]) if lines else {},
            config={key: item.get("value") for key, item in config.items() if isinstance(item, dict)},
            tags=tuple(bucket["tags"] or ()),
        )

    def files(self, names: Collection[str] = ()) -> set[str]:
        """Names of the run's files that are there and not empty.

        Args:
            names: Look for these only; nothing = all.

        Raises:
            RemoteError: The server does not answer.
        """
        found: set[str] = set()
        wanted = list(names)
        for start in range(0, max(1, len(wanted)), _PAGE):
            found |= self._pages_of_files(wanted[start : start + _PAGE])
        return found

    def _pages_of_files(self, names: list[str]) -> set[str]:
        found: set[str] = set()
        cursor = None
        while True:
            data = self._ask(
                _FILES, name=self._run_id, fileNames=names, fileCursor=cursor, fileLimit=_PAGE, **self._place
            )
            run = (data.get("project") or {}).get("run")
            if not run:
                return found
            found |= {edge["node"]["name"] for edge in run["files"]["edges"] if int(edge["node"]["sizeBytes"] or 0)}
            page = run["files"]["pageInfo"]
            if not page["hasNextPage"]:
                return found
            cursor = page["endCursor"]

    def rewind(self, last_step: int) -> None:
        """Cut the history after a `_step`.

        Raises:
            RefusedError: The server does not do that.
            RemoteError: It does not answer.
        """
        self._ask(_REWIND, runName=self._run_id, metricName="_step", metricValue=last_step, **self._place)

    def mark(self, run_id: str, tag: str, notes: str) -> None:
        """Tag a run and write its notes.

        Raises:
            RemoteError: The server does not answer, or will not.
        """
        data = self._ask(_STATUS, name=run_id, **self._place)
        bucket = (data.get("model") or {}).get("bucket")
        if bucket:
            tags = sorted({*(bucket["tags"] or ()), tag})
            self._ask(_MARK, name=run_id, tags=tags, notes=notes, **self._place)

    def _ask(self, query: str, **variables: Any) -> dict[str, Any]:
        login = base64.b64encode(f"api:{self._login.key}".encode()).decode()
        headers = {"Content-Type": "application/json", "Authorization": f"Basic {login}", "User-Agent": _AGENT}
        body = json.dumps({"query": query, "variables": variables}).encode()
        try:
            request = urllib.request.Request(f"{self._login.base_url}/graphql", body, headers)
            with self._opener.open(request, timeout=REQUEST_SECONDS) as reply:
                answer = json.loads(reply.read())
        except urllib.error.HTTPError as error:
            error.close()
            reason = _ADVICE.get(error.code, "it has trouble, or too many requests")
            raise RemoteError(f"W&B at {self._login.shown_url} answered {error.code}: {reason}") from None
        except (OSError, http.client.HTTPException, ValueError) as error:
            reason = getattr(error, "reason", None) or error
            raise RemoteError(f"W&B at {self._login.shown_url} does not answer: {mask_text(str(reason))}") from None
        if errors := answer.get("errors"):
            raise RefusedError(f"W&B at {self._login.shown_url} refused: {errors[0].get('message')}")
        return answer.get("data") or {}


def _proxy(base_url: str, proxy: str | None) -> str | None:
    try:
        host = urlsplit(base_url).hostname or ""
    except ValueError:  # as the first request will say
        return proxy
    if proxy is None and (host == "localhost" or host.startswith("127.")):
        return None  # as the SDK does
    return proxy_for(base_url, proxy, reads_all_proxy=False)  # what uploads does not
