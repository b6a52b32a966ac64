"""Where a command line's things come from: secrets, the hub, a folder of wheels."""

import os
from dataclasses import dataclass, field
from pathlib import Path

from provision.revisions import Branches
from provision.secrets import Secrets

__all__ = ["Sources"]


@dataclass
class Sources:
    """Where things come from, for one command line."""

    secrets: Secrets = field(default_factory=Secrets)
    endpoint: str | None = field(default_factory=lambda: os.environ.get("HF_ENDPOINT"))
    wheelhouse: Path | None = None
    #: Hosts copy wheels from each other, so each has a whole wheelhouse for a while (a rollout).
    shared: bool = False
    branches: Branches = field(default_factory=Branches)
