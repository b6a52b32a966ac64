"""The supervisor of one rank of a deployment over several hosts: all ranks serve together, or none does.

Only rank 0 has an endpoint and is looked at with completions; the other ranks are well while their engine
lives and rank 0 says that the group serves. Exit codes besides the supervisor's: 72 another rank was lost,
73 the group did not come together, 74 it can't: another rank has another release.
"""

import json
import os
import signal
import threading
import time

from group import Follower, Head
from supervisor import POLL_S, Supervisor, notify

LOST = 72
ABSENT = 73
MISFIT = 74


class Ranked(Supervisor):
    def __init__(self, release):
        super().__init__(release)
        group, times = release.data["group"], release.timeouts
        self.rank = group["rank"]
        kind = Head if self.rank == 0 else Follower
        self.peers = kind(group, release.folder.name, times["peer_s"])
        self.lost = ""

    # ---- together

    def gather(self):
        """None when every rank is there and may start; else the exit code."""
        began, told = time.monotonic(), ""
        while not self.peers.go():
            waited = time.monotonic() - began
            why = self.peers.waits_for()
            if why != told:
                print("eyas: %s" % why, flush=True)
                told = why
            notify("STATUS=for %d s: %s" % (waited, why[:200]))
            self.write_state("waiting", why)
            if self.stopping:
                return 0
            if self.peers.misfit_for()[0] > self.release.timeouts["misfit_s"]:
                return MISFIT
            if waited > self.release.timeouts["join_s"]:
                return ABSENT
            time.sleep(0.25)
        print("eyas: the group is complete, generation %d" % self.peers.generation, flush=True)
        return None

    def watch_peers(self):
        """Ends the engine as soon as another rank is lost: a completion that waits for that rank ends too."""
        while not self.peers.ended.wait(0.25):
            why = self.peers.lost()
            if why:
                self.lost = why
                print("eyas: the group lost %s: ending this rank's engine" % why, flush=True)
                self.child.kill()
                return

    def ended(self):
        if self.lost and not self.stopping:
            return LOST
        return super().ended()

    def write_state(self, state, why=""):
        """For the health program: what this rank knows of its group."""
        folder = os.environ.get("RUNTIME_DIRECTORY", "").split(":")[0]
        if not folder:
            return
        path = os.path.join(folder, "group.json")
        with open(path + ".new", "w", encoding="utf-8") as f:
            json.dump({"rank": self.rank, "state": state, "why": why, "time": time.time()}, f)
        os.replace(path + ".new", path)

    # ---- readiness and liveness, where there is no endpoint

    def wait_ready(self):
        if self.rank == 0:
            if not super().wait_ready():
                return False
            self.peers.state = "serving"
            return True
        while self.sleep(POLL_S / 4):
            notify("STATUS=rank %d runs; rank 0 is %s" % (self.rank, self.peers.head_state or "silent"))
            if self.peers.head_state == "serving" and not self.stopping:
                return True
        return False

    def watch(self):
        if self.rank == 0:
            return super().watch()
        while self.sleep(POLL_S):
            notify("WATCHDOG=1", "STATUS=rank %d, the group serves" % self.rank)
            self.write_state("serving")
        return True

    def look(self):
        super().look()
        self.write_state("serving")

    def on_signal(self, number, frame):
        super().on_signal(number, frame)
        threading.Thread(target=self.peers.close, args=("it was stopped",), daemon=True).start()

    def run(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.on_signal)
        self.peers.open()
        code = self.gather()
        if code is None:
            code = self.serve()
        self.peers.close("it was stopped" if self.stopping else self.last_words(code))
        self.write_state("ended", self.lost)
        return code

    def serve(self):
        self.start()
        threading.Thread(target=self.watch_peers, daemon=True).start()
        if not self.wait_ready():
            return self.end(self.ended())
        notify("READY=1", "STATUS=serving")
        if not self.watch():
            return self.end(71)
        return self.end(self.ended())

    def last_words(self, code):
        if self.lost:
            return "it lost " + self.lost
        why = {71: "its engine hung", ABSENT: "it waited too long", MISFIT: self.peers.misfit_for()[1]}
        return why.get(code) or "its engine ended (%d)" % self.child.returncode
