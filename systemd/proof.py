"""Proof of a release, run on the host over loopback: streamed requests, speed by usage, acceptance.

Prints one JSON object. Speeds are medians over the prompts after one warm-up; counts are exact.
"""

import hashlib
import json
import statistics
import sys

from endpoint import Down, Release, counters, stream

PROMPTS = (
    "def fibonacci(n):",
    "Count on: one two three four five six seven eight nine ten",
    "SELECT name, count(*) FROM hosts",
    "The service loads the weights and then",
    "gpu01 serves the target model while the doctor runs.",
)


def measure(release, max_tokens):
    stream(release, PROMPTS[0], 8)
    before = counters(release)
    runs = [stream(release, p, max_tokens) for p in PROMPTS]
    after = counters(release)
    tokens = [r["usage"]["completion_tokens"] for r in runs]
    decode = [
        (t - 1) / (r["total_s"] - r["ttft_s"])
        for t, r in zip(tokens, runs)
        if t > 1 and r["total_s"] > r["ttft_s"]
    ]

    def delta(role):
        if after.get(role) is None:
            return None
        return after[role] - (before.get(role) or 0.0)

    drafts, drafted, accepted = (delta("spec_" + r) for r in ("drafts", "draft_tokens", "accepted_tokens"))
    length = round(1 + accepted / drafts, 4) if drafts else after.get("spec_accept_length")
    return {
        "requests": len(runs),
        "output_tokens": sum(tokens),
        "ttft_ms": round(1000 * statistics.median(r["ttft_s"] for r in runs), 2),
        "tokens_per_s": round(statistics.median(decode), 2) if decode else None,
        "drafts": drafts,
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "acceptance_rate": round(accepted / drafted, 4) if drafted else after.get("spec_accept_rate"),
        "acceptance_length": length,
        "outputs": [hashlib.sha256(r["text"].encode()).hexdigest() for r in runs],
        "max_tokens": max_tokens,
    }


def main():
    try:
        result = measure(Release(), int(sys.argv[1]) if len(sys.argv) > 1 else 64)
    except Down as e:
        print(json.dumps({"error": str(e)}))
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
