"""What the programs beside this file share: one completion, the counters, the release they belong to.

Runs on the GPU box with the system's Python (3.10 or newer) and nothing but the standard library.
"""

import json
import os
import pathlib
import re
import time
import urllib.error
import urllib.request


class Down(Exception):
    """The endpoint did not answer, or not with what was asked for."""


class Release:
    """The release folder this file lies in."""

    def __init__(self, folder=None):
        self.folder = pathlib.Path(folder) if folder else pathlib.Path(__file__).resolve().parent
        with open(self.folder / "release.json", encoding="utf-8") as f:
            self.data = json.load(f)
        self.base = self.data["endpoint"]["url"]
        self.model = self.data["endpoint"]["model"]
        self.metrics = self.data["metrics"]
        self.timeouts = self.data["timeouts"]

    @property
    def follows(self):
        """One of several hosts, and not the one with the endpoint."""
        return (self.data.get("group") or {}).get("rank", 0) != 0

    def headers(self):
        key = api_key(self.data.get("api_key_digest"))
        return {"Authorization": "Bearer " + key} if key else {}


def api_key(digest):
    """The endpoint's key, empty when it has none: as systemd hands it over, or for root where it is kept."""
    given, kept = os.environ.get("CREDENTIALS_DIRECTORY"), os.environ.get("EYAS_CREDENTIALS")
    if not digest or not (given or kept):
        return ""
    path = os.path.join(given, "api-key") if given else os.path.join(kept, "api-key-" + digest[:16])
    try:
        with open(path, encoding="utf-8") as f:
            return f.read().strip()
    except FileNotFoundError:
        return ""


def fetch(release, path, body=None, timeout=10.0):
    """The open answer to a GET, or to a POST when there is a body. Raise Down unless it is a good one."""
    data = None if body is None else json.dumps(body).encode()
    headers = dict(release.headers(), **({"Content-Type": "application/json"} if data else {}))
    request = urllib.request.Request(release.base + path, data=data, headers=headers)
    try:
        return urllib.request.urlopen(request, timeout=timeout)
    except urllib.error.HTTPError as e:
        text = e.read(400).decode("utf-8", "replace")
        raise Down("%s answered %d %s" % (path, e.code, text)) from e
    except (OSError, ValueError) as e:
        raise Down("%s: %s" % (path, getattr(e, "reason", e))) from e


def health(release, timeout=5.0):
    """Raise Down unless /health says 200. It stays 200 with a stopped engine core: no proof alone."""
    if release.follows:
        group_state(release)
        return
    with fetch(release, "/health", timeout=timeout):
        pass


def group_state(release, fresh_s=30):
    """Raise Down unless this rank's supervisor says, and said just now, that its group serves."""
    path = "/run/eyas-%s/group.json" % release.data["deployment"]
    try:
        with open(path, encoding="utf-8") as f:
            told = json.load(f)
        age, state = time.time() - told["time"], told["state"]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise Down("%s: %s" % (path, e)) from e
    if state != "serving" or age > fresh_s:
        raise Down("rank %s is %s since %d s: %s" % (told.get("rank"), state, age, told.get("why")))


def completion(release, prompt="1 2 3", max_tokens=1, timeout=10.0):
    """One greedy completion; returns (text, usage). Raise Down when no token came."""
    body = {"model": release.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    try:
        with fetch(release, "/v1/completions", body, timeout) as r:
            answer = json.load(r)
        text, usage = answer["choices"][0]["text"], answer["usage"]
    except (OSError, ValueError, KeyError, IndexError, TypeError) as e:
        raise Down("completion: %s: %s" % (type(e).__name__, e)) from e
    if not usage.get("completion_tokens"):
        raise Down("completion: no token came")
    return text, usage


def stream(release, prompt, max_tokens, timeout=120.0):
    """One streamed greedy completion. Returns text, usage, ttft_s, total_s.

    Tokens are counted by the server's `usage`: with speculation one chunk carries several tokens.
    """
    body = {"model": release.model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0}
    body.update(stream=True, stream_options={"include_usage": True})
    start, first, pieces, usage = time.monotonic(), None, [], None
    try:
        with fetch(release, "/v1/completions", body, timeout) as r:
            for raw in r:
                line = raw.decode("utf-8", "replace").strip()
                if not line.startswith("data:") or line == "data: [DONE]":
                    continue
                event = json.loads(line[5:])
                if event.get("choices"):
                    # A first token may decode to no text yet (half a character): the event is what counts.
                    first = time.monotonic() - start if first is None else first
                    pieces.append(event["choices"][0].get("text") or "")
                usage = event.get("usage") or usage
    except (OSError, ValueError, KeyError) as e:
        raise Down("stream: %s: %s" % (type(e).__name__, e)) from e
    if not usage or first is None:
        raise Down("stream: it ended without a token or usage")
    return {"text": "".join(pieces), "usage": usage, "ttft_s": first, "total_s": time.monotonic() - start}


_SAMPLE = re.compile(r"^([A-Za-z_:][A-Za-z0-9_:]*)(?:\{(.*)\})? (\S+)")


def counters(release, timeout=5.0):
    """Sums over all labels of the series named in the release, by role; a series that is absent is None."""
    if release.follows:
        return dict.fromkeys(release.metrics)
    with fetch(release, "/metrics", timeout=timeout) as r:
        text = r.read().decode("utf-8", "replace")
    found = dict.fromkeys(release.metrics)
    names = {}
    for role, name in release.metrics.items():
        names.setdefault(name, role)
        names.setdefault(name + "_total", role)
    for line in text.splitlines():
        match = _SAMPLE.match(line)
        if match and match.group(1) in names:
            role = names[match.group(1)]
            found[role] = (found[role] or 0.0) + float(match.group(3))
    return found
