"""Ask or tell the router beside this file. One JSON line on stdout.

  status                    backends, their state and requests in flight
  wait SECONDS              until the running router is what router.json says
  drain NAME SECONDS OTHERS no new requests for this backend; wait until those in flight have ended; while it
                            is the only one that is up, wait OTHERS seconds for another
  restore NAME SECONDS      back in, once it has answered a completion
  sync                      make the running sglang-router equal to router.json (its reload)

Exit codes: 0 done, 1 requests are still running, 2 the router does not answer, 3 no such backend,
4 nobody else would be left to answer, 5 the backend does not answer. What is drained is kept in the
router's own files, so that a restart or a reboot does not forget it.
"""

import contextlib
import csv
import fcntl
import json
import os
import pathlib
import re
import socket
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = pathlib.Path(__file__).resolve().parent
SOCKET = "/run/eyas_router/admin.sock"
KEYS = "/etc/eyas/credentials/router"
LOCK = "/var/lib/eyas/lock/router"
POLL_S = 0.2


class Silent(Exception):
    """The router, or a backend, does not answer."""


class Said(Exception):
    """The end of a command: exit code and what to tell."""

    def __init__(self, code, **words):
        super().__init__(words.get("why", ""))
        self.code, self.words = code, words


# ---- what is wanted


def read():
    with open(HERE / "router.json", encoding="utf-8") as f:
        return json.load(f)


def api_key(told):
    """As systemd hands it over, or for root where it is kept."""
    given = os.environ.get("CREDENTIALS_DIRECTORY")
    path = os.path.join(
        given or KEYS, "api-key.map" if given else "api-key-%s.map" % told["api_key_digest"][:16]
    )
    with open(path, encoding="utf-8") as f:
        return f.read().split()[1]


def replace(name, text):
    """Whole or not at all, readable by the service."""
    fd, temp = tempfile.mkstemp(dir=HERE)
    with os.fdopen(fd, "w", encoding="utf-8") as f:
        f.write(text)
        f.flush()
        os.fchmod(f.fileno(), 0o644)
        os.fsync(f.fileno())
    os.replace(temp, HERE / name)


@contextlib.contextmanager
def alone():
    """Two operators, or two hosts of one batch, change the drained ones one after the other."""
    with open(LOCK, "ab") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        yield


def note(name, out):
    """Keep it: in router.json, and as the weight in HAProxy's configuration."""
    told = read()
    drained = (set(told["drained"]) - {name}) | ({name} if out else set())
    told["drained"] = sorted(drained)
    if told["kind"] == "haproxy":
        with open(HERE / "haproxy.cfg", encoding="utf-8") as f:
            text = f.read()
        line = re.compile(r"^(    server %s \S+ weight )\d+$" % re.escape(name), re.MULTILINE)
        replace("haproxy.cfg", line.sub(r"\g<1>%d" % (0 if out else 1), text))
    replace("router.json", json.dumps(told, indent=1, sort_keys=True))


# ---- HTTP


def http(url, key, method="GET", body=None, timeout=5.0):
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": "Bearer " + key, "Content-Type": "application/json"}
    request = urllib.request.Request(url, data=data, headers=headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=timeout) as r:
            return r.read(8 << 20).decode("utf-8", "replace")
    except urllib.error.HTTPError as e:
        with e:
            raise Silent("%s answered %d %s" % (url, e.code, e.read(200).decode("utf-8", "replace"))) from e
    except (OSError, ValueError) as e:
        raise Silent("%s: %s" % (url, getattr(e, "reason", e))) from e


def completes(told, backend):
    """Raise Silent unless this backend answers one completion."""
    body = {"model": told["model"], "prompt": "1 2 3", "max_tokens": 1, "temperature": 0}
    text = http("http://%s/v1/completions" % backend["endpoint"], api_key(told), "POST", body, timeout=30.0)
    try:
        json.loads(text)["choices"][0]["text"]
    except (ValueError, KeyError, IndexError, TypeError) as e:
        raise Silent("%s answered a completion with %s" % (backend["endpoint"], text[:200])) from e


def running(told, backend):
    """Requests in the engine by its own counters; None when it tells nothing."""
    try:
        page = http("http://%s/metrics" % backend["endpoint"], api_key(told))
    except Silent:
        return None
    names = "|".join(map(re.escape, told["counters"]))
    found = re.findall(r"^(?:%s)(?:\{[^}]*\})? (\S+)$" % names, page, re.MULTILINE) if names else []
    return int(sum(map(float, found))) if found else None


