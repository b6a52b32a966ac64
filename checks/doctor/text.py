"""Log lines without what the transport added: journald, docker, Ray, ranks, logger heads, colours.

Every pattern is anchored and has no nested repetition, so a hostile line costs linear time.
"""

import re
from typing import NamedTuple

__all__ = ["ANSI", "Clean", "clean", "continues"]

ANSI = re.compile(r"\x1b(?:\[[0-9;?]{0,24}[A-Za-z]|\][^\x07\x1b]{0,200}(?:\x07|\x1b\\)|[()][A-Z0-9])")

_PREFIX = re.compile(
    r"\s*(?:"
    # journald short: Nov 30 12:00:00 host unit[123]:
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d(?:\.\d{1,9})? [^\s:]{1,64} "
    r"(?:(?!systemd\[)[^\s:\[\]]{1,64}(?:\[\d{1,8}\])?: |(?=systemd\[))"
    # SGLang: [2026-01-01 10:00:00 DP0 TP1]
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?: (?:DP|TP|PP|EP|ATTN_TP|MOE_DP)\d{1,4}){1,5}\]"
    # ISO time stamps: journald -o short-iso, docker -t, containerd, python logging
    r"|\[?\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d{1,9})?(?:Z|[+-]\d\d:?\d\d)?\]?"
    r"(?: [\w.-]{1,64} (?:(?!systemd\[)[\w@.:-]{1,64}\[\d{1,8}\]:|(?=systemd\[)))?"
    r"(?: std(?:out|err) [FP])?(?= |$)"
    # docker compose / kubectl --prefix
    r"|[\w.-]{1,64}\s{1,40}\| "
    r"|\[pod/[^\]\s]{1,200}\] "
    # (EngineCore_DP0 pid=12), (VllmWorker rank=3 pid=1090), (RayWorkerWrapper pid=1, ip=10.0.0.2)
    r"|(?P<proc>\([A-Za-z_][\w :.-]{0,60}?(?: |, )?(?:rank=\d{1,5} ?)?pid=\d{1,8}"
    r"(?:, ip=[\d.a-fA-F:]{1,45})?\))"
    r"|(?P<rank>\[rank\d{1,5}\]):"
    r"|\[[EWIF]\d{3,4} \d\d:\d\d:\d\d\.\d{1,9} [\w./-]{1,80}:\d{1,6}\]"
    # INFO 11-05 12:19:32 [core.py:708]   (older: core.py:708])
    r"|(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d(?:\.\d{1,6})?"
    r" \[?[\w./-]{1,120}:\d{1,6}\]"
    # kernel: [ 1843.308145], [Wed Jul 31 23:14:18 2024]
    r"|\[ {0,8}\d{1,9}\.\d{3,9}\]"
    r"|\[[A-Z][a-z]{2} [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\]"
    r"|kernel: "
    r"|- (?=[\w.]{1,80} - (?:DEBUG|INFO|WARNING|ERROR|CRITICAL) - )[\w.]{1,80} - "
    r"|(?P<word>DEBUG|INFO|WARNING|ERROR|CRITICAL)(?: - |:\s{1,12}(?=\S))"
    # loguru: | ERROR    | vllm.engine:run:77 -
    r"|\| (?P<loguru>DEBUG|INFO|WARNING|ERROR|CRITICAL)\s{0,6}\| [\w.<>]{1,80}:[\w<>]{1,60}:\d{1,6} - "
    # stern and kubectl logs of several pods: vllm-7d9f8b6c5d-x2x4z engine
    r"|[a-z][a-z0-9-]{1,60}-[a-z0-9]{8,10}-[a-z0-9]{5} [a-z0-9-]{1,40} "
    r"|[│|](?= )"
    # a quote in a ticket or a mail
    r"|>{1,2} "
    # docker's json-file, logfmt
    r"|\{\"log\": ?\"|(?:(?:level|ts|time|caller|logger)=\S{1,80} ){1,4}msg=\"?"
    r")"
)
_NOISE = re.compile(r"\s*[│|]?\s*$")
_JSON_TAIL = re.compile(r'(?:\\n)?", ?"(?:stream|time|attrs)": ?"[^{}]{0,200}\}?\s*$')
_FRESH = re.compile(
    r"Traceback|File \"|[\w.]{1,80}(?:Error|Exception|Warning|Exit)\b|\S{1,40}\[\d+\]:|\$ |>>> "
)
MAX_PREFIXES = 8


class Clean(NamedTuple):
    """One line: its message, the process or rank that wrote it, its level, whether it had any prefix."""

    text: str
    proc: str
    level: str
    prefixed: bool


def clean(line: str) -> Clean:
    """The message of one log line. ``proc`` and ``level`` are "" when the line names none."""
    proc = level = ""
    at = 0
    for _ in range(MAX_PREFIXES):
        found = _PREFIX.match(line, at)
        if found is None or found.end() == at:
            break
        at = found.end()
        proc = found["proc"] or found["rank"] or proc
        level = found["level"] or found["word"] or found["loguru"] or level
    if line.startswith(('{"log":"', '{"log": "')):
        line = _JSON_TAIL.sub("", line).replace('\\"', '"').replace("\\t", " ")
    text = _NOISE.sub("", line[at:]) if line[-1:] in "│| \t\r" else line[at:]
    if "msg=" in line[:at]:
        text = text.rstrip('"')
    return Clean(text.strip(), proc.strip("()[]"), level, at > 0)


def continues(first: Clean, line: Clean) -> bool:
    """True when ``line`` can be the rest of a message that was wrapped or written on two lines."""
    if not line.text or _FRESH.match(line.text):
        return False
    if not line.prefixed:
        return True
    same = line.proc in {"", first.proc} and line.level in {"", first.level}
    return same and first.text[-1:] not in ".!:)]}"
