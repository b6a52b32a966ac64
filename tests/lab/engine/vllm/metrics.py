"""``/metrics`` under the real names, in the text form that Prometheus reads."""

import bisect
import json
import threading
import time

__all__ = ["Histogram", "Metrics"]

_TTFT = (
    0.001,
    0.005,
    0.01,
    0.02,
    0.04,
    0.06,
    0.08,
    0.1,
    0.25,
    0.5,
    0.75,
    1.0,
    2.5,
    5.0,
    7.5,
    10.0,
    20.0,
    40.0,
)
_ITL = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0)
_E2E = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_TOKENS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)


#: Series whose name the catalogue knows by role: it changed over the versions, or came with one.
_ROLES = {
    "spec_decode_num_drafts": "spec_drafts",
    "spec_decode_num_draft_tokens": "spec_draft_tokens",
    "spec_decode_num_accepted_tokens": "spec_accepted_tokens",
    "spec_decode_num_accepted_tokens_per_pos": "spec_accepted_per_position",
    "kv_cache_usage_perc": "kv_usage",
    "num_requests_running": "requests_running",
    "num_requests_waiting": "requests_waiting",
    "generation_tokens": "generation_tokens",
    "num_preemptions": "preemptions",
    "time_to_first_token_seconds": "ttft",
    "inter_token_latency_seconds": "itl",
}


class Histogram:
    def __init__(self, buckets: tuple[float, ...]) -> None:
        self.buckets = buckets
        self.counts = [0] * (len(buckets) + 1)
        self.sum = 0.0

    def observe(self, value: float, times: int = 1) -> None:
        self.counts[bisect.bisect_left(self.buckets, value)] += times
        self.sum += value * times


class Metrics:
    """All series of one server; the speculative ones exist only when speculation is on (``drafts`` > 0).

    ``names`` are this version's names by role, as the build took them from the catalogue.
    """

    def __init__(self, model: str, drafts: int, names: dict[str, str]) -> None:
        self.names = names
        self.lock = threading.Lock()
        self.created = time.time()
        quoted = json.dumps(model, ensure_ascii=False)
        self.labels = f'engine="0",model_name={quoted}'
        self.counters = {"prompt_tokens": 0, "generation_tokens": 0, "num_preemptions": 0}
        self.counters |= {"prefix_cache_queries": 0, "prefix_cache_hits": 0}
        self.gauges = {"num_requests_running": 0.0, "num_requests_waiting": 0.0, "kv_cache_usage_perc": 0.0}
        self.finished = {"stop": 0, "length": 0, "abort": 0, "error": 0}
        self.positions = [0] * drafts
        self.drafts = self.drafted = 0
        self.histograms = {
            "time_to_first_token_seconds": Histogram(_TTFT),
            "inter_token_latency_seconds": Histogram(_ITL),
            "e2e_request_latency_seconds": Histogram(_E2E),
            "request_prompt_tokens": Histogram(_TOKENS),
            "request_generation_tokens": Histogram(_TOKENS),
        }

    def drafted_step(self, accepted: list[int]) -> None:
        """One verification for each entry, which says how many drafted tokens were right."""
        for right in accepted:
            self.drafts += 1
            self.drafted += len(self.positions)
            for at in range(right):
                self.positions[at] += 1

    def render(self) -> str:
        with self.lock:
            lines: list[str] = []
            for name, value in self.gauges.items():
                if named := self._named(name):
                    self._series(lines, named, "gauge", [("", value)])
            for counter, value in self.counters.items():
                self._counter(lines, counter, [("", value)])
            reasons = [(f',finished_reason="{reason}"', n) for reason, n in self.finished.items()]
            self._counter(lines, "request_success", reasons)
            if self.positions:
                self._speculation(lines)
            for name, histogram in self.histograms.items():
                if named := self._named(name):
                    self._histogram(lines, named, histogram)
            return "\n".join(lines) + "\n"

    def _speculation(self, lines: list[str]) -> None:
        self._counter(lines, "spec_decode_num_drafts", [("", self.drafts)])
        self._counter(lines, "spec_decode_num_draft_tokens", [("", self.drafted)])
        self._counter(lines, "spec_decode_num_accepted_tokens", [("", sum(self.positions))])
        by_position = [(f',position="{at}"', n) for at, n in enumerate(self.positions)]
        self._counter(lines, "spec_decode_num_accepted_tokens_per_pos", by_position)

    def _named(self, name: str) -> str | None:
        """The series' name in this version; None when it has none."""
        if name not in _ROLES:
            return f"vllm:{name}"
        known = self.names.get(_ROLES[name])
        return known and known.removesuffix("_total")

    def _series(self, lines: list[str], name: str, kind: str, rows: list[tuple[str, float]]) -> None:
        lines.append(f"# HELP {name} Stand-in for the series of this name.")
        lines.append(f"# TYPE {name} {kind}")
        lines.extend(f"{name}{{{self.labels}{more}}} {float(value)}" for more, value in rows)

    def _counter(self, lines: list[str], name: str, rows: list[tuple[str, int]]) -> None:
        if named := self._named(name):
            self._series(lines, named + "_total", "counter", [(more, float(n)) for more, n in rows])
            self._series(lines, named + "_created", "gauge", [(more, self.created) for more, _ in rows])

    def _histogram(self, lines: list[str], name: str, histogram: Histogram) -> None:
        lines.append(f"# HELP {name} Stand-in for the series of this name.")
        lines.append(f"# TYPE {name} histogram")
        total = 0
        for bucket, n in zip((*histogram.buckets, "+Inf"), histogram.counts, strict=False):
            total += n
            lines.append(f'{name}_bucket{{{self.labels},le="{bucket}"}} {total}.0')
        lines.append(f"{name}_count{{{self.labels}}} {total}.0")
        lines.append(f"{name}_sum{{{self.labels}}} {histogram.sum}")
