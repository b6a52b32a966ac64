"""How the supervisors of one deployment over several hosts keep together: a line of JSON now and then.

Rank 0 listens beside the engine's own rendezvous port. The others connect, say who they are and which
release they have; when all are there, rank 0 says "go" and every rank starts its engine. From then on a rank
that says goodbye, breaks the connection or is silent for `peer_s` has taken the whole group down with it:
each supervisor ends its engine and exits, systemd starts it again, and they meet anew.

The engine's own traffic between hosts is neither encrypted nor authenticated, and neither is this: the
network between the hosts is trusted. Connections from other addresses than the members' are refused.
"""

import contextlib
import json
import socket
import threading
import time

BEAT_S = 2.0


class Line:
    """One connection: whole JSON lines out, whole JSON lines in (on a thread of its own)."""

    def __init__(self, sock, peer_s):
        self.sock, self.peer_s = sock, peer_s
        self.heard = time.monotonic()
        self.gone = ""
        self.goodbye = ""
        self.lock = threading.Lock()

    def send(self, **words):
        try:
            with self.lock:
                self.sock.sendall(json.dumps(words).encode() + b"\n")
        except OSError as e:
            self.gone = self.gone or "the connection broke: %s" % e

    def read(self, on_words):
        """Until the connection ends. A line that is none of ours ends it."""
        try:
            with self.sock.makefile("rb") as lines:
                while line := lines.readline(65536):
                    words = json.loads(line)
                    self.heard = time.monotonic()
                    self.goodbye = str(words.get("bye", "")) or self.goodbye
                    on_words(words)
        except TimeoutError:
            self.gone = self.gone or "no sign of life for %g s" % self.peer_s
        except (OSError, ValueError, AttributeError, TypeError) as e:
            self.gone = self.gone or "%s" % e
        self.gone = self.gone or "it closed the connection"

    def lost(self):
        """Why nobody is at the other end any more, or nothing."""
        if self.goodbye or self.gone:
            return self.goodbye or self.gone
        silent = time.monotonic() - self.heard
        return "no sign of life for %d s" % silent if silent > self.peer_s else ""

    def close(self):
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class Peers:
    """What head and follower share: the group as the release tells it, the beat, the end."""

    def __init__(self, group, release, peer_s):
        self.group, self.release, self.peer_s = group, release, peer_s
        self.rank = group["rank"]
        self.members = {m["rank"]: m for m in group["members"]}
        self.ended = threading.Event()
        self.state = "waiting"
        #: rank -> (since when, why) of members that come with something else than this release
        self.misfits = {}
        self.lines = {}

    def name(self, rank):
        return "rank %d (%s, %s)" % (rank, self.members[rank]["host"], self.members[rank]["address"])

    def open(self):
        threading.Thread(target=self.serve, daemon=True).start()
        threading.Thread(target=self.beat, daemon=True).start()

    def beat(self):
        while not self.ended.wait(BEAT_S):
            for line in list(self.lines.values()):
                line.send(rank=self.rank, state=self.state)

    def misfit_for(self):
        """Seconds the longest misfit has lasted, and why it is one."""
        now = time.monotonic()
        return max(((now - since, why) for since, why in self.misfits.values()), default=(0.0, ""))

    def misfit(self, rank, why):
        since = self.misfits.get(rank, (time.monotonic(), ""))[0]
        self.misfits[rank] = (since, why)

    def lost(self):
        """Why the group that was started is none any more, or nothing."""
        for rank, line in list(self.lines.items()):
            if why := line.lost():
                return "%s: %s" % (self.name(rank), why)
        return ""

    def close(self, why):
        self.ended.set()
        for line in list(self.lines.values()):
            line.send(bye=why)
            line.close()


