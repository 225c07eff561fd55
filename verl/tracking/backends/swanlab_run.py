"""A run of the SwanLab SDK whose records are sent when, and only when, it is told to.

The SDK keeps what it is given in a queue in memory, sends it from a thread of its own, tries again for ever, and gives
up silently what a server refuses (401 and 429, too). Nobody could know what has arrived. So its two threads between
`log` and the server are not used: records are made and put into its core here, and the upload runs in the thread that
asks for it, with the SDK's own requests, and either everything was taken or it raises. For that this module reaches
into the SDK (0.10); `_checked` says so in words if another version has it differently. All else (login, settings,
making and resuming the experiment, what is skipped on resume, file format, requests) is the SDK as it is.
"""

from __future__ import annotations

import atexit
import queue
import signal
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import requests
import swanlab
from google.protobuf.timestamp_pb2 import Timestamp
from swanlab.exceptions import AuthenticationError
from swanlab.proto.swanlab.grpc.core.v1.core_pb2 import DeliverRunFinishRequest
from swanlab.proto.swanlab.metric.data.v1.data_pb2 import MediaRecord, ScalarValue
from swanlab.proto.swanlab.run.v1.run_pb2 import FinishRecord
from swanlab.proto.swanlab.save.v1.save_pb2 import SavePolicy, SaveRecord
from swanlab.sdk.internal.core_python import client
from swanlab.sdk.internal.core_python import core as core_module
from swanlab.sdk.internal.core_python.api.experiment import get_experiment_summary, stop_experiment
from swanlab.sdk.internal.pkg import adapter, console
from swanlab.sdk.internal.run import Run, clear_run
from swanlab.sdk.internal.run.components.config import deactivate_run_config
from swanlab.sdk.internal.run.components.consumer.builder import RecordBuilder
from swanlab.sdk.internal.run.transforms import Scalar
from swanlab.sdk.internal.settings import global_settings

from verl.errors import TrackerError
from verl.journal.files import sync_descriptor
from verl.tracking.backends.swanlab_transport import DirectTransport, kind_of, no_retries, without_threads
from verl.tracking.diagnosis.reachability import unreachable, without_credentials

_Expected = TypeVar("_Expected")

REQUEST_SECONDS = 15
"""Longest wait for an answer to one request."""
_WORDS_FOR_STATES = {"finished": "success", "failed": "crashed", "killed": "aborted", "crashed": "crashed"}


@dataclass(frozen=True, slots=True)
class RunRequest:
    """What the SDK is asked to begin or to continue.

    Attributes:
        identity: Id of the experiment, on the server and in the name of the file.
        project: Project, within SwanLab's rules. name: Name for people. group: Name that its branches share.
        description: One line.
        folder: Where an offline run gets its directory.
        config: Configuration that it has from the first moment.
    """

    identity: str
    project: str
    name: str
    group: str
    description: str
    folder: Path
    config: Mapping[str, Any]


