"""`invoke review`: a timer on each host that looks whether it is still as fast; the fleet's history."""

import json
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jinja2
from rich.console import Console
from rich.table import Table

from checks.bench.baseline import against
from inventory.errors import ChangeFailed, CheckRefused, EyasError, UsageError
from inventory.load import deployment_for
from inventory.model import Host
from provision import layout
from provision.bench.programs import bring
from provision.gather import gather, tell_lost
from provision.hostlock import host_lock
from provision.observe import probe
from provision.programs import FOLDER
from provision.run import Flags
from provision.shell import Shell

__all__ = ["TEXTFILES", "Review", "install", "remove", "show_history"]

#: Where Ubuntu's and Debian's node_exporter looks.
TEXTFILES = "/var/lib/prometheus/node-exporter"
#: A fleet's reviews don't begin in the same minute.
_SPREAD_S = 1800
_CALENDAR = 'weekly, daily, or "Sun 04:00"'


@dataclass(frozen=True)
class Review:
    """``calendar``: when, as systemd writes it. ``textfiles``: node_exporter's folder, where there is one."""

    calendar: str = "weekly"
    textfiles: str = TEXTFILES
    now: bool = False


def install(hosts: Sequence[Host], deployment: str | None, review: Review, flags: Flags) -> int:
    """Exit 0 when every host has the timer; a second run changes nothing."""
    names = _names(hosts, deployment)
    if not re.fullmatch(r"/[\w./+-]*", review.textfiles):
        raise UsageError(f"--textfiles {review.textfiles!r} is no plain absolute folder", hint=TEXTFILES)
    if not review.calendar.isprintable() or not review.calendar.strip():
        raise UsageError(f"--calendar {review.calendar!r} is no time", hint=_CALENDAR)
    answers = gather(hosts, lambda s: _install(s, names[s.host.name], review), flags)
    return _tell(answers, "install", flags)


def remove(hosts: Sequence[Host], deployment: str | None, flags: Flags) -> int:
    """The history stays."""
    names = _names(hosts, deployment)
    answers = gather(hosts, lambda s: _remove(s, names[s.host.name]), flags)
    return _tell(answers, "remove", flags)


def _names(hosts: Sequence[Host], deployment: str | None) -> dict[str, str]:
    return {h.name: deployment_for(h, deployment).name for h in hosts}


def _install(shell: Shell, name: str, review: Review) -> dict[str, Any]:
    _check_calendar(shell, review.calendar)
    if name not in (probe(shell).value("eyas.current", dict) or {}):
        raise CheckRefused(f"{name} does not serve here", hint=f"invoke provision --host {shell.host.name}")
    unit = layout.review_unit(name)
    with host_lock(shell, f"install the review of {name}"):
        programs = bring(shell)
        shell.run(("install", "-d", "-m", "0755", "--", layout.review_folder(name)), timeout=20)
        texts = _units(name, programs, review)
        changed = [n for n, text in texts.items() if shell.read(layout.unit_path(n)) != text]
        for n in changed:
            shell.write(layout.unit_path(n), texts[n])
        if changed:
            shell.run(("systemctl", "daemon-reload"), timeout=60)
        shell.run(("systemctl", "enable", "--quiet", "--now", f"{unit}.timer"), timeout=60)
    if review.now:
        _review_now(shell, unit)
    return {"deployment": name, "changed": changed, "textfiles": _there(shell, review.textfiles)}


def _check_calendar(shell: Shell, calendar: str) -> None:
    got = shell.run(("systemd-analyze", "calendar", "--", calendar), timeout=30, check=False, sudo=False)
    if not got.ok:
        raise UsageError(
            f"{calendar!r} is no time that systemd understands: {got.tail(1)}",
            hint=_CALENDAR,
            host=shell.host.name,
        )


def _units(name: str, programs: str, review: Review) -> dict[str, bytes]:
    loader = jinja2.FileSystemLoader(FOLDER)
    made = jinja2.Environment(  # noqa: S701 - unit files, not HTML
        loader=loader, undefined=jinja2.StrictUndefined, keep_trailing_newline=True
    )
    words = {
        "name": name,
        "unit": layout.unit_name(name),
        "programs": programs,
        "state": layout.STATE,
        "lock": layout.LOCK,
        "folder": layout.review_folder(name),
        "credentials": layout.credentials_dir(name),
        "textfiles": review.textfiles,
        "calendar": review.calendar,
        "spread_s": _SPREAD_S,
    }
    unit = layout.review_unit(name)
    return {
        f"{unit}.{kind}": made.get_template(f"review.{kind}.j2").render(words).encode()
        for kind in ("service", "timer")
    }


def _review_now(shell: Shell, unit: str) -> None:
    got = shell.run(("systemctl", "start", f"{unit}.service"), timeout=1900, check=False)
    if not got.ok:
        said = shell.run(
            ("journalctl", "-u", unit, "-n", "5", "-o", "cat", "--no-pager"), timeout=30, check=False
        )
        raise ChangeFailed(
            f"the review failed: {said.stdout.strip() or got.tail(3)}",
            hint=f"invoke doctor --host {shell.host.name}",
            host=shell.host.name,
        )


def _there(shell: Shell, folder: str) -> str | None:
    return folder if shell.run(("test", "-d", folder), timeout=20, check=False).ok else None


