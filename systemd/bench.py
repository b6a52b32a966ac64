"""Load for a bench, run on the host over loopback: one JSON request a line on stdin, one JSON answer a line.

    bench.py RELEASE_FOLDER WORK_FILE

Why not the engine's own generator: it imports the engine each run (`vllm --version`: 18 s on 2 CPU cores),
its options differ by version, and it times gaps between chunks, of which one holds several tokens with
speculation. Counts come from the server's `usage`, acceptance from its counters before and after.

Requests: {"op": "hello"}, {"op": "count", "texts": []}, {"op": "round", ...} (see `Bench.round`). Statistics
and decisions are the operator's; the end of stdin ends this program, so nothing outlives who asked.
"""

import asyncio
import functools
import json
import os
import re
import resource
import statistics
import sys
import threading

import endpoint
from bench_load import Failed, Load, asking, path_of

FOLDER = os.path.dirname(os.path.abspath(__file__))
SAMPLE_S = 1.0
_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)")
_POSITION = re.compile(r'(?:^|,)position="(\d+)"')


class Bench:
    def __init__(self, folder):
        self.release = endpoint.Release(folder)
        self.cards = Cards(self.release.data.get("settings", {}).get("device") == "cpu")

    def answer(self, asked):
        ops = {"hello": self.hello, "count": self.count, "round": self.round, "tell": self.tell}
        return ops[asked["op"]](asked)

    def get(self, path, body=None, timeout=60.0):
        with endpoint.fetch(self.release, path, body, timeout) as r:
            return r.read()

    def hello(self, _asked):
        listed = json.loads(self.get("/v1/models"))["data"]
        mine = next((m for m in listed if m["id"] == self.release.model), listed[0])
        counters = endpoint.counters(self.release)
        return {
            "chat": self.chat,
            "model": self.release.model,
            "max_model_len": mine.get("max_model_len"),
            "running": counters.get("requests_running"),
            "waiting": counters.get("requests_waiting"),
            "deployment": self.release.data["deployment"],
            "release": self.release.folder.name,
            "gpu": self.cards.look(),
        }

    @functools.cached_property
    def chat(self):
        """Whether it takes messages: heads are trained on the chat form, and guess worse without."""
        body = dict(asking(self.release.model, "1 2 3", chat=True), max_tokens=1)
        try:
            return bool(json.loads(self.get("/v1/chat/completions", body, 120.0))["choices"])
        except (endpoint.Down, ValueError, KeyError):
            return False

    def tell(self, _asked):
        """Counters now, by role: what a test or a person compares ours with."""
        return {"counters": endpoint.counters(self.release), "positions": self.positions()}

    def count(self, asked):
        """Tokens of each text by the server's tokenizer, or by the usage of a one-token completion."""
        return {"counts": [self.tokens(t) for t in asked["texts"]]}

    def tokens(self, text):
        try:
            told = self.get("/tokenize", asking(self.release.model, text, chat=self.chat))
            return int(json.loads(told)["count"])
        except (endpoint.Down, ValueError, KeyError, TypeError):
            body = dict(asking(self.release.model, text, chat=self.chat), max_tokens=1, temperature=0)
            return json.loads(self.get(path_of(self.chat), body, 120.0))["usage"]["prompt_tokens"]

    def positions(self):
        """Accepted tokens by draft position, summed over engines; empty where the version has none."""
        name = self.release.metrics.get("spec_accepted_per_position")
        found = {}
        for line in self.get("/metrics").decode("utf-8", "replace").splitlines() if name else ():
            match = _SAMPLE.match(line)
            if match and match.group(1) == name:
                at = _POSITION.search(match.group(2) or "")
                if at:
                    found[int(at.group(1))] = found.get(int(at.group(1)), 0.0) + float(match.group(3))
        return [found[n] for n in sorted(found)]

    def round(self, asked):
        """``prompts`` answered with ``concurrency`` requests always in flight.

        What falls free after the last prompt was taken is filled with prompts again, so that every counted
        request ran among as many; these fillers are broken off at the end and not counted.
        """
        before, at = endpoint.counters(self.release), self.positions()
        watch = Watch(self)
        watch.start()
        load = Load(self.release, asked, self.chat)
        try:
            requests, wall = asyncio.run(load.run())
        finally:
            watch.stop()
        after, then = endpoint.counters(self.release), self.positions()
        return {
            "wall_s": wall,
            "requests": requests if asked.get("texts") else [{**r, "text": ""} for r in requests],
            "counters": {k: _less(after.get(k), before.get(k)) for k in after},
            "now": {k: after.get(k) for k in ("spec_accept_length", "spec_accept_rate")},
            "positions": [b - a for a, b in zip(at or [0.0] * len(then), then)],
            "kv_usage_peak": watch.kv,
            "running_peak": watch.running,
            "gpu": watch.gpu(),
        }


