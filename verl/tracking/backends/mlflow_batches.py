"""Send metrics and params in few requests, such that one that MLflow refuses never costs another."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from verl.tracking.backends.mlflow_server import MlflowServer, MlflowTroubleError, RefusedError

if TYPE_CHECKING:
    from mlflow.entities import Metric, Param

METRICS_PER_REQUEST = 1000
PARAMS_PER_REQUEST = 100
_REQUEST_BYTES = 800_000  # many servers stand behind one that takes a megabyte
_METRIC_BYTES = 150  # beside its name
_CHARACTER_BYTES = 6  # of a name in JSON

Item = TypeVar("Item")
LeaveOut = Callable[[str, int | None, str], None]


@dataclass(frozen=True, slots=True)
class Point:
    """A metric on its way.

    Attributes:
        key: Name in the journal. metric: As MLflow gets it.
    """

    key: str
    metric: Metric


def send_metrics(server: MlflowServer, run_id: str, points: Sequence[Point], leave_out: LeaveOut) -> None:
    """Send points; one that MLflow does not take is left out.

    Raises:
        MlflowTroubleError: MLflow is away, or takes none of a request.
    """

    def send(part: Sequence[Point]) -> None:
        with server.asked_to("store metrics") as client:
            client.log_batch(run_id, metrics=[point.metric for point in part], synchronous=True)

    for part in _requests(points):
        for point, reason in _refused(part, send, server, run_id):
            leave_out(point.key, point.metric.step, reason)


def send_params(server: MlflowServer, run_id: str, params: dict[str, Param], leave_out: LeaveOut) -> None:
    """Send settings, by their name in the journal; one that MLflow does not take is left out.

    Raises:
        MlflowTroubleError: MLflow is away, or takes none of a request.
    """

    def send(part: Sequence[tuple[str, Param]]) -> None:
        with server.asked_to("store params") as client:
            client.log_batch(run_id, params=[param for _, param in part], synchronous=True)

    items = list(params.items())
    for start in range(0, len(items), PARAMS_PER_REQUEST):
        for (key, _), reason in _refused(items[start : start + PARAMS_PER_REQUEST], send, server, run_id):
            leave_out(key, None, reason)


def _requests(points: Sequence[Point]) -> list[list[Point]]:
    parts: list[list[Point]] = []
    size = _REQUEST_BYTES
    for point in points:
        bytes_of_point = _METRIC_BYTES + _CHARACTER_BYTES * len(point.metric.key)
        if size + bytes_of_point > _REQUEST_BYTES or len(parts[-1]) >= METRICS_PER_REQUEST:
            parts.append([])
            size = 0
        parts[-1].append(point)
        size += bytes_of_point
    return parts


def _refused(
    items: Sequence[Item], send: Callable[[Sequence[Item]], Any], server: MlflowServer, run_id: str
) -> list[tuple[Item, str]]:
    """Send all items, in smaller and smaller requests where some are refused; those that were refused alone."""
    try:
        send(items)
    except RefusedError as error:
        _check_run(server, run_id)  # one that was deleted refuses everything
        refused = _halves(items, send, error)
        if len(refused) == len(items):
            raise MlflowTroubleError(str(error)) from None
        return refused
    return []


def _halves(
    items: Sequence[Item], send: Callable[[Sequence[Item]], Any], error: RefusedError
) -> list[tuple[Item, str]]:
    if len(items) == 1:
        return [(items[0], str(error))]
    refused = []
    middle = len(items) // 2
    for half in (items[:middle], items[middle:]):
        try:
            send(half)
        except RefusedError as half_error:
            refused += _halves(half, send, half_error)
    return refused


def _check_run(server: MlflowServer, run_id: str) -> None:
    with server.asked_to("find the run") as client:
        stage = client.get_run(run_id).info.lifecycle_stage
    if stage != "active":
        raise MlflowTroubleError(f"The run {run_id} at {server.shown} is {stage}")
