"""The GraphQL half of the W&B server for tests."""

from __future__ import annotations

import base64
import json
import uuid
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from verl.testing.wandb_server import ServedRun, WandbServer

_PAGE = 50


class WandbGraphql:
    """Answers the operations that the SDK sends.

    Args:
        server: Whose runs these are.
    """

    def __init__(self, server: WandbServer) -> None:
        self._server = server

    def answer(self, operation: str, variables: dict[str, Any]) -> tuple[object, int]:
        """Answer and HTTP status."""
        method = getattr(self, f"_{operation}", None)
        if method is None:
            self._server.unknown.append(f"graphql {operation} {json.dumps(variables)[:300]}")
            return {"data": {}}, 200
        data = method(variables)
        if isinstance(data, str):
            return {"errors": [{"message": data}]}, 200
        return {"data": data}, 200

    # Methods are named as the operations are, for `answer` finds them so.

    def _Viewer(self, _: dict[str, Any]) -> dict[str, Any]:
        name = self._server.entity
        viewer = {"id": "U1", "entity": name, "username": name, "email": "e@x", "flags": "{}", "teams": {"edges": []}}
        return {"viewer": viewer}

    def _ServerFeaturesQuery(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"serverInfo": {"features": []}}

    def _UpsertBucket(self, sent: dict[str, Any]) -> dict[str, Any]:
        place = (sent.get("entity"), sent.get("project"), sent.get("name") or "")
        run = self._by_id(sent.get("id")) or self._server.known(*place)
        is_new = run is None
        run = run or self._server.served(*place)
        run.config |= json.loads(sent.get("config") or "{}")
        run.summary |= json.loads(sent.get("summaryMetrics") or "{}")
        run.display_name = sent.get("displayName") or run.display_name
        run.group = sent.get("groupName") or run.group
        run.notes = sent.get("notes") or run.notes
        if sent.get("tags") is not None:
            run.tags = sent["tags"]
        if sent.get("state") != "finished" and not sent.get("notes"):
            run.exit_code = None
        return {"upsertBucket": {"bucket": self._bucket(run), "inserted": is_new}}

    def _RunResumeStatus(self, sent: dict[str, Any]) -> dict[str, Any]:
        from verl.testing.wandb_server import EVENTS, HISTORY

        run = self._server.known(sent.get("entity"), sent.get("project"), sent["name"])
        entity = {"id": "E1", "name": sent.get("entity") or self._server.entity}
        bucket = None
        if run:
            history, events = run.stream(HISTORY), run.stream(EVENTS)
            telemetry = run.config.get("_wandb", {}).get("value", {}).get("t", {})
            bucket = self._bucket(run) | {
                "summaryMetrics": json.dumps(run.summary),
                "logLineCount": len(run.stream("output.log")),
                "eventsLineCount": len(events),
                "historyTail": json.dumps(history[-1:]),
                "eventsTail": json.dumps(events[-1:]),
                "tags": run.tags,
                "notes": run.notes,
                "wandbConfig": json.dumps({"t": telemetry}),
            }
        return {"model": {"id": "P1", "name": sent.get("project"), "entity": entity, "bucket": bucket}}

    def _RewindRun(self, sent: dict[str, Any]) -> dict[str, Any] | str:
        from verl.testing.wandb_server import HISTORY

        run = self._server.known(sent.get("entity"), sent.get("project"), sent["runName"])
        if run is None or not self._server.can_rewind:
            return "rewinding runs is not enabled"
        kept = [line for line in run.stream(HISTORY) if json.loads(line)["_step"] <= sent["metricValue"]]
        run.lines[HISTORY] = dict(enumerate(kept))
        return {"rewindRun": {"rewoundRun": self._bucket(run)}}

    def _RunFiles(self, sent: dict[str, Any]) -> dict[str, Any]:
        run = self._server.known(sent.get("entity"), sent.get("project"), sent["name"])
        wanted = sent.get("fileNames") or []
        names = sorted(name for name in (run.files if run else {}) if not wanted or name in wanted)
        start = int(sent.get("fileCursor") or 0)
        end = start + int(sent.get("fileLimit") or _PAGE)
        nodes = [{"node": {"name": name, "sizeBytes": len(run.files[name]) if run else 0}} for name in names[start:end]]
        page = {"endCursor": str(end), "hasNextPage": end < len(names)}
        files = {"edges": nodes, "pageInfo": page}
        return {"project": {"run": {"fileCount": len(names), "files": files} if run else None}}

    def _CreateRunFiles(self, sent: dict[str, Any]) -> dict[str, Any]:
        run = self._server.served(sent.get("entity"), sent.get("project"), sent["run"])
        place = "/".join(quote(part, safe="") for part in (run.entity, run.project, run.name))
        files = [
            {"name": name, "uploadUrl": f"{self._server.url}/upload/{place}/{quote(name)}"} for name in sent["files"]
        ]
        return {"createRunFiles": {"runID": _id(run), "uploadHeaders": [], "files": files}}

    def _MarkRunFilesUploaded(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"markRunFilesUploaded": {"success": True}}

    def _NotifyScriptableRunAlert(self, sent: dict[str, Any]) -> dict[str, Any]:
        run = self._server.served(sent.get("entityName"), sent.get("projectName"), sent["runName"])
        run.alerts.append((sent["title"], sent["text"]))
        return {"notifyScriptableRunAlert": {"success": True}}

    def _CreateArtifact(self, sent: dict[str, Any]) -> dict[str, Any]:
        artifact_id = str(uuid.uuid4())
        self._server.artifacts[artifact_id] = sent["input"]
        sequence = {"id": "S1", "latestArtifact": None}
        return {"createArtifact": {"artifact": {"id": artifact_id, "state": "PENDING", "artifactSequence": sequence}}}

    def _CreateArtifactManifest(self, sent: dict[str, Any]) -> dict[str, Any]:
        return {"createArtifactManifest": self._manifest(sent)}

    def _UpdateArtifactManifest(self, sent: dict[str, Any]) -> dict[str, Any]:
        return {"updateArtifactManifest": self._manifest(sent)}

    def _CreateArtifactFiles(self, sent: dict[str, Any]) -> dict[str, Any]:
        edges = [
            {
                "node": {
                    "storagePath": "place",
                    "uploadUrl": f"{self._server.url}/upload/artifact/{quote(file['name'], safe='')}",
                    "uploadHeaders": [],
                    "uploadMultipartUrls": None,
                    "artifact": {"id": file["artifactID"]},
                }
            }
            for file in sent["input"]["artifactFiles"]
        ]
        return {"createArtifactFiles": {"files": {"edges": edges}}}

    def _CommitArtifact(self, sent: dict[str, Any]) -> dict[str, Any]:
        self._server.artifacts[sent["artifactID"]]["committed"] = True
        return {"commitArtifact": {"artifact": {"id": sent["artifactID"], "digest": "d"}}}

    def _ArtifactByID(self, sent: dict[str, Any]) -> dict[str, Any]:
        made = self._server.artifacts[sent["id"]]
        project = {"id": "P1", "internalId": "P1", "name": made["projectName"], "entity": {"name": made["entityName"]}}
        name = made["artifactCollectionName"]
        artifact = {
            "__typename": "Artifact",
            "id": sent["id"],
            "artifactSequence": {"__typename": "ArtifactSequence", "name": name, "project": project},
            "versionIndex": 0,
            "artifactType": {"name": made["artifactTypeName"]},
            "description": None,
            "metadata": None,
            "ttlDurationSeconds": 0,
            "ttlIsInherited": False,
            "tags": [],
            "historyStep": None,
            "state": "COMMITTED",
            "size": 1,
            "digest": "d",
            "commitHash": None,
            "fileCount": 1,
            "createdAt": "2026-01-01T00:00:00",
            "updatedAt": None,
        }
        return {"artifact": artifact}

    def _ArtifactType(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"project": None}

    def _XXHashDigestsEnabled(self, _: dict[str, Any]) -> dict[str, Any]:
        return {"entity": {"xxhashDigestsEnabled": False}}

    def _by_id(self, identity: str | None) -> ServedRun | None:
        return next((run for run in self._server.runs.values() if _id(run) == identity), None)

    def _manifest(self, sent: dict[str, Any]) -> dict[str, Any]:
        url = f"{self._server.url}/upload/manifest-{sent.get('artifactID', '')}"
        return {"artifactManifest": {"id": "M1", "file": {"id": "F1", "uploadUrl": url, "uploadHeaders": []}}}

    def _bucket(self, run: ServedRun) -> dict[str, Any]:
        from verl.testing.wandb_server import HISTORY

        return {
            "id": _id(run),
            "name": run.name,
            "displayName": run.display_name or run.name,
            "description": None,
            "config": json.dumps(run.config),
            "sweepName": None,
            "project": {"id": "P1", "name": run.project, "entity": {"id": "E1", "name": run.entity}},
            "historyLineCount": len(run.stream(HISTORY)),
        }


def _id(run: ServedRun) -> str:
    return base64.b64encode(f"Run:v1:{run.name}:{run.project}:{run.entity}".encode()).decode()
