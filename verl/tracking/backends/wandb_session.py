"""One session of the W&B SDK: from `wandb.init` to its end, or until it is let go of."""

from __future__ import annotations

import contextlib
import logging
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from verl.config.environment import package_environment
from verl.tracking.logger import AlertLevel, ProcessSpoiledError, RunStatus

log = logging.getLogger("verl.tracking")

STEP_KEY = "global_step"
FINGERPRINT_KEY = "_journal"
_EXIT_CODES: dict[RunStatus, int] = {"finished": 0, "failed": 1, "crashed": 1, "killed": 255}
_ALERT_LEVELS: dict[AlertLevel, str] = {"info": "INFO", "warning": "WARN", "error": "ERROR"}
INIT_SECONDS = 20.0
FINISH_SECONDS = 60.0
_REAP_SECONDS = 1.0
UPLOAD_SECONDS = 5.0
_HELPER_ENVIRONMENT = {"WANDB_SERVICE": None, "WANDB_ERROR_REPORTING": "false"}
"""For the start of the SDK's helper: it is not shared with the training process, and reports no errors to W&B."""


@dataclass(frozen=True, slots=True)
class SessionPlan:
    """What a session is begun for.

    Attributes:
        run_id: Id of the run. group: Group that its branches share.
        project: Project. name: Name for people.
        folder: Where the SDK makes its folder `wandb`.
        mode: As the user set it; nothing = the SDK decides.
        proxy: Proxy for W&B alone.
    """

    run_id: str
    group: str
    project: str
    name: str
    folder: Path
    mode: str | None
    proxy: str | None


class WandbSession:
    """A run of the SDK, in this process alone.

    Args:
        plan: The run.

    Raises:
        Exception: What the SDK raises; nothing of the session is left then.
    """

    def __init__(self, plan: SessionPlan) -> None:
        import wandb

        self._wandb = wandb
        self._run: Any = None
        plan.folder.mkdir(parents=True, exist_ok=True)
        settings = wandb.Settings(**_settings(plan, set(wandb.Settings.model_fields)))
        try:
            with package_environment(_HELPER_ENVIRONMENT):
                if wandb.run is None:  # else the settings of somebody else's run
                    wandb.setup(settings=settings)
                self._run = wandb.init(
                    id=plan.run_id,
                    project=plan.project,
                    name=plan.name,
                    group=plan.group,
                    resume="allow",
                    reinit="create_new",
                    settings=settings,
                )
        except BaseException as error:
            self.kill()
            if isinstance(error, ConnectionError):
                raise ProcessSpoiledError(f"the helper process of wandb is gone ({error})") from error
            raise
        self._run.define_metric(STEP_KEY, hidden=True)
        self._run.define_metric("*", step_metric=STEP_KEY)

    @property
    def entity(self) -> str:
        """Owner of the run."""
        return str(self._run.entity)

    @property
    def project(self) -> str:
        """Project, as the server calls it."""
        return str(self._run.project)

    @property
    def url(self) -> str:
        """Address of the run; empty offline."""
        return str(self._run.url or "")

    @property
    def folder(self) -> Path:
        """The folder of this session (`run-...` or `offline-run-...`)."""
        return Path(self._run.dir).parent

    def log(self, values: Mapping[str, Any], native_step: int) -> list[str]:
        """Log a row; gives the names of the files that belong to it."""
        if hasattr(self._run, "_local_step"):  # names of files have it: they are to be the same at every replay
            self._run._local_step = native_step
        self._run.log(dict(values), step=native_step, commit=True)
        return [name for value in values.values() if (name := self._written(value))]

    def upload(self, key: str, value: Any, native_step: int) -> str:
        """Upload only the file of a value whose row the server has already; gives its name."""
        value.bind_to_run(self._run, key, native_step)
        return self._written(value)

    def update_config(self, config: dict[str, Any]) -> None:
        """Change the configuration."""
        self._run.config.update(config, allow_val_change=True)

    def update_summary(self, values: Mapping[str, Any]) -> None:
        """Set values that are shown of the run as a whole."""
        self._run.summary.update(dict(values))

    def log_artifact(self, artifact: Any) -> Any:
        """Begin to upload an artifact; gives what its end can be asked of."""
        return self._run.log_artifact(artifact)

    def alert(self, title: str, text: str, level: AlertLevel) -> None:
        """Have W&B tell people (by mail or Slack, as they set it)."""
        self._run.alert(title=title, text=text, level=_ALERT_LEVELS[level])

    def finish(self, status: RunStatus) -> None:
        """End the run and upload what is left.

        Raises:
            TimeoutError: That took too long.
        """
        self._run.finish(exit_code=_EXIT_CODES[status])
        self._run = None
        if not self._others_run():
            self._tear_down()

    def kill(self) -> None:
        """Let go of the run at once: what was not uploaded is left behind, and the run is not marked as ended."""
        run, self._run = self._run, None
        if self._others_run(run):
            if run is not None:
                log.warning("wandb: another run is active in this process; the last rows of this one may come later")
            return
        helpers = _helpers()
        for helper in helpers:
            with contextlib.suppress(psutil.Error):
                helper.kill()
        self._reap(helpers)
        self._tear_down()

    def _others_run(self, own: Any = None) -> bool:
        """Whether somebody else uses the SDK in this process (`trainer.async_log=false`)."""
        run = self._wandb.run
        return run is not None and run is not own

    def _reap(self, helpers: list[psutil.Process]) -> None:
        # The SDK waits for its helper only when that ends in peace.
        from wandb.sdk import wandb_setup

        connection = getattr(wandb_setup.singleton(), "_connection", None)
        process = getattr(getattr(connection, "_proc", None), "_process", None)
        if isinstance(process, subprocess.Popen):
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(_REAP_SECONDS)
        psutil.wait_procs(helpers, _REAP_SECONDS)

    def _tear_down(self) -> None:
        # It ends the process with SystemExit if the helper did not end well.
        try:
            with package_environment(_HELPER_ENVIRONMENT):
                self._wandb.teardown()
        except (Exception, SystemExit) as error:
            log.debug("wandb: teardown: %s", error)

    def _written(self, value: Any) -> str:
        """Name of the file of a value that was given to the SDK, which needs the value itself no longer."""
        name = self._file_of(value)
        if isinstance(value, self._wandb.Table):
            value.data = []  # the SDK keeps the last hundred tables
        return name

    def _file_of(self, value: Any) -> str:
        if not isinstance(value, self._wandb.Html | self._wandb.Image | self._wandb.Table):
            return ""
        return str(value.to_json(self._run).get("path") or "")