def _less(after, before):
    return None if after is None else after - (before or 0.0)


class Watch(threading.Thread):
    """Gauges and cards while a round runs."""

    def __init__(self, bench):
        super().__init__(daemon=True)
        self.bench, self.ended = bench, threading.Event()
        self.kv = self.running = None
        self.seen = []

    def run(self):
        wait = SAMPLE_S / 4  # a short round is seen too
        while not self.ended.wait(wait):
            self.sample()
            wait = SAMPLE_S

    def sample(self):
        try:
            now = endpoint.counters(self.bench.release)
        except endpoint.Down:
            return
        self.kv = _most(self.kv, now.get("kv_usage"))
        self.running = _most(self.running, now.get("requests_running"))
        self.seen.append(self.bench.cards.look())

    def stop(self):
        self.ended.set()
        self.join(15)

    def gpu(self):
        """Peak memory and median power by card, or why there is none."""
        seen = self.seen or [self.bench.cards.look()]
        good = [s["cards"] for s in seen if "cards" in s]
        if not good:
            return seen[-1]
        cards = [[s[n] for s in good] for n in range(min(map(len, good)))]
        power = [[c["power_w"] for c in one if c["power_w"] is not None] for one in cards]
        return {
            "memory_mib": [max(c["memory_mib"] for c in one) for one in cards],
            "power_w": [statistics.median(p) for p in power] if all(power) else None,
        }


def _most(a, b):
    return a if b is None else b if a is None else max(a, b)


class Cards:
    """NVML through the pynvml file that lies beside this program."""

    def __init__(self, cpu):
        self.why, self.nvml = "the engine runs on the CPU" if cpu else "", None
        if not cpu:
            self.load()

    def load(self):
        try:
            sys.path.insert(0, FOLDER)
            import pynvml

            pynvml.nvmlInit()
            self.nvml = pynvml
            self.handles = [pynvml.nvmlDeviceGetHandleByIndex(n) for n in range(pynvml.nvmlDeviceGetCount())]
        except Exception as e:  # noqa: BLE001 - pynvml raises more than NVMLError
            self.nvml, self.why = None, "NVML does not answer: %s" % e

    def look(self):
        if self.nvml is None:
            return {"missing": self.why}
        try:
            return {"cards": [self.card(h) for h in self.handles]}
        except Exception as e:  # noqa: BLE001 - as above
            return {"missing": "NVML does not answer: %s" % e}

    def card(self, handle):
        try:
            power = self.nvml.nvmlDeviceGetPowerUsage(handle) / 1000
        except Exception:  # noqa: BLE001 - many cards have no power sensor to read
            power = None
        used = self.nvml.nvmlDeviceGetMemoryInfo(handle).used
        return {"memory_mib": used >> 20, "power_w": power}


def more_files():
    """A connection for each request in flight; a host that allows no more says so when they run out."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if most == resource.RLIM_INFINITY else most
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
    except (OSError, ValueError):
        pass


def main(folder, work):
    sys.dont_write_bytecode = True
    more_files()
    # Whoever takes the host's lock next ends us by this open file.
    held = os.open(work, os.O_RDWR | os.O_CREAT, 0o644)
    bench = Bench(folder)
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            answer = bench.answer(asked)
        except (Failed, endpoint.Down) as e:
            answer = {"error": str(e)}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
    os.close(held)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