class SwanlabRun:
    """An opened run. Use it from the thread that began it.

    Attributes:
        mode: `online`, `offline` or `local`.
        path: Directory of its files; online there are none.
        url: Its page; empty offline.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._core = _checked(run._ctx.core, core_module.CorePython)
        self._builder = RecordBuilder(run._ctx)
        self.mode = run.mode
        self.path: Path = run.dir
        self.url: str = run.url if run.mode == "online" else ""

    @classmethod
    def begin(cls, request: RunRequest) -> SwanlabRun:
        """Begin the run, or continue it if the server has it. Offline its directory must not exist.

        Raises:
            ConnectionError: The server is away, or did not accept the login.
        """
        abandon_client()
        console.c.quiet = True
        settings = swanlab.Settings()
        try:
            with no_retries(), without_threads():
                run = swanlab.init(
                    id=request.identity,
                    resume="allow",
                    project=request.project,
                    name=request.name,
                    group=request.group,
                    description=request.description,
                    log_dir=str(request.folder),
                    settings=_settings(settings, request.identity),
                )
        except AuthenticationError:
            raise ConnectionError(_why_no_login(settings.api_host)) from None
        except requests.RequestException as error:
            raise ConnectionError(f"SwanLab at {without_credentials(settings.api_host)}: {kind_of(error)}") from None
        made = cls(run)
        made._take_over()
        made.set_config(request.config)
        return made

    def _take_over(self) -> None:
        """Keep the SDK from doing anything by itself: at exit, on an exception, on Ctrl-C, in threads."""
        run = self._run
        atexit.unregister(run._handle_atexit)
        sys.excepthook = run._sys_origin_excepthook
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, run._original_sigint_handler)
        consumer = run._components.consumer
        consumer.stop()
        consumer.join()
        if self.mode == "online":
            _checked(self._core._transport, DirectTransport)
            for scheme in ("http://", "https://"):
                client._get_client()._session.get_adapter(scheme).timeout = REQUEST_SECONDS  # pyright: ignore

    def first_open_step(self, key: str) -> int:
        """Lowest step of a key that the server may not have: it had some step just below when the run was opened."""
        metric = self._metrics.get(key)
        return 0 if metric is None else metric.min_step + 1

    def has(self, key: str, step: int) -> bool:
        """Whether this process has logged this step of a key."""
        metric = self._metrics.get(key)
        return metric is not None and step in metric.steps

    @property
    def _metrics(self) -> core_module.RunMetrics:
        metrics = self._core._metrics
        assert metrics is not None
        return metrics

    def log_scalars(self, values: Mapping[str, float], step: int, time: float) -> None:
        """Put numbers; the SDK skips steps that the server has."""
        stamp = _timestamp(time)
        self._core.upsert_scalars(
            [
                Scalar.build_data_record(key=key, step=step, timestamp=stamp, data=ScalarValue(number=value))
                for key, value in values.items()
            ]
        )

    def log_media(
        self, key: str, value: swanlab.Text | swanlab.Image | swanlab.ECharts, step: int, time: float
    ) -> bool:
        """Put something to be seen; False if it is larger than SwanLab takes."""
        record, _ = self._builder.build_scalar_or_media(value, key, _timestamp(time), step)
        if not isinstance(record, MediaRecord):
            return False
        self._core.upsert_media([record])
        return True

    def log_file(self, name: str, path: Path) -> None:
        """Put a file into the run's folder of files."""
        record = SaveRecord(name=name, source_path=str(path.absolute()), policy=SavePolicy.SAVE_POLICY_NOW)
        self._core.upsert_saves([record])

    def set_config(self, config: Mapping[str, Any]) -> None:
        """Make this the configuration, instead of the one that it had."""
        shown = self._run.config
        for key in set(shown) - set(config):
            del shown[key]
        shown.update(dict(config))
        events = self._run._components.emitter.queue
        latest = None
        while True:
            try:
                latest = events.get_nowait()
            except queue.Empty:
                break
        if latest is not None:
            self._core.upsert_saves([self._builder.build_config(latest)])  # pyright: ignore[reportArgumentType]

    def upload(self) -> list[str]:
        """Bring everything to the server, or offline to the disk.

        Returns:
            Names of files that the server does not take.

        Raises:
            ConnectionError: The server did not take all of it. OSError: The disk did not.
        """
        if self.mode == "online":
            return _checked(self._core._transport, DirectTransport).upload()
        store = self._core._store
        assert store is not None
        store.ensure_flushed()
        sync_descriptor(store._fp.fileno())  # pyright: ignore[reportAttributeAccessIssue]
        return []

    def latest_steps(self) -> dict[str, int]:
        """The highest step of each key that the server has now.

        Raises:
            ConnectionError: It does not say.
        """
        context = self._core._ctx
        try:
            with no_retries():
                described = client.get(f"/project/{context.username}/{context.project}/runs/{context.experiment_id}")
                found = get_experiment_summary(context.project_id, context.experiment_id, described.data["createdAt"])
        except requests.RequestException as error:
            raise ConnectionError(f"SwanLab does not say what it has: {kind_of(error)}") from None
        return {entry["key"]: entry["step"] for kind in ("scalar", "media") for entry in (found.get(kind) or ())}

    def end(self, status: str, time: float) -> None:
        """Set the state of the experiment; offline the file is closed with it.

        Raises:
            ConnectionError: The server did not take it. OSError: The disk did not.
        """
        state = adapter.state[_WORDS_FOR_STATES[status]]
        if self.mode == "online":
            self._set_state(self._core._ctx.experiment_id, state, _timestamp(time))
            return
        record = FinishRecord(state=state, error=None if status == "finished" else status, finished_at=_timestamp(time))
        self._core.deliver_run_finish(DeliverRunFinishRequest(finish_record=record))
        with open(self._core._ctx.run_file, "rb") as file:
            sync_descriptor(file.fileno())

    def end_other(self, identity: str) -> None:
        """Set another experiment of the project, which this one replaces, to aborted.

        Raises:
            ConnectionError: The server did not take it, or does not know it.
        """
        now = Timestamp()
        now.GetCurrentTime()
        self._set_state(identity, adapter.state["aborted"], now)

    def _set_state(self, identity: str, state: Any, time: Timestamp) -> None:
        context = self._core._ctx
        try:
            with no_retries():
                stop_experiment(context.username, context.project, identity, state=state, finished_at=time)
        except requests.RequestException as error:
            raise ConnectionError(f"SwanLab did not take the state of {identity}: {kind_of(error)}") from None

    def abandon(self) -> None:
        """Let go of it without an end and without waiting."""
        self._run._state = "aborted"  # or the SDK would refuse to begin another
        if self._core._heartbeat is not None:
            self._core._heartbeat._timer.cancel()
        deactivate_run_config()
        clear_run()
        abandon_client()
        console.reset()
        console.c.quiet = False
        store, self._core._store = self._core._store, None
        if store is not None and self.mode != "online":
            store.close()