# ---- the two routers: rows() and mark()


class Haproxy:
    def __init__(self, told):
        self.told = told

    def ask(self, command):
        try:
            with socket.socket(socket.AF_UNIX) as s:
                s.settimeout(5)
                s.connect(SOCKET)
                s.sendall(command.encode() + b"\n")
                return b"".join(iter(lambda: s.recv(65536), b"")).decode()
        except OSError as e:
            raise Silent("%s: %s" % (SOCKET, e)) from e

    def rows(self):
        """By name: state, requests in flight and so far, and the last check's words."""
        found = {}
        for r in csv.DictReader(self.ask("show stat").lstrip("# ").splitlines()):
            if r.get("pxname") != "engines" or r.get("svname") in {"BACKEND", "FRONTEND"}:
                continue
            up = r["status"].startswith(("UP", "DRAIN", "no check"))
            why = (
                ""
                if r["check_status"] in {"", "L7OK"}
                else " ".join((r["check_status"], r["last_chk"])).strip()
            )
            found[r["svname"]] = {
                "up": up,
                "drained": r["weight"] == "0",
                "in_flight": int(r["scur"] or 0),
                "requests": int(r["stot"] or 0),
                "why": "" if up else why,
            }
        return found

    def runs_this(self):
        """Whether it has read the configuration that lies here: after a failed reload it has not."""
        with open(HERE / "haproxy.cfg", encoding="utf-8") as f:
            name = re.search(r"^    description (\S+)$", f.read(), re.MULTILINE)
        return bool(name) and name[1] in self.ask("show info").split()

    def mark(self, backend, out):
        said = self.ask("set server engines/%s weight %d" % (backend["name"], 0 if out else 1)).strip()
        if said:
            raise Silent("HAProxy: " + said)


class Sglang:
    def __init__(self, told):
        self.told = told
        address = {"0.0.0.0": "127.0.0.1", "[::]": "[::1]"}.get(told["listen_url"], told["listen_url"])  # noqa: S104 - compared
        self.url = "http://%s:%d/workers" % (address, told["port"])
        self.key = api_key(told)

    def runs_this(self):
        """What only a restart changes is read at the start."""
        return True

    def workers(self):
        try:
            return {w["url"]: w for w in json.loads(http(self.url, self.key))["workers"]}
        except (ValueError, KeyError, TypeError) as e:
            raise Silent("%s: %s" % (self.url, e)) from e

    def answered(self):
        """Requests by worker since the router started, by its own counters; empty when it tells nothing."""
        try:
            page = http("http://127.0.0.1:%d/metrics" % self.told["metrics_port"], self.key)
        except Silent:
            return {}
        found = {}
        line = re.compile(r'^smg_worker_cb_outcomes_total\{[^}]*worker="([^"]+)"[^}]*\} (\S+)$', re.MULTILINE)
        for url, number in line.findall(page):
            found[url] = found.get(url, 0) + int(float(number))
        return found

    def rows(self):
        """A worker that never answered is not listed until it does: that is down, not drained."""
        known, answered, found = self.workers(), self.answered(), {}
        for b in self.told["backends"]:
            w = known.get("http://" + b["endpoint"])
            up = bool(w and w.get("is_healthy"))
            drained = w is None and b["name"] in self.told["drained"]
            found[b["name"]] = {
                "up": up,
                "drained": drained,
                "in_flight": w.get("load") if w else running(self.told, b),
                "requests": answered.get("http://" + b["endpoint"], 0) if answered else None,
                "why": "" if up or drained else "its health check fails" if w else "it has not answered yet",
            }
        return found

    def tell(self, backend, out):
        """Ask for it; True when there was something to ask."""
        url = "http://" + backend["endpoint"]
        known = self.workers().get(url)
        if bool(known) is not out:
            return False
        if out:
            http("%s/%s" % (self.url, known["id"]), self.key, "DELETE")
        else:
            http(self.url, self.key, "POST", {"url": url, "api_key": self.key})
        return True

    def mark(self, backend, out):
        url = "http://" + backend["endpoint"]
        if self.tell(backend, out):
            until(lambda: bool(self.workers().get(url)) is not out, 20, "the router did not take %s" % url)

    def sync(self):
        """What one backend can't do is no reason to leave the others out."""
        for b in self.told["backends"]:
            with contextlib.suppress(Silent):
                self.tell(b, b["name"] in self.told["drained"])
        wanted = {"http://" + b["endpoint"] for b in self.told["backends"]}
        for url, w in self.workers().items():
            if url not in wanted:
                http("%s/%s" % (self.url, w["id"]), self.key, "DELETE")


