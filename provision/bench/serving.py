"""Measure what is served now, and tell it as a run."""

from checks.bench.model import StrategyRun
from checks.planner.calibrate import read_log
from inventory.model import Deployment
from provision import layout
from provision.bench.found import Bench
from provision.bench.load import open_loader
from provision.bench.measure import measure, sizes
from provision.proof import baseline_key
from provision.service import journal
from provision.shell import Shell
from provision.want import Want

__all__ = ["measure_served", "named"]


def measure_served(b: Bench, want: Want) -> None:
    d = want.deployment
    run = named(d, want)
    with open_loader(b.shell, d.name) as loader:
        if b.size is None:
            b.size = sizes(loader, b.asked, force=b.force)
            for note in b.size.notes:
                b.say(note)
        found = measure(loader, b.asked, b.size, run.label, b.say, domains=d.draft.method != "none")
        gpu = loader.ask("hello")["gpu"]
    tokens = read_log(_start_log(b.shell, d.name)).get("tokens")
    missing = {} if tokens else {"kv_tokens": "the journal of its start does not tell"}
    cards = tuple(c["memory_mib"] for c in gpu["cards"]) if "cards" in gpu else None
    if cards is None:
        missing["gpu_memory_mib"] = gpu["missing"]
    told = {"kv_tokens": int(tokens) if tokens else None, "gpu_memory_mib": cards, "missing": missing}
    b.runs.append(
        run.model_copy(update={**told, "cells": tuple(found.cells), "acceptance": found.acceptance})
    )
    b.found[run.label] = found
    b.key, b.engine = baseline_key(want), (d.engine, want.engine.version, want.manifests["target"].commit)


def named(d: Deployment, want: Want, error: str = "") -> StrategyRun:
    draft = d.draft
    return StrategyRun(
        strategy=draft.method,
        num_speculative_tokens=draft.num_speculative_tokens,
        draft=draft.model.label if draft.model else "",
        release=want.release.id,
        error=error,
    )


def _start_log(shell: Shell, deployment: str) -> str:
    unit = f"{layout.unit_name(deployment)}.service"
    now = shell.run(("systemctl", "show", "-P", "InvocationID", unit), timeout=20, check=False)
    return journal(shell, deployment, invocation=now.stdout.strip())
