"""Turn what a user logs into records: the part of `Tracking` that knows values and nothing of trackers."""

from __future__ import annotations

import functools
import logging
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from verl.config.secret_names import is_secret_name
from verl.config.secrets import mask
from verl.errors import JournalError
from verl.journal import Kind
from verl.journal.records import LARGEST_STEP
from verl.tracking.artifact_files import inside, new_artifact_path
from verl.tracking.embedding_parts import embedding_parts
from verl.tracking.histogram import make_histogram
from verl.tracking.logger import Histogram
from verl.tracking.png_image import as_image, encode_png
from verl.tracking.relay.delivery import EMBEDDING_TYPE
from verl.tracking.values import as_float

log = logging.getLogger("verl.tracking")

_EXACT_NUMBERS = frozenset({float, int})


Method = TypeVar("Method", bound=Callable[..., Any])


def never_raising(method: Method) -> Method:
    """A method of a recorder for whatever a user gives it: what goes wrong is a warning, told once per method.

    Only a `JournalError` (the run directory cannot be written) is raised.
    """

    @functools.wraps(method)
    def guarded(self: Recorder, *arguments: Any, **options: Any) -> Any:
        try:
            return method(self, *arguments, **options)
        except JournalError:
            raise
        except Exception as error:
            log.debug("%s", method.__name__, exc_info=error)
            self.warn_once(
                f"{method.__name__} {type(error).__name__}", f"{method.__name__}: not logged: {_in_words(error)}"
            )
            return None

    return cast(Method, guarded)


