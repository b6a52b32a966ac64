"""The cards themselves: lost, sick, occupied, slowed."""

import re
import tomllib
from collections.abc import Iterator
from functools import cache
from typing import Any

from checks.facts import HostFacts
from checks.outcome import Severity
from checks.preconditions.common import card_fact, cards, do, each, gib, seen
from checks.preconditions.system import HOSTS
from checks.preconditions.want import Want
from checks.rule import Found, NotApplicable, NotLooked, known, need, rule

__all__ = ["RULES"]

#: Memory of others below this is a context or a display, not a neighbour worth naming.
SMALL = 256 << 20
SLOWED = {"hw_slowdown", "hw_thermal", "hw_power_brake", "sw_thermal"}
REBOOT = {"node_reboot", "system_reboot"}


@cache
def _xids() -> dict[int, dict[str, Any]]:
    return {row["code"]: row for row in tomllib.loads(HOSTS.read_text(encoding="utf-8"))["xid"]}


def _way_out(action: str, card: Any) -> tuple[str, str]:
    """(words, command) for a card's recovery."""
    reset = f"sudo systemctl stop 'eyas-*'; sudo nvidia-smi --gpu-reset -i {card}"
    return {
        "reset": ("stop what uses the card and reset it", reset),
        "power-cycle": (
            "power the machine off and on; if it comes back, reseat or replace the card",
            "sudo poweroff",
        ),
        "replace": ("take the card out of service and replace it", "nvidia-bug-report.sh"),
        "reboot": ("reboot the machine", "sudo reboot"),
        "watch": ("watch the card; replace it if it goes on", f"nvidia-smi -q -d ECC,ROW_REMAPPER -i {card}"),
        "read": ("see what the driver asks for", f"nvidia-smi -q -i {card} | grep -i recovery"),
    }[action]


@rule("gpu-xid-fell-off-bus", needs_cards=True)
def lost_card(facts: HostFacts, want: Want) -> Iterator[Found]:
    """A card no longer answers: lost from the bus."""
    for card in need(facts, "gpus"):
        if card.get("error"):
            yield Found(
                f"card {card['index']} gives no answer: {card['error']}",
                seen(f"gpus.{card['index']}.error", card["error"]),
                do(*_way_out("power-cycle", card["index"])),
            )


