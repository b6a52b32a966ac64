"""Acceptance, load and speed from a Prometheus page or a JSON object of measured numbers."""

import json
import re
from dataclasses import dataclass, field
from typing import Any

__all__ = ["Metrics", "Pair", "parse_metrics"]

_RATE = re.compile(r"accept\w*[ _.-]?rate|rate[ _.-]?accept|acceptance(?:_ratio)?$|accept\w*_(?:by|per|at)_")
_LENGTH = re.compile(r"accept\w*[ _.-]?len|mean_acceptance|tokens_per_step|tau$")
_WITH = re.compile(r"eagle|spec|draft|mtp|ngram|(?:^|_)with(?:_|$)|(?:^|_)on(?:_|$)|enabled")
_WITHOUT = re.compile(
    r"base|without|no_?spec|nospec|(?:^|_)off(?:_|$)|vanilla|disabled|none|target_only|plain"
)
_SLOWER_IS_MORE = re.compile(r"latency|tpot|itl|ttft|_ms|seconds|time")
_LOAD = re.compile(
    r"concurren|running|batch|qps|rps|clients|users|load|requests|num_req|(?:^|\.)(?:c|bs|b)_?\d+"
)
_CONTEXT = re.compile(
    r"ctx|context|prompt_?len|input_?len|short|long|(?:^|[._])\d+k(?:$|[._])|len_\d|tokens_\d"
)


@dataclass(frozen=True)
class Pair:
    """The same measurement with and without speculation. ``gain`` above 1 means speculation helps."""

    where: str
    with_spec: float
    without: float
    gain: float


@dataclass
class Metrics:
    """Numbers by dotted name; the readings rules use. A reading nobody gave is None."""

    numbers: dict[str, float] = field(default_factory=dict)
    rate: float | None = None
    length: float | None = None
    drafted: float | None = None
    running: float | None = None
    by_context: dict[str, float] = field(default_factory=dict)
    pairs: tuple[Pair, ...] = ()
    page: bool = False
    error: str = ""


def parse_metrics(text: str) -> Metrics:
    """Read either form. What can not be read gives ``error``, never an exception."""
    stripped = text.strip()
    if not stripped:
        return Metrics(error="empty")
    if stripped[0] in "{[":
        try:
            return _from_json(json.loads(stripped))
        except (ValueError, RecursionError) as e:
            return Metrics(error=f"not JSON: {e}")
    try:
        return _from_page(stripped)
    except Exception as e:  # noqa: BLE001 - the parser raises many kinds on hostile text
        return Metrics(error=f"not a Prometheus page: {e}")


def _from_page(text: str) -> Metrics:
    # Its package brings a web server along: more than all of the doctor's own modules cost.
    from prometheus_client.parser import text_string_to_metric_families  # noqa: PLC0415

    totals: dict[str, float] = {}
    for family in text_string_to_metric_families(text + "\n"):
        for sample in family.samples:
            if not sample.name.endswith(("_bucket", "_created")):
                totals[sample.name] = totals.get(sample.name, 0.0) + sample.value
    if not totals:
        return Metrics(error="no metrics on the page")
    drafted = totals.get("vllm:spec_decode_num_draft_tokens_total")
    drafts = totals.get("vllm:spec_decode_num_drafts_total")
    accepted = totals.get("vllm:spec_decode_num_accepted_tokens_total")
    rate = totals.get("sglang:spec_accept_rate", totals.get("vllm:spec_decode_draft_acceptance_rate"))
    length = totals.get("sglang:spec_accept_length")
    if drafted and accepted is not None:
        rate = accepted / drafted
    if drafts and accepted is not None:
        length = 1 + accepted / drafts
    running = totals.get("vllm:num_requests_running", totals.get("sglang:num_running_reqs"))
    return Metrics(totals, rate, length, drafted, running, page=True)


def _from_json(tree: Any) -> Metrics:
    numbers: dict[str, float] = {}
    _flatten(tree, "", numbers)
    rates = {k: (v / 100 if v > 1 else v) for k, v in numbers.items() if _RATE.search(k)}
    lengths = {k: v for k, v in numbers.items() if _LENGTH.search(k) and k not in rates}
    context = {k: v for k, v in {**lengths, **rates}.items() if _CONTEXT.search(k)}
    plain_rates = [v for k, v in rates.items() if k not in context]
    plain_lengths = [v for k, v in lengths.items() if k not in context]
    loads = [v for k, v in numbers.items() if _LOAD.search(k) and not _WITH.search(k)]
    return Metrics(
        numbers,
        rate=min(plain_rates, default=None),
        length=min(plain_lengths, default=None),
        running=max(loads, default=None),
        by_context=context,
        pairs=_pairs(numbers),
    )


def _flatten(node: Any, path: str, out: dict[str, float]) -> None:
    if len(out) > 5000:
        return
    if isinstance(node, dict):
        for key, value in node.items():
            _flatten(value, f"{path}.{key}".strip(".").lower(), out)
    elif isinstance(node, list):
        for index, value in enumerate(node[:500]):
            _flatten(value, f"{path}.{index}", out)
    elif isinstance(node, int | float) and not isinstance(node, bool):
        out[path] = float(node)


def _pairs(numbers: dict[str, float]) -> tuple[Pair, ...]:
    """Sibling numbers of which one says "with" and the other "without"."""
    found = [
        Pair(name.rpartition(".")[0] or name, value, 1.0, value)
        for name, value in numbers.items()
        if re.search(r"speed_?up", name) and 0 < value < 100
    ]
    for name, plain in numbers.items():
        where, _, leaf = name.rpartition(".")
        if not _WITHOUT.search(leaf) and not _WITHOUT.search(where.rpartition(".")[2]):
            continue
        for other, spec in numbers.items():
            if other == name or not _siblings(name, other) or plain <= 0 or spec <= 0:
                continue
            gain = plain / spec if _SLOWER_IS_MORE.search(leaf) else spec / plain
            found.append(Pair(where or name, spec, plain, gain))
    return tuple(found)


def _siblings(plain: str, spec: str) -> bool:
    """One path with a "without" word where the other has a "with" word, else equal."""
    ours, theirs = plain.split("."), spec.split(".")
    if len(ours) != len(theirs):
        return False
    different = [(a, b) for a, b in zip(ours, theirs, strict=True) if a != b]
    if len(different) != 1:
        return False
    a, b = different[0]
    if _RATE.search(b) or _LENGTH.search(b) or _WITHOUT.search(b) or not _WITH.search(b):
        return False
    return _stem(a) == _stem(b)


def _stem(name: str) -> str:
    return _WITH.sub("", _WITHOUT.sub("", name)).strip("_")
