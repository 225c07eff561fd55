"""The SDK's upload queue without its thread, and how the SDK is made to use it."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import requests
from swanlab.deprecated.sender import DeprecatedHttpRecordSender
from swanlab.proto.swanlab.record.v1.record_pb2 import Record
from swanlab.proto.swanlab.save.v1.save_pb2 import SaveRecord
from swanlab.sdk.internal.core_python import core as core_module
from swanlab.sdk.internal.core_python.context import CoreContext
from swanlab.sdk.internal.core_python.transport import Transport
from swanlab.sdk.internal.core_python.transport import sender as sender_module
from swanlab.sdk.internal.core_python.transport.dispatch import Dispatch
from swanlab.sdk.internal.core_python.transport.sender import HttpRecordSender
from swanlab.sdk.internal.core_python.transport.tracker import UploadTracker
from swanlab.sdk.internal.core_python.watcher import NullFileWatcher
from swanlab.sdk.internal.pkg.client import session
from swanlab.sdk.typings.core_python.transport import UploadFailure, UploadResult


class _InOrder(HttpRecordSender):
    """Sends nothing after something that failed.

    The SDK would go on with later pictures, texts and batches. Whoever asks the server afterwards for the last step of
    a key would take the earlier ones for sent.
    """

    def upload(self, record_type: str, records: Sequence[Record]) -> UploadResult:
        result = super().upload(record_type, records)
        if all(_is_refused_file(failure) for failure in result.failures):
            return result
        return UploadResult(remaining_records=list(records), failures=result.failures)

    def upload_media(self, records: Sequence[Record]) -> UploadResult:
        put = sender_module.put_media_resources

        def put_all(*arguments: Any, **options: Any) -> dict[int, BaseException]:
            for error in put(*arguments, **options).values():
                raise error  # the SDK then keeps the whole batch
            return {}

        sender_module.put_media_resources = put_all
        try:
            return super().upload_media(records)
        finally:
            sender_module.put_media_resources = put


with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)  # what an old server needs

    class _DeprecatedInOrder(_InOrder, DeprecatedHttpRecordSender):
        """For an old server."""


class DirectTransport(Transport):
    """The SDK's upload queue without its thread; nothing is tried twice and nothing is given up."""

    def __init__(self, ctx: CoreContext, tracker: UploadTracker | None = None) -> None:
        super().__init__(ctx, auto_start=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            is_current = ctx._project_version == 1
            self._sender = _InOrder(ctx) if is_current else _DeprecatedInOrder(ctx)
        self._dispatcher = Dispatch(batch_size=self._batch, sender=self._sender)

    def upload(self) -> list[str]:
        """Send everything.

        Returns:
            Names of files that the server does not take, such as one without room for files.

        Raises:
            ConnectionError: The server did not take all of it; what it took of it is unknown.
        """
        records = self._buf.snapshot()
        if not records:
            return []
        assert self._dispatcher is not None
        result = self._dispatcher(records)
        refused = [failure for failure in result.failures if _is_refused_file(failure)]
        if result.remaining_records or len(refused) < len(result.failures):
            others = [failure for failure in result.failures if failure not in refused]
            raise ConnectionError(f"SwanLab did not take {len(records)} records: {_in_words(others)}")
        self._buf.drain()
        return [record.save.name for failure in refused for record in failure.records]


def _is_refused_file(failure: UploadFailure) -> bool:
    is_final = failure.exception is None or (failure.status is not None and failure.status in (400, 403, 404, 413))
    return is_final and all(record.HasField("save") and not record.save.type for record in failure.records)


def _in_words(failures: list[UploadFailure]) -> str:
    if not failures:
        return "no reason given"
    first = failures[0]
    if first.status is not None:
        return f"the server answered {first.status} ({first.message})"
    return kind_of(first.exception) if isinstance(first.exception, requests.RequestException) else first.message


class _NoWatcher(NullFileWatcher):
    """What the SDK watches files with, made as it makes it; files are sent once."""

    def __init__(self, on_change: Callable[[SaveRecord], None]) -> None:
        super().__init__()


@contextmanager
def without_threads() -> Iterator[None]:
    """Have the SDK make its core with a direct transport, and without a watch on files, of which a machine has few."""
    transport, watcher = core_module.Transport, core_module.FileWatcher
    core_module.Transport = DirectTransport  # type: ignore[misc]
    core_module.FileWatcher = _NoWatcher  # type: ignore[misc]
    try:
        yield
    finally:
        core_module.Transport, core_module.FileWatcher = transport, watcher  # type: ignore[misc]


@contextmanager
def no_retries() -> Iterator[None]:
    """Whoever calls tries again later, and meanwhile says what is wrong."""
    token = session.request_retries_ctx.set(0)
    try:
        yield
    finally:
        session.request_retries_ctx.reset(token)


def kind_of(error: requests.RequestException) -> str:
    """What became of a request, in words and without addresses."""
    status = getattr(error.response, "status_code", None)
    if status:
        return f"the server answered {status}"
    reason = getattr(error.args[0], "reason", None) if error.args else None  # of urllib3; its text has addresses
    return f"no answer ({type(reason or error).__name__})"