_REMOVE = """
systemctl disable --quiet --now "$1.timer" 2>/dev/null || true
rm -f -- "/etc/systemd/system/$1.timer" "/etc/systemd/system/$1.service" "$2"
systemctl daemon-reload
"""


def _remove(shell: Shell, name: str) -> dict[str, Any]:
    unit = layout.review_unit(name)
    there = shell.read(layout.unit_path(f"{unit}.service"))
    if there is None:
        return {"deployment": name, "changed": []}
    textfiles = next(
        (w.removeprefix("ReadWritePaths=-") for w in there.decode().splitlines() if "ReadWritePaths=-" in w),
        TEXTFILES,
    )
    with host_lock(shell, f"remove the review of {name}"):
        shell.run(("sh", "-c", _REMOVE, "sh", unit, f"{textfiles}/eyas_{name}.prom"), timeout=90)
    return {"deployment": name, "changed": [f"{unit}.timer", f"{unit}.service"]}


def _tell(answers: Sequence[tuple[Host, Any]], what: str, flags: Flags) -> int:
    lost, code = tell_lost(answers)
    good = [(h, a) for h, a in answers if not isinstance(a, EyasError)]
    if flags.as_json:
        listed = [{"host": h.name, **a} for h, a in good]
        sys.stdout.write(
            json.dumps({"schema": 1, "task": f"review --{what}", "hosts": listed, "failed": lost}) + "\n"
        )
        return code
    out = Console(highlight=False, soft_wrap=True)
    for h, a in good:
        state = f"{what}ed" if what == "install" else "removed"
        out.print(
            f"{h.name}: review of {a['deployment']} {state if a['changed'] else 'already so'}", markup=False
        )
        if what == "install" and not a["textfiles"]:
            out.print(f"{h.name}: no node_exporter folder: its numbers are in the journal and here alone")
    return code


# ---- the fleet's history

_READ = """
import glob, json, os, sys
for folder in sorted(glob.glob(sys.argv[1] + "/review/*")):
    told = {"deployment": os.path.basename(folder), "latest": None, "history": []}
    try:
        with open(folder + "/latest.json", encoding="utf-8") as f:
            told["latest"] = json.load(f)
        with open(folder + "/history.jsonl", encoding="utf-8") as f:
            told["history"] = [json.loads(x) for x in f if x.endswith("}\\n")][-int(sys.argv[2]):]
    except (OSError, ValueError):
        pass
    print(json.dumps(told))
"""


def show_history(hosts: Sequence[Host], flags: Flags, *, last: int) -> int:
    """Exit 0; 3 when a host could not be asked; 4 when a host is slower than when its release was proven."""
    answers = gather(hosts, lambda s: _history(s, last), flags)
    lost, code = tell_lost(answers)
    good = [(h, a) for h, a in answers if not isinstance(a, EyasError)]
    failed = any(r["answer"] == "fail" for _, a in good for r in a)
    if flags.as_json:
        listed = [{"host": h.name, "reviews": a} for h, a in good]
        sys.stdout.write(
            json.dumps({"schema": 1, "task": "review", "hosts": listed, "unreachable": lost}) + "\n"
        )
    else:
        _print(good)
    return max(code, CheckRefused.exit_code if failed else 0)


def _history(shell: Shell, last: int) -> list[dict[str, Any]]:
    got = shell.run(("python3", "-I", "-c", _READ, layout.STATE, str(last)), timeout=60)
    return [_judged(json.loads(line)) for line in got.stdout.splitlines() if line.startswith("{")]


def _judged(told: dict[str, Any]) -> dict[str, Any]:
    """With the answer for the newest; a busy host's speed is no measure of it."""
    latest = told.pop("latest") or {}
    answer, text = "can't tell", latest.get("error") or "no review was made yet"
    if latest.get("now"):
        found = against(latest["now"], latest.get("baseline"))
        answer, text = found.answer, found.text
        if latest.get("busy"):
            answer, text = "can't tell", f"others' requests ran meanwhile; {text}"
    return {**told, "answer": answer, "text": text, "differences": latest.get("differences") or {}}


def _print(good: Sequence[tuple[Host, Any]]) -> None:
    out = Console(highlight=False, soft_wrap=True)
    if not any(a for _, a in good):
        out.print("no review was made; next: invoke review --install --host PATTERN", markup=False)
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for n, column in enumerate(("HOST", "DEPLOYMENT", "RELEASE", "WHEN", "TOKENS/S", "ACCEPTED", "TTFT MS")):
        table.add_column(column, justify="left" if n < 4 else "right")
    for h, reviews in good:
        for r in reviews:
            for e in r["history"]:
                table.add_row(h.name, r["deployment"], *_row(e))
    out.print(table)
    for h, reviews in good:
        for r in reviews:
            out.print(f"{h.name} {r['deployment']}: {r['answer']}: {r['text']}", markup=False)


def _row(e: dict[str, Any]) -> tuple[str, ...]:
    now = e.get("now") or {}
    rate = now.get("acceptance_rate")
    at = e.get("time")
    when = time.strftime("%Y-%m-%d %H:%M", time.localtime(at)) if isinstance(at, int | float) else "-"
    busy = " busy" if e.get("busy") else ""
    shown = (now.get("tokens_per_s"), f"{rate:.0%}" if rate is not None else "-", now.get("ttft_ms"))
    return (str(e.get("release", "-")), when + busy, *("-" if s is None else str(s) for s in shown))