def _tell_of_stop() -> None:
    log.warning("wandb: somebody asked in W&B to stop the run; only the training process itself can do that")


def _helpers() -> list[psutil.Process]:
    try:
        return [child for child in psutil.Process().children() if child.name() == "wandb-core"]
    except psutil.Error:
        return []


def _settings(plan: SessionPlan, known: set[str]) -> dict[str, Any]:
    """Settings for a mirror of the journal: short waits, nothing gathered from the machine, nothing printed."""
    settings: dict[str, Any] = {
        "root_dir": str(plan.folder),
        "init_timeout": INIT_SECONDS,
        "finish_timeout": FINISH_SECONDS,
        "finish_timeout_raises": True,
        "login_timeout": 1.0,
        "silent": True,
        "console": "off",
        "stop_fn": _tell_of_stop,
        "disable_git": True,
        "disable_code": True,
        "disable_job_creation": True,
        "x_disable_stats": True,
        "x_disable_meta": True,
        "x_disable_machine_info": True,
        "x_save_requirements": False,
        "x_skip_transaction_log": plan.mode != "offline",  # the journal is that
        "x_transaction_log_flush_interval": UPLOAD_SECONDS,
        "x_file_stream_transmit_interval": UPLOAD_SECONDS,
        "x_file_stream_timeout_seconds": 20.0,
        "x_file_transfer_timeout_seconds": 60.0,
        "x_graphql_timeout_seconds": 10.0,
        "x_graphql_retry_max": 5,
        "x_graphql_retry_wait_max_seconds": 4.0,
    }
    if plan.mode:
        settings["mode"] = plan.mode
    if plan.proxy:
        settings |= {"http_proxy": plan.proxy, "https_proxy": plan.proxy}
    return {name: value for name, value in settings.items() if name in known}
