"""Proof of a release, run on the host over loopback: streamed requests, speed by usage, acceptance.

    proof.py [MAX_TOKENS [ROUNDS]]

Prints one JSON object. Speeds are medians over the prompts after one warm-up; counts are exact. More rounds,
while they are quick, make it the baseline that later short benches are compared with, prompt by prompt.
"""

import hashlib
import json
import statistics
import sys
import time

from endpoint import Down, Release, counters, stream

PROMPTS = (
    "def fibonacci(n):",
    "Count on: one two three four five six seven eight nine ten",
    "SELECT name, count(*) FROM hosts",
    "The service loads the weights and then",
    "gpu01 serves the target model while the doctor runs.",
)
#: A round more is made only while the rounds so far took less than this.
BUDGET_S = 4.0
SPEC = ("drafts", "draft_tokens", "accepted_tokens")


def sample(release, number, max_tokens):
    """One prompt: what came, and what the counters say of it alone."""
    before = counters(release)
    run = stream(release, PROMPTS[number], max_tokens)
    after = counters(release)
    tokens, decode_s = run["usage"]["completion_tokens"], run["total_s"] - run["ttft_s"]

    def delta(name):
        role = "spec_" + name
        return None if after.get(role) is None else after[role] - (before.get(role) or 0.0)

    told = {
        "prompt": number,
        "ttft_ms": round(1000 * run["ttft_s"], 3),
        "tokens": tokens,
        "tokens_per_s": round((tokens - 1) / decode_s, 3) if tokens > 1 and decode_s > 0 else None,
    }
    told.update((name, delta(name)) for name in SPEC)
    if told["drafts"]:
        told["step_tokens"] = round(1 + told["accepted_tokens"] / told["drafts"], 4)
    return told, run["text"]


def measure(release, max_tokens, rounds=1):
    stream(release, PROMPTS[0], 8)
    began = time.monotonic()
    samples, texts = [], []
    for _ in range(rounds):
        for number in range(len(PROMPTS)):
            told, text = sample(release, number, max_tokens)
            samples.append(told)
            texts.append(text)
        if time.monotonic() - began > BUDGET_S:
            break
    after = counters(release)
    return summary(samples, texts[: len(PROMPTS)], max_tokens, after)


def summary(samples, texts, max_tokens, now):
    speeds = [s["tokens_per_s"] for s in samples if s["tokens_per_s"]]
    drafts, drafted, accepted = (
        None if any(s[n] is None for s in samples) else sum(s[n] for s in samples) for n in SPEC
    )
    length = round(1 + accepted / drafts, 4) if drafts else now.get("spec_accept_length")
    return {
        "requests": len(samples),
        "output_tokens": sum(s["tokens"] for s in samples),
        "ttft_ms": round(statistics.median(s["ttft_ms"] for s in samples), 2),
        "tokens_per_s": round(statistics.median(speeds), 2) if speeds else None,
        "drafts": drafts,
        "draft_tokens": drafted,
        "accepted_tokens": accepted,
        "acceptance_rate": round(accepted / drafted, 4) if drafted else now.get("spec_accept_rate"),
        "acceptance_length": length,
        "outputs": [hashlib.sha256(t.encode()).hexdigest() for t in texts],
        "max_tokens": max_tokens,
        "samples": samples,
    }


def main():
    words = [int(w) for w in sys.argv[1:]]
    try:
        result = measure(Release(), words[0] if words else 64, words[1] if len(words) > 1 else 3)
    except Down as e:
        print(json.dumps({"error": str(e)}))
        return 1
    print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