class Head(Peers):
    """Rank 0's end. ``generation`` numbers the starts of the group, so that journals can be matched."""

    def __init__(self, group, release, peer_s):
        super().__init__(group, release, peer_s)
        self.generation = 0
        self.lock = threading.Lock()
        self.listener = None
        self.trouble = ""

    def serve(self):
        while not self.ended.is_set():
            try:
                self.listener = socket.create_server((self.members[0]["address"], self.group["port"]))
                self.trouble = ""
            except OSError as e:
                # After a boot the address may not be there yet.
                self.trouble = "%s:%d: %s" % (self.members[0]["address"], self.group["port"], e)
                self.ended.wait(1)
                continue
            with self.listener, contextlib.suppress(OSError):
                while True:
                    sock, address = self.listener.accept()
                    threading.Thread(target=self.meet, args=(sock, address[0]), daemon=True).start()

    def meet(self, sock, address):
        line = Line(sock, self.peer_s)
        if address not in {m["address"] for r, m in self.members.items() if r}:
            print("eyas: refused a connection from %s: no member of the group" % address, flush=True)
            line.close()
            return
        sock.settimeout(self.peer_s)
        met = []
        line.read(lambda words: self.hear(line, words, met))
        if met and self.state == "waiting":
            with self.lock:
                if self.lines.get(met[0]) is line:
                    del self.lines[met[0]]
        line.close()

    def hear(self, line, words, met):
        if "hello" not in words:
            return
        rank = words["hello"]
        why = self.why_not(rank, words.get("release"))
        if why:
            if rank in self.members:
                self.misfit(rank, why)
            line.send(no=why)
            line.gone = why
            raise ValueError(why)
        with self.lock:
            before = self.lines.get(rank)
            if before and self.state != "waiting":
                before.gone = before.gone or "it started anew"
                raise ValueError("the group that was started ends first")
            self.misfits.pop(rank, None)
            self.lines[rank] = line
        met.append(rank)

    def why_not(self, rank, release):
        if rank not in self.members or rank == 0:
            return "there is no rank %s to be had" % rank
        if release != self.release:
            return "%s has release %s, rank 0 has %s" % (self.name(rank), release, self.release)
        return ""

    def absent(self):
        return [self.name(r) for r in self.members if r and r not in self.lines]

    def waits_for(self):
        """What keeps the group from starting, or nothing."""
        if self.trouble:
            return "can't listen on " + self.trouble
        why = self.misfit_for()[1]
        return why or ("waiting for " + ", ".join(self.absent()) if self.absent() else "")

    def go(self):
        with self.lock:
            if self.absent():
                return False
            self.generation, self.state = int(time.time()), "starting"
            for line in self.lines.values():
                line.send(go=self.generation)
        return True


class Follower(Peers):
    """Any other rank's end."""

    def __init__(self, group, release, peer_s):
        super().__init__(group, release, peer_s)
        self.generation = 0
        self.head_state = ""
        self.trouble = "not connected yet"

    def serve(self):
        """Keep trying until the head says go; what happens to that connection then is the group's fate."""
        where = self.members[0]["address"], self.group["port"]
        while not self.ended.is_set() and not self.generation:
            try:
                sock = socket.create_connection(where, self.peer_s, (self.members[self.rank]["address"], 0))
            except OSError as e:
                self.trouble = "%s:%d: %s" % (*where, e)
                self.ended.wait(1)
                continue
            line = Line(sock, self.peer_s)
            self.lines[0], self.trouble = line, ""
            line.send(hello=self.rank, release=self.release)
            line.read(self.hear)
            if not self.generation:
                self.lines.pop(0, None)
                self.trouble = line.lost()
                line.close()
                self.ended.wait(1)

    def hear(self, words):
        if "no" in words:
            self.misfit(0, str(words["no"]))
        elif "state" in words:
            self.misfits.clear()
            self.head_state = str(words["state"])
        if "go" in words:
            self.generation, self.state = int(words["go"]), "starting"

    def waits_for(self):
        why = self.misfit_for()[1]
        told = why or self.trouble or "the other ranks"
        return "" if self.generation else "waiting for %s: %s" % (self.name(0), told)

    def go(self):
        return bool(self.generation)
