"""The journal of one rollout: an event a line, on disk before the act. Reading it says where each host is.

~/.local/state/eyas/rollouts/20261130T220501-3f2a.jsonl
"""

import calendar
import contextlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from inventory.errors import UsageError
from provision.journal import Journal
from provision.rollout.plan import Plan

__all__ = ["IN_FLIGHT", "PHASES", "Record", "newest_unfinished", "records", "rollouts_dir"]

#: A host whose last event is one of these may serve either release: it is settled before anything else.
IN_FLIGHT = frozenset({"draining", "switching", "rolling-back"})
#: Events that say where a host is. "lost" is none: the host stays where the event before it put it.
PHASES = IN_FLIGHT | {"prepared", "done", "rolled-back", "failed", "kept"}

_STAMP = "%Y%m%dT%H%M%S"


def rollouts_dir() -> Path:
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "eyas" / "rollouts"


class Record:
    """Append with ``write``; ``phases`` and ``failures`` are what the file says, also after a crash."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._journal = Journal(path)
        #: Set by whoever reads secrets: nothing of them may reach the file.
        self.mask: Callable[[str], str] = str
        self.events = list(_read(path))

    @classmethod
    def new(cls, plan: Plan, folder: Path | None = None) -> "Record":
        folder = folder or rollouts_dir()
        folder.mkdir(parents=True, exist_ok=True)
        record = cls(folder / f"{plan.id}.jsonl")
        record.write("plan", plan=plan.to_json())
        _sync_folder(folder)
        return record

    @staticmethod
    def new_id(folder: Path | None = None) -> str:
        """UTC and a few random digits; sorts after every id there is, also when the clock was set back."""
        stamp, known = time.strftime(_STAMP, time.gmtime()), records(folder)
        last = known[-1].stem.partition("-")[0] if known else ""
        if last >= stamp:
            with contextlib.suppress(ValueError):
                stamp = time.strftime(_STAMP, time.gmtime(calendar.timegm(time.strptime(last, _STAMP)) + 1))
        return f"{stamp}-{secrets.token_hex(2)}"

    def write(self, event: str, **words: Any) -> None:
        words = json.loads(self.mask(json.dumps(words)))
        self._journal.write(event, **words)
        self.events.append({"event": event, **words})

    @property
    def plan(self) -> Plan:
        """The plan as it was agreed to, with the members that were resolved later laid over it."""
        plans = [e["plan"] for e in self.events if e["event"] == "plan"]
        if not plans:
            raise UsageError(f"{self.path} holds no plan", hint=_aside(self.path))
        plan = Plan.from_json(plans[0], source=str(self.path))
        later = {e["host"]: e["member"] for e in self.events if e["event"] == "resolved"}
        if not later:
            return plan
        data = plan.to_json()
        data["members"] = [
            later.get(m.name, raw) for m, raw in zip(plan.members, data["members"], strict=True)
        ]
        return Plan.from_json(data, source=str(self.path))

    @property
    def phases(self) -> dict[str, str]:
        return {e["host"]: e["event"] for e in self.events if e["event"] in PHASES}

    @property
    def failures(self) -> set[str]:
        return {host for host, phase in self.phases.items() if phase in {"failed", "rolled-back"}}

    @property
    def in_flight(self) -> list[str]:
        return [host for host, phase in self.phases.items() if phase in IN_FLIGHT]

    @property
    def finished(self) -> bool:
        """Ended, and no host was left between two releases."""
        return not self.in_flight and any(e["event"] == "end" for e in self.events)


def _read(path: Path) -> Iterator[dict[str, Any]]:
    """The events; a last line that a crash cut short is removed, so that the next one stands alone."""
    if not path.exists():
        return
    data = path.read_bytes()
    whole, _, torn = data.rpartition(b"\n")
    if torn:
        with path.open("r+b") as f:
            f.truncate(len(data) - len(torn))
            os.fsync(f.fileno())
    for number, line in enumerate(whole.split(b"\n") if whole else [], 1):
        try:
            event = json.loads(line)
            yield event if "event" in event else {**event, "event": "?"}
        except (ValueError, TypeError) as e:
            raise UsageError(f"{path}, line {number} is damaged: {e}", hint=_aside(path)) from e


def _aside(path: Path) -> str:
    """It may have been the record of a host that is between two releases: nobody goes on before a look."""
    return f"see what the hosts serve (invoke status), then: mv {path} {path}.damaged"


def _sync_folder(folder: Path) -> None:
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def records(folder: Path | None = None) -> list[Path]:
    """All rollouts of this operator, oldest first."""
    return sorted((folder or rollouts_dir()).glob("*.jsonl"))


def newest_unfinished(fleet: str, folder: Path | None = None, *, rollout: str = "") -> Record | None:
    """The rollout to resume: the named one, else the newest of this fleet when it is unfinished."""
    folder = folder or rollouts_dir()
    if rollout:
        path = folder / f"{rollout}.jsonl"
        if not path.is_file():
            known = ", ".join(p.stem for p in records(folder)[-3:]) or "none"
            raise UsageError(f"no rollout {rollout!r} here", hint=f"known: {known}")
        return Record(path)
    for path in reversed(records(folder)):
        record = Record(path)
        if not record.events:
            continue  # cut off before its plan was on disk: nothing had begun
        if record.plan.fleet == fleet:
            return None if record.finished else record
    return None
