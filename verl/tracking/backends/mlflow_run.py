"""The run in MLflow that belongs to a run directory: found by its tags, made once, superseded when it must be.

MLflow makes the ids of runs. So that a process that ends between making a run and storing its id does not lead to a
second one, a run carries tags with the identity that it has in the run directory, and is looked for by them first.
"""

from __future__ import annotations

import getpass
import logging
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson

from verl.config.environment import variable
from verl.errors import JournalError
from verl.journal import RunDirectory
from verl.tracking.backends.mlflow_names import LONGEST_TAG, cut, path_spelling, title
from verl.tracking.backends.mlflow_server import (
    GoneError,
    MlflowServer,
    MlflowTroubleError,
    RefusedError,
    sqlite_path,
)
from verl.tracking.logger import RunStatus, TrackedRun

if TYPE_CHECKING:
    from mlflow.entities import Run

log = logging.getLogger("verl.tracking")

RUN_ID, BRANCH, ATTEMPT, STATUS = "verl.run_id", "verl.branch", "verl.attempt", "verl.status"
SUPERSEDED_BY, PARENT = "verl.superseded_by", "mlflow.parentRunId"
RUNNING, SUPERSEDED = "running", "superseded"
_MOST_BRANCHES = 1000
_MLFLOW_STATUS: Mapping[RunStatus, str] = {
    "finished": "FINISHED",
    "failed": "FAILED",
    "killed": "KILLED",
    "crashed": "FAILED",
}
_EXPERIMENT_TAGS = {"mlflow.experimentKind": "custom_model_development"}  # not every version looks at it


def open_run(server: MlflowServer, run: TrackedRun) -> Run:
    """The run to log to, running: the one that the state names, else the one with the right tags, else a new one.

    Raises:
        GoneError: The run that the state names is gone for good.
        MlflowTroubleError: MLflow is away, or the experiment was deleted.
    """
    known = run.state.get("run_id")
    found = _known_run(server, str(known)) if known else _run_by_tags(server, run)
    tags = {ATTEMPT: str(run.attempt), STATUS: RUNNING}
    set_tags(server, found.info.run_id, {key: text for key, text in tags.items() if found.data.tags.get(key) != text})
    found.data.tags.update(tags)  # whoever takes the run must know that it has these now, not what it had
    if found.info.status != "RUNNING":
        with server.asked_to("go on with the run") as client:
            client.update_run(found.info.run_id, status="RUNNING")
    if run.branch and not run.state:
        _supersede_earlier(server, run, found)
    return found


def set_tags(server: MlflowServer, run_id: str, tags: dict[str, str]) -> None:
    """Set tags of a run; values are cut to what MLflow takes."""
    from mlflow.entities import RunTag

    if tags:
        with server.asked_to("set tags") as client:
            client.log_batch(run_id, tags=[RunTag(key, cut(text, LONGEST_TAG)) for key, text in tags.items()])


def end_run(server: MlflowServer, run_id: str, status: RunStatus, time_ms: int) -> None:
    """End a run, and make sure that it is ended.

    Raises:
        MlflowTroubleError: Something says that it runs, such as a late request of a process that was ended.
    """
    set_tags(server, run_id, {STATUS: status})
    with server.asked_to("end the run") as client:
        client.set_terminated(run_id, _MLFLOW_STATUS[status], time_ms)
        found = client.get_run(run_id)
    shown = (found.data.tags.get(STATUS), found.info.status)
    if shown != (status, _MLFLOW_STATUS[status]):
        raise MlflowTroubleError(f"The run at {server.shown} was ended as {status}, and is shown as {shown}")


