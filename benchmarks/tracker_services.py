"""What the benchmarks of trackers have in common: servers of W&B, MLflow and SwanLab, and a folder of trackio.

They run in a process of their own, so that neither the time nor the memory that is measured has anything of them.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Mapping
from multiprocessing.connection import Client, Connection, Listener
from pathlib import Path
from types import TracebackType
from typing import Self

from verl.testing.mlflow_service import MlflowService
from verl.testing.services import Fault, TrackerService
from verl.testing.swanlab_service import SwanlabService
from verl.testing.trackio_service import TrackioService
from verl.testing.wandb_service import WandbService

SERVED = ("wandb", "mlflow", "swanlab", "trackio")
"""Trackers that need a service; all others write into the run directory."""
TRACKERS = ("tensorboard", *SERVED)
WITH_SERVER = ("wandb", "mlflow", "swanlab")
_STOP_SECONDS = 20.0


class Services:
    """The services, started on entry and stopped on exit; `os.environ` names them as long as they run.

    Args:
        folder: An existing folder, for everything that they store.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._before = dict(os.environ)

    def __enter__(self) -> Self:
        context = multiprocessing.get_context("spawn")
        ours, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(self._folder, theirs), daemon=False)
        self._process.start()
        theirs.close()
        os.environ.update(ours.recv())
        os.environ["BENCHMARK_SERVICES"] = str(self._folder / "socket")
        self._pipe = ours
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._pipe.close()
        self._process.join(_STOP_SECONDS)
        self._process.kill()
        os.environ.clear()
        os.environ.update(self._before)


def fail(trackers: tuple[str, ...], fault: Fault | None) -> None:
    """Give the services of these trackers a fault, or end it; from any process that was started within `Services`."""
    with Client(os.environ["BENCHMARK_SERVICES"]) as connection:
        for tracker in trackers:
            connection.send((tracker, fault))
            connection.recv()


def _serve(folder: Path, pipe: Connection) -> None:
    """Life of the services: until the other end of the pipe is closed."""
    services: dict[str, TrackerService] = {
        "wandb": WandbService(folder),
        "mlflow": MlflowService(folder / "mlflow"),
        "swanlab": SwanlabService(folder),
        "trackio": TrackioService(folder / "trackio"),
    }
    environment: dict[str, str] = {}
    listener = Listener(str(folder / "socket"))
    try:
        for service in services.values():
            environment |= service.start()
        pipe.send(environment)
        _take_faults(listener, services, pipe)
    finally:
        listener.close()
        for service in services.values():
            service.stop()


def _take_faults(listener: Listener, services: Mapping[str, TrackerService], pipe: Connection) -> None:
    def take() -> None:
        while True:
            with listener.accept() as connection:
                try:
                    while True:
                        tracker, fault = connection.recv()
                        services[tracker].fail(fault)
                        connection.send(True)
                except EOFError:
                    continue

    threading.Thread(target=take, daemon=True).start()
    try:
        pipe.recv()
    except EOFError:
        return