KINDS = {"haproxy": Haproxy, "sglang-router": Sglang}


def router():
    told = read()
    return told, KINDS[told["kind"]](told)


def until(true, seconds, why):
    """Raise Silent when it does not become true in time."""
    end, last = time.monotonic() + seconds, why
    while True:
        try:
            if true():
                return
        except Silent as e:
            last = "%s (%s)" % (why, e)
        if time.monotonic() > end:
            raise Silent(last)
        time.sleep(POLL_S)


# ---- commands


def status():
    told, it = router()
    rows = it.rows()
    out = []
    for b in told["backends"]:
        r = rows.get(b["name"]) or {"up": False, "drained": False, "why": "the router does not know it"}
        state = "drained" if r["drained"] else "up" if r["up"] else "down"
        known = {k: r.get(k) for k in ("in_flight", "requests", "why")}
        out.append({"name": b["name"], "endpoint": b["endpoint"], "state": state, "up": r["up"], **known})
    return {"kind": told["kind"], "model": told["model"], "port": told["port"], "backends": out}


def backend(told, name):
    found = next((b for b in told["backends"] if b["name"] == name), None)
    if found is None:
        names = ", ".join(b["name"] for b in told["backends"])
        raise Said(3, why="%s is no backend of this router (%s)" % (name, names))
    return found


def as_wanted():
    told, it = router()
    rows = it.rows()
    wanted = {b["name"]: b["name"] in told["drained"] for b in told["backends"]}
    return {n: r["drained"] for n, r in rows.items()} == wanted and it.runs_this()


def live_others(rows, name):
    return [n for n, r in rows.items() if n != name and r["up"] and not r["drained"]]


def take_out(name):
    """True when it takes no new requests any more; False when it is the last that can."""
    told, it = router()
    one, rows = backend(told, name), it.rows()
    if rows.get(name, {}).get("up") and not live_others(rows, name) and name not in told["drained"]:
        return False
    note(name, True)
    it.mark(one, True)
    return True


def drain(name, patience, others_s):
    end = time.monotonic() + others_s
    while True:
        with alone():
            if take_out(name):
                break
        if time.monotonic() > end:
            raise Said(4, why="%s is the only backend that is up" % name)
        time.sleep(POLL_S)
    end = time.monotonic() + patience
    told, it = router()
    one = backend(told, name)
    while True:
        left = (it.rows().get(name) or {}).get("in_flight") or 0
        left = left or running(told, one) or 0
        if not left:
            return {"drained": name, "in_flight": 0}
        if time.monotonic() > end:
            raise Said(1, why="%d requests are still running" % left, in_flight=left)
        time.sleep(POLL_S)


def restore(name, patience):
    told, it = router()
    one = backend(told, name)
    try:
        until(lambda: completes(told, one) is None, patience, "no completion within %g s" % patience)
    except Silent as e:
        raise Said(5, why=str(e)) from e
    with alone():
        note(name, False)
        it.mark(one, False)
    try:
        until(lambda: it.rows()[name]["up"], patience, "the router does not see it up")
    except Silent as e:
        raise Said(5, why=str(e)) from e
    return {"restored": name}


def main(verb, *words):
    if verb == "status":
        return status()
    if verb == "wait":
        until(as_wanted, float(words[0]), "the running router is not what its configuration says")
        return status()
    if verb == "sync":
        return {"synced": router()[1].sync() is None}
    return {"drain": drain, "restore": restore}[verb](words[0], *map(float, words[1:]))


if __name__ == "__main__":
    code, answer = 0, {}
    try:
        answer = main(*sys.argv[1:])
    except Said as e:
        code, answer = e.code, e.words
    except (Silent, OSError, ValueError) as e:
        code, answer = 2, {"why": str(e)}
    print(json.dumps({"ok": code == 0, **answer}))
    sys.exit(code)