def source_tags(directory: Path) -> dict[str, str]:
    """What MLflow shows as the source of a run, from `environment.json`; nothing while there is none."""
    try:
        facts = orjson.loads((directory / "environment.json").read_bytes())
        words, repositories = facts["command_line"], facts["repositories"]
        tags = {"mlflow.source.type": "LOCAL", "mlflow.source.name": _program(words)}
        if repositories:
            tags["mlflow.source.git.commit"] = str(repositories[0]["commit"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        log.debug("mlflow: no source of the run: %s", error)
        return {}
    return tags


def _program(words: Sequence[str]) -> str:
    """The module or script of a command line, without its folder."""
    for word, following in zip(words, [*words[1:], ""], strict=True):
        if word == "-m" and following:
            return following
        if word.endswith(".py"):
            return Path(word).name
    return Path(words[0]).name if words else "unknown"


def _known_run(server: MlflowServer, run_id: str) -> Run:
    try:
        with server.asked_to("find the run") as client:
            run = client.get_run(run_id)
            if run.info.lifecycle_stage == "active":
                return run
            experiment = client.get_experiment(run.info.experiment_id)
    except GoneError:
        raise GoneError(f"the run {run_id} does not exist at {server.shown}") from None
    _check_not_deleted(server, experiment)
    log.warning("mlflow: the run %s was deleted while it is being logged to; it is restored", run_id)
    with server.asked_to("restore the deleted run") as client:
        client.restore_run(run_id)
        return client.get_run(run_id)


def _check_not_deleted(server: MlflowServer, experiment: Any) -> None:
    if experiment.lifecycle_stage != "active":
        raise MlflowTroubleError(
            f"The experiment {experiment.name!r} at {server.shown} was deleted, with its runs. Restore it with"
            f" `mlflow experiments restore --experiment-id {experiment.experiment_id}`, or choose another with"
            " MLFLOW_EXPERIMENT_NAME"
        )


def _run_by_tags(server: MlflowServer, run: TrackedRun) -> Run:
    experiment_id = _experiment_id(server, title(variable("MLFLOW_EXPERIMENT_NAME") or run.project))
    branch = {BRANCH: str(run.branch)}
    if not (found := _search(server, experiment_id, {RUN_ID: run.run_id, **branch})):
        tags = {RUN_ID: run.run_id, **branch, ATTEMPT: str(run.attempt), STATUS: RUNNING, "mlflow.user": _user()}
        with server.asked_to("make a run") as client:
            client.create_run(experiment_id, int(_begun(run) * 1000), tags, title(run.experiment))
        found = _search(server, experiment_id, {RUN_ID: run.run_id, **branch})
    chosen, *others = found
    for other in others:  # one was made although the answer said nothing of it
        if not (other.data.metrics or other.data.params):
            with server.asked_to("delete an empty second run") as client:
                client.delete_run(other.info.run_id)
    return chosen


def _search(server: MlflowServer, experiment_id: str, tags: dict[str, str]) -> list[Run]:
    """Runs with these tags that are not deleted, the one that holds data first."""
    conditions = " and ".join(f"tags.`{key}` = '{value}'" for key, value in tags.items())
    with server.asked_to("look for the run") as client:
        found = list(client.search_runs([experiment_id], conditions, max_results=_MOST_BRANCHES))
    return sorted(found, key=lambda run: (not run.data.metrics, run.info.start_time, run.info.run_id))


def _experiment_id(server: MlflowServer, name: str) -> str:
    with server.asked_to("find the experiment") as client:
        experiment = client.get_experiment_by_name(name)
    if experiment is None:
        try:
            with server.asked_to("make the experiment") as client:
                return client.create_experiment(name, _artifact_location(server.uri, name), _EXPERIMENT_TAGS)
        except RefusedError:  # another run has made it meanwhile
            with server.asked_to("find the experiment") as client:
                experiment = client.get_experiment_by_name(name)
            if experiment is None:
                raise
    _check_not_deleted(server, experiment)
    return experiment.experiment_id


def _artifact_location(uri: str, name: str) -> str | None:
    """Files of a database on this machine lie beside it, wherever the program was started."""
    path = sqlite_path(uri)
    return None if path is None else (path.parent / "mlruns" / path_spelling()(name)).as_uri()


def _supersede_earlier(server: MlflowServer, run: TrackedRun, new: Run) -> None:
    """Mark the runs of earlier branches: renamed, below the new one, ended."""
    for old in _search(server, new.info.experiment_id, {RUN_ID: run.run_id}):
        if int(old.data.tags.get(BRANCH, run.branch)) >= run.branch:
            continue
        run_id = old.info.run_id
        set_tags(server, run_id, {STATUS: SUPERSEDED, SUPERSEDED_BY: new.info.run_id, PARENT: new.info.run_id})
        with server.asked_to("mark the run that is superseded") as client:
            client.update_run(run_id, name=f"{title(run.experiment)} (superseded)")
            if old.info.status != "KILLED":
                client.set_terminated(run_id, "KILLED", old.info.end_time)


def _begun(run: TrackedRun) -> float:
    try:
        return RunDirectory.open(run.directory).info.created
    except JournalError:
        return time.time()


def _user() -> str:
    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container without a name for its user
        return "unknown"