class Recorder(ABC):
    """Methods that log values.

    A value that cannot be logged is left out with one warning; nothing else of the call is lost.

    Args:
        home: Run directory.

    Attributes:
        home: Run directory.
        step: The step last begun or logged; the one meant where none is given.
    """

    def __init__(self, home: Path) -> None:
        self.step = 0
        self.home = home
        self._known_keys: set[str] = set()
        self._warned: set[str] = set()

    @abstractmethod
    def _append(self, kind: str, step: int | None, **fields: Any) -> None:
        """Write a record and let trackers have it."""

    @abstractmethod
    def flush(self) -> None:
        """Let trackers look at the journal now instead of in a moment; does not wait for them."""

    @never_raising
    def log_metrics(self, metrics: Mapping[str, Any], step: int | None) -> None:
        """Log the scalars of one step.

        Args:
            metrics: Numbers by key: Python, numpy, or one-element tensors; NaN and infinities are kept. Something
                else is left out with a warning, the others are logged.
            step: Training step; nothing = the current one.
        """
        self.step = step = self._step_of(step)
        self.log_scalars(metrics, step)

    @never_raising
    def log_scalars(self, metrics: Mapping[str, Any], step: int | None, walltime: float | None = None) -> None:
        """The same for a counter of the user's own: the current step stays what it is."""
        step = self._step_of(step)
        if not (self._known_keys.issuperset(metrics) and _EXACT_NUMBERS.issuperset(map(type, metrics.values()))):
            metrics = self._checked(metrics)
        if not metrics:
            return
        self._append(Kind.METRICS, step, metrics=metrics, **_at(walltime))

    @never_raising
    def log_histogram(
        self,
        tag: str,
        values: Any,
        step: int | None,
        bins: int | str | Sequence[float] | None = None,
        walltime: float | None = None,
    ) -> None:
        """Log a distribution.

        Args:
            tag: Name.
            values: Numbers of any shape (array, tensor, list); those that are not finite are left out with a warning.
            step: Training step; nothing = the current one.
            bins: See `verl.tracking.histogram.make_histogram`.
            walltime: Unix seconds to show instead of now.
        """
        try:
            histogram, excluded = make_histogram(values, bins)
        except (TypeError, ValueError) as error:
            self.warn_once(f"histogram {tag}", f"histogram {tag!r} is not logged: {error}")
            return
        if excluded:
            found = f"{excluded} not finite at step {self._step_of(step)}"
            self.warn_once(f"finite {tag}", f"histogram {tag!r} shows its finite values only: {found}")
        if histogram is not None:
            self.log_counts(tag, histogram, step, walltime)

    def log_counts(self, tag: str, histogram: Histogram, step: int | None, walltime: float | None = None) -> None:
        """Log a distribution that is counted already."""
        counts = {
            "min": histogram.minimum,
            "max": histogram.maximum,
            "num": histogram.count,
            "sum": histogram.sum,
            "sum_squares": histogram.sum_squares,
            "bucket_limits": histogram.bucket_limits,
            "bucket_counts": histogram.bucket_counts,
        }
        self._append(Kind.HISTOGRAM, self._step_of(step), tag=str(tag), histogram=counts, **_at(walltime))

    @never_raising
    def log_text(self, tag: str, text: object, step: int | None, walltime: float | None = None) -> None:
        """Log a text, Markdown where a tracker can show it."""
        self._append(Kind.TEXT, self._step_of(step), tag=str(tag), text=str(text), **_at(walltime))

    @never_raising
    def log_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]], step: int | None) -> None:
        """Log a table, such as validation generations: one row per sample, cells of plain types."""
        try:
            titles = [str(column) for column in columns]
            cells = [_without_secrets(titles, list(row)) for row in rows]
        except TypeError:
            self.warn_once(f"table {name}", f"table {name!r} is not logged: its columns or a row cannot be listed")
            return
        self._append(Kind.TABLE, self._step_of(step), name=str(name), columns=titles, rows=cells)

    @never_raising
    def log_image(
        self, tag: str, image: Any, step: int | None, dataformats: str = "CHW", walltime: float | None = None
    ) -> None:
        """Log an image, or a batch as a contact sheet; see `verl.tracking.png_image.as_image`."""
        try:
            png = encode_png(as_image(image, dataformats))
        except (TypeError, ValueError) as error:
            self.warn_once(f"image {tag}", f"image {tag!r} is not logged: {error}")
            return
        self.log_png(tag, png, step, walltime)

    def log_png(self, tag: str, png: bytes, step: int | None, walltime: float | None = None) -> None:
        """Log an image that is a PNG already."""
        step = self._step_of(step)

        def write() -> str:
            path = new_artifact_path(self.home, "images", tag, f"_{step:06d}.png")
            path.write_bytes(png)
            return path.relative_to(self.home).as_posix()

        self._log_file(tag, "image", step, write, {}, walltime)

    @never_raising
    def log_embedding(
        self,
        tag: str,
        vectors: Any,
        labels: Sequence[Any] | None = None,
        step: int | None = None,
        *,
        header: Sequence[str] = (),
        images: Any = None,
    ) -> None:
        """Log points for TensorBoard's projector.

        Args:
            tag: Name.
            vectors: Array or tensor of shape (points, dimensions).
            labels: One label per point, or one list of labels (the columns of `header`).
            step: Training step; nothing = the current one.
            header: Names of several label columns.
            images: One small image per point, shape (points, channels, height, width).
        """
        step = self._step_of(step)
        try:
            parts = embedding_parts(vectors, labels, header, images)
        except (TypeError, ValueError) as error:
            self.warn_once(f"embedding {tag}", f"embedding {tag!r} is not logged: {error}")
            return
        metadata = parts.metadata()

        def write() -> str:
            path = new_artifact_path(self.home, "embeddings", tag, f"_{step:06d}.npy")
            np.save(path, parts.vectors)
            for field, ending, content in (("labels", ".labels.json", parts.labels), ("sprite", ".png", parts.sprite)):
                if content is not None:
                    path.with_suffix(ending).write_bytes(content)
                    metadata[field] = path.with_suffix(ending).relative_to(self.home).as_posix()
            return path.relative_to(self.home).as_posix()

        self._log_file(tag, EMBEDDING_TYPE, step, write, metadata)

    @never_raising
    def log_artifact(
        self,
        path: str | Path,
        name: str | None = None,
        type: str = "file",
        step: int | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Record a file or folder; one that lies outside the run directory is copied into it."""
        source = Path(str(path))
        facts = dict(metadata or {})
        self._log_file(name or source.name, type, self._step_of(step), lambda: inside(self.home, source), facts)

    @never_raising
    def note(self, text: str, level: str = "info") -> None:
        """Say something about the run itself: info, notice, warning or error; the latter two stay visible."""
        self._append(Kind.NOTE, self.step, text=str(text), level=level)

    def _log_file(
        self,
        name: str,
        type: str,
        step: int,
        write: Callable[[], str],
        metadata: dict[str, Any],
        walltime: float | None = None,
    ) -> None:
        try:
            path = write()
        except (OSError, ValueError) as error:  # a full disk, a missing file, a name that no file can have
            self.warn_once(f"{type} {name}", f"{type} {name!r} is not logged: {error}")
            return
        self._append(Kind.ARTIFACT, step, name=str(name), path=path, type=type, metadata=metadata, **_at(walltime))

    def _step_of(self, step: Any) -> int:
        if step is None:
            return self.step
        try:
            whole = step if type(step) is int else int(step)
            if -LARGEST_STEP <= whole <= LARGEST_STEP:
                return whole
            self.warn_once("step", f"a step has 64 bits; a larger one was given, and step {self.step} is used")
            return self.step
        except (TypeError, ValueError, OverflowError, RuntimeError):
            self.warn_once("step", f"a step is a whole number, not {step!r}; step {self.step} is used")
            return self.step

    def _checked(self, metrics: Mapping[str, Any]) -> dict[str, float | int]:
        """The numbers among the values; each bad one is told once."""
        checked: dict[str, float | int] = {}
        for key, value in metrics.items():
            try:
                if not isinstance(key, str) or not key:
                    raise TypeError(f"a metric key is a non-empty text, not {key!r}")
                checked[key] = value if type(value) in _EXACT_NUMBERS else as_float(key, value)
            except TypeError as error:
                self.warn_once(f"metric {key!r}", f"not logged: {error}")
        self._known_keys.update(checked)
        return checked

    def warn_once(self, topic: str, text: str) -> None:
        """Note a warning, the first time only for each topic."""
        if topic not in self._warned:
            self._warned.add(topic)
            self.note(text, level="warning")


def _in_words(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # even that may be the user's own
        return type(error).__name__


def _at(walltime: object) -> dict[str, float]:
    """A time that is none is left out: then the time of the record counts."""
    if not isinstance(walltime, float | int) or isinstance(walltime, bool) or not math.isfinite(walltime):
        return {}
    return {"walltime": walltime}


def _without_secrets(titles: list[str], row: list[Any]) -> list[Any]:
    """Masks what stands below a title such as `api_key`."""
    if not any(map(is_secret_name, titles)):
        return row
    return [mask({title: cell})[title] for title, cell in zip(titles, row, strict=False)] + row[len(titles) :]
