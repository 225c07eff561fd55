"""Files and folders as W&B artifacts: each is waited for, so that a kill loses none."""

from __future__ import annotations

import re
from typing import Any

from verl.tracking.backends.wandb_media import artifact_media
from verl.tracking.backends.wandb_session import WandbSession
from verl.tracking.backends.wandb_upload import Upload
from verl.tracking.backends.wandb_writer import LeaveOut
from verl.tracking.logger import Artifact
from verl.tracking.spelling import Spelling

_WAIT_SECONDS = 20
_LONGEST_NAME = 100


class ArtifactSender:
    """Sends artifacts of a run; an artifact with the same content is the same version in W&B, so twice does no harm.

    Args:
        run_id: Part of their names, for W&B has one artifact of a name in a project.
        session: Where they go.
        upload: What the server has; nothing = there is no server.
        leave_out: Told of what cannot be sent: its name, step and why.
    """

    def __init__(self, run_id: str, session: WandbSession, upload: Upload | None, leave_out: LeaveOut) -> None:
        self._run_id = run_id
        self._session = session
        self._upload = upload
        self._leave_out = leave_out
        self._spell = Spelling(re.compile(r"[^A-Za-z0-9._-]"), _LONGEST_NAME)
        self._waiting: dict[str, Any] = {}

    @property
    def renamed(self) -> dict[str, str]:
        """Names that had to be changed."""
        return self._spell.renamed

    def send(self, artifact: Artifact, step: int) -> None:
        """Send an artifact, and wait a while for its end.

        Raises:
            RemoteError: The server is away.
            Exception: What else the SDK raises.
        """
        name = f"{self._spell(artifact.name)}-{self._run_id}"
        try:
            sent = self._session.log_artifact(artifact_media(artifact, name))
            if self._upload and not _is_uploaded(sent, _WAIT_SECONDS):
                self._waiting[name] = sent
        except ConnectionError:  # the SDK's helper is gone
            raise
        except (OSError, ValueError, TypeError) as error:
            if self._upload:
                self._upload.remote.look()  # raises if the server is away: then it is not the artifact's fault
            self._leave_out(artifact.name, step, str(error))

    def waiting(self) -> list[str]:
        """Names of those that are not known to be there yet."""
        self._waiting = {name: sent for name, sent in self._waiting.items() if not _is_uploaded(sent, 0)}
        return list(self._waiting)


def _is_uploaded(sent: Any, seconds: int) -> bool:
    from wandb.sdk.artifacts.exceptions import WaitTimeoutError

    try:
        sent.wait(timeout=seconds)
    except WaitTimeoutError:
        return False
    return True