def current_mode() -> str:
    """What the SDK's environment variables and files ask for: online, offline, local or disabled."""
    return swanlab.Settings().mode


def abandon_client() -> None:
    """Forget the login, which may have run out, and the settings that the SDK keeps with it."""
    if client.exists():
        client.reset()
    global_settings.global_instance = None


def _settings(found: swanlab.Settings, identity: str) -> swanlab.Settings:
    """No question to anybody, and nothing about the machine: the journal's `environment.json` has what matters."""
    probe = {"hardware", "runtime", "requirements", "conda", "git", "swanlab", "monitor"}
    return swanlab.Settings(
        interactive=False,
        mode=found.mode,
        terminal=swanlab.Settings.Terminal(proxy_type="none"),
        probe=swanlab.Settings.Probe(**dict.fromkeys(probe, False)),  # pyright: ignore[reportArgumentType]
        core=swanlab.Settings.Core(skip_store=found.mode == "online"),
        run=swanlab.Settings.Run(id=identity, resume="allow", dir=f"run-{identity}"),
    )


def _timestamp(time: float) -> Timestamp:
    stamp = Timestamp()
    stamp.FromNanoseconds(round(time * 1e6) * 1000)
    return stamp


def _why_no_login(host: str) -> str:
    shown = without_credentials(host)
    reason = unreachable(host)
    if reason:
        return f"SwanLab at {shown} cannot be reached: {reason}"
    return (
        f"SwanLab at {shown} did not accept the login: the key is wrong (`swanlab login --relogin` or"
        " SWANLAB_API_KEY), or the server has trouble"
    )


def _checked(found: object, expected: type[_Expected]) -> _Expected:
    if not isinstance(found, expected):
        raise TrackerError(
            f"swanlab {swanlab.__version__} does not work as this tracker expects ({type(found).__name__} instead of"
            f" {expected.__name__}); install swanlab>=0.10,<0.11 and leave SWANLAB_REQUIRE unset"
        )
    return found