@rule("gpu-xid", needs_cards=True)
def xids(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The driver has reported errors of a card since the last boot."""
    grouped: dict[tuple[str, int], list[dict[str, Any]]] = {}
    for event in need(facts, "xid"):
        grouped.setdefault((event["pci"], event["code"]), []).append(event)
    for (pci, code), events in sorted(grouped.items()):
        row = _xids().get(code, {"severity": "warning", "meaning": "not in our catalogue", "action": "read"})
        if row["severity"] == "app":
            continue
        index = _index(facts, pci)
        yield Found(
            f"Xid {code} on {pci}, {len(events)} times since boot: {row['meaning']}",
            seen("xid", events[-1]["text"]),
            do(*_way_out(row["action"], index if index is not None else pci)),
            Severity(row["severity"]),
            row.get("slug", "gpu-xid-other"),
        )


def _index(facts: HostFacts, pci: str) -> int | None:
    """The kernel log writes 0000:c1:00, NVML 00000000:c1:00.0."""
    return next((g["index"] for g in known(facts, "gpus", []) if pci in str(g.get("pci", ""))), None)


@rule("gpu-xid-ecc", needs_cards=True)
def memory_errors(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The card's memory has uncorrectable errors, or a repair waits for a reset."""
    signs = {
        "remapped.failed": (Severity.ERROR, "row remapping has failed", "replace"),
        "remapped.pending": (Severity.ERROR, "a row remapping waits for a reset", "reset"),
        "retired_pending": (Severity.ERROR, "a page retirement waits for a reset", "reset"),
        "ecc.volatile_uncorrected": (
            Severity.ERROR,
            "uncorrectable memory errors since the driver loaded",
            "reset",
        ),
    }
    for path, (severity, words, action) in signs.items():
        for card, value in each(facts, want, path):
            if value:
                count = f": {value}" if value is not True else ""
                yield Found(
                    f"card {card['index']} ({card.get('name')}): {words}{count}",
                    seen(f"gpus.{card['index']}.{path}", value),
                    do(*_way_out(action, card["index"])),
                    severity,
                )


@rule("gpu-reset-required", needs_cards=True)
def recovery(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The driver asks for a reset of a card or a reboot of the machine."""
    used = {card["index"] for card in cards(facts, want)}
    for card in [c for c in need(facts, "gpus") if not c.get("error")]:
        try:
            action = card_fact(card, "recovery_action")
        except NotLooked as e:
            raise NotApplicable(str(e)) from e
        reboot = action in REBOOT
        if action in {None, "none"} or not (reboot or card["index"] in used):
            continue
        yield Found(
            f"card {card['index']}: the driver asks for {action.replace('_', ' ')}",
            seen(f"gpus.{card['index']}.recovery_action", action),
            do(*_way_out("reboot" if reboot else "reset", card["index"])),
            slug="gpu-xid-node-reboot" if reboot else "",
        )


@rule("gpu-memory-occupied", needs_cards=True)
def occupied(facts: HostFacts, want: Want) -> Iterator[Found]:
    """Other processes hold memory the engine will ask for at start."""
    for card in cards(facts, want):
        total, free = card_fact(card, "memory_total"), card_fact(card, "memory_free")
        ours, others = _holders(card, want)
        ask = total * want.gpu_memory_utilization
        held = max(0, card_fact(card, "memory_used") - ours)
        who = ", ".join(others) or "no process is shown"
        where = seen(f"gpus.{card['index']}.processes", who)
        if free + ours < ask:
            yield Found(
                f"card {card['index']}: {gib(free + ours)} of {gib(total)} can be had, "
                f"{gib(ask)} are asked for ({want.gpu_memory_utilization:g}); held by {who}",
                where,
                _stop(others)
                + do("or ask for less", value=f"gpu_memory_utilization: {_fits(free + ours, total)}"),
            )
        elif others and held > SMALL:
            message = f"card {card['index']}: {gib(held)} are held by {who}"
            yield Found(message, where, _stop(others), Severity.WARNING)


def _fits(bytes_free: float, total: float) -> float:
    return max(0.0, int(bytes_free / total * 100) / 100)


def _stop(others: list[str]) -> Any:
    pids = re.findall(r"pid (\d+)", " ".join(others))
    return do("stop what holds the memory", f"sudo kill {' '.join(pids)}" if pids else "nvidia-smi")


def _holders(card: dict[str, Any], want: Want) -> tuple[int, list[str]]:
    """Bytes our own unit holds, and each other process in words."""
    ours, others = 0, []
    listed = card.get("processes")
    for p in listed if isinstance(listed, list) else ():
        size = p.get("bytes") if isinstance(p.get("bytes"), int) else 0
        if want.unit and p.get("unit") == want.unit:
            ours += size
        else:
            unit = p.get("unit")
            of = f" of {unit}" if isinstance(unit, str) else ""
            others.append(f"{p.get('name')} (pid {p.get('pid')}{of}, {gib(size)})")
    return ours, others


@rule("gpu-throttled", severity=Severity.WARNING, needs_cards=True)
def throttled(facts: HostFacts, want: Want) -> Iterator[Found]:
    """A card is slowed down by heat or by its power supply."""
    for card, reasons in each(facts, want, "throttle"):
        why = sorted(SLOWED & set(reasons))
        if why:
            heat = card.get("temperature")
            yield Found(
                f"card {card['index']} is slowed: {', '.join(why)}; {card_fact(card, 'clocks.sm')} of "
                f"{card_fact(card, 'clocks.sm_max')} MHz" + (f", {heat} C" if isinstance(heat, int) else ""),
                seen(f"gpus.{card['index']}.throttle", ", ".join(reasons)),
                do(
                    "check cooling and power cables",
                    f"nvidia-smi -q -d PERFORMANCE,TEMPERATURE -i {card['index']}",
                ),
            )


@rule("gpu-pcie-narrow", severity=Severity.WARNING, needs_cards=True)
def narrow(facts: HostFacts, want: Want) -> Iterator[Found]:
    """A card runs on fewer PCIe lanes than it and its slot can."""
    for card, width in each(facts, want, "pcie.width"):
        most = card_fact(card, "pcie.width_max")
        if most and width < most:
            yield Found(
                f"card {card['index']} runs on {width} PCIe lanes of {most}",
                seen(f"gpus.{card['index']}.pcie.width", width),
                do(
                    "reseat the card, check riser and slot",
                    f"nvidia-smi -q -i {card['index']} | grep -A4 Width",
                ),
            )


@rule("gpu-power-capped", severity=Severity.INFO, needs_cards=True)
def capped(facts: HostFacts, want: Want) -> Iterator[Found]:
    """A card's power limit is set below its default."""
    for card, limit in each(facts, want, "power_limit"):
        default = card_fact(card, "power_default")
        if default and limit < default - 1:
            yield Found(
                f"card {card['index']}: the power limit is {limit:.0f} W, the default {default:.0f} W",
                seen(f"gpus.{card['index']}.power_limit", limit),
                do("raise it, if that wasn't meant", f"sudo nvidia-smi -i {card['index']} -pl {default:.0f}"),
            )


RULES = (lost_card, xids, memory_errors, recovery, occupied, throttled, narrow, capped)
