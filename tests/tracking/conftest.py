"""Real trackers for the suites that run over all of them."""

from __future__ import annotations

import importlib
from collections.abc import Iterator

import pytest

from verl.testing.services import TrackerService

SERVICES = {
    "tensorboard": "verl.testing.tensorboard_service:TensorboardService",
    "mlflow-server": "verl.testing.mlflow_service:MlflowService",
    "mlflow-sqlite": "verl.testing.mlflow_service:MlflowSqliteService",
    "wandb-online": "verl.testing.wandb_service:WandbService",
    "wandb-offline": "verl.testing.wandb_service:WandbOfflineService",
    "swanlab-online": "verl.testing.swanlab_service:SwanlabService",
    "swanlab-offline": "verl.testing.swanlab_service:SwanlabOfflineService",
    "trackio": "verl.testing.trackio_service:TrackioService",
}

WITH_FAULTS = ["mlflow-server", "wandb-online", "swanlab-online"]


@pytest.fixture(scope="module")
def running_service(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[TrackerService]:
    """A service that tests of a module share, by indirect parameter."""
    module, _, name = SERVICES[request.param].partition(":")
    service: TrackerService = getattr(importlib.import_module(module), name)(tmp_path_factory.mktemp("service"))
    with pytest.MonkeyPatch.context() as patch:
        for key, value in service.start().items():
            patch.setenv(key, value)
        yield service
    service.stop()


@pytest.fixture
def service(running_service: TrackerService) -> Iterator[TrackerService]:
    """The service, without a fault at the beginning and at the end."""
    yield running_service
    if running_service.faults:
        running_service.fail(None)
        running_service.change_login(is_new=False)
