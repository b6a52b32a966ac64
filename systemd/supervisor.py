"""ExecStart of a deployment: start the engine, say READY when it has answered a completion, keep watching.

Why not Type=exec with a /health poll: the engine's server keeps answering /health 200 with a stopped
engine core, exits 0 after a worker's death, and a unit without readiness is "active" before it serves.

Exit codes: the engine's own when it failed; 70 when it ended with 0 though nobody stopped it; 71 when it
hung (requests waited and no token came for `hang_s`) and was killed. `Restart=always` does the rest.
"""

import os
import signal
import socket
import subprocess
import sys
import time

from endpoint import Down, Release, completion, counters, health

ENDED_BY_ITSELF = 70
HUNG = 71
#: An engine that was killed while it was asked something answers with an error before it is gone.
REAP_S = 1.0
POLL_S = 1.0


def notify(*assignments):
    """Tell systemd; outside a Type=notify unit this does nothing."""
    address = os.environ.get("NOTIFY_SOCKET")
    if not address:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as s:
        s.connect("\0" + address[1:] if address.startswith("@") else address)
        s.sendall("\n".join(assignments).encode())


class Supervisor:
    def __init__(self, release):
        self.release = release
        self.stopping = False
        self.child = None
        self.progress = None
        self.moved_at = time.monotonic()
        self.probed_at = 0.0

    # ---- the engine process

    def environment(self):
        mine = {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "CREDENTIALS_DIRECTORY"}
        env = {k: v for k, v in os.environ.items() if k not in mine}
        # An empty value is not the same as an absent one: engines parse it and die.
        env.update({k: v for k, v in self.release.data["env"].items() if v != ""})
        for name in self.release.data["api_key_env"]:
            key = self.release.headers().get("Authorization", "")[len("Bearer ") :]
            if key:
                env[name] = key
        return env

    def start(self):
        print("eyas: starting", " ".join(self.release.data["argv"]), flush=True)
        self.child = subprocess.Popen(self.release.data["argv"], env=self.environment())

    def on_signal(self, number, _frame):
        self.stopping = True
        notify("STOPPING=1", "STATUS=stopping")
        if self.child and self.child.poll() is None:
            self.child.send_signal(signal.SIGTERM)

    def sleep(self, seconds):
        """Wait, but no longer than the engine lives; True while it does."""
        try:
            self.child.wait(seconds)
        except subprocess.TimeoutExpired:
            return True
        return False

    def end(self, code):
        """Leave nothing behind, then give systemd a code it acts on."""
        if self.child.poll() is None:
            self.child.kill()
        self.child.wait()
        return code

    def ended(self):
        code = self.child.returncode
        if self.stopping:
            return 0
        print("eyas: the engine ended by itself with", code, flush=True)
        return code if code > 0 else ENDED_BY_ITSELF

    # ---- readiness

    def wait_ready(self):
        """True once a completion was answered; False when the engine died first."""
        began, pause = time.monotonic(), POLL_S / 8
        while self.sleep(pause):
            pause = min(1.5 * pause, POLL_S)
            if self.stopping:
                continue
            try:
                health(self.release)
                completion(self.release, timeout=self.release.timeouts["first_completion_s"])
            except Down as e:
                notify("STATUS=starting, %d s: %s" % (time.monotonic() - began, str(e)[:120]))
            else:
                print("eyas: ready after %.1f s" % (time.monotonic() - began), flush=True)
                return True
        return False

    # ---- liveness

    def look(self):
        """One look at a serving engine. Raises Down when it doesn't serve now."""
        health(self.release)
        seen = counters(self.release)
        work = seen.get("generation_tokens")
        if work != self.progress:
            self.progress, self.moved_at = work, time.monotonic()
        busy = (seen.get("requests_running") or 0) + (seen.get("requests_waiting") or 0)
        now = time.monotonic()
        if busy:
            if now - self.moved_at > self.release.timeouts["probe_s"]:
                raise Down("%d requests wait and no token came for %d s" % (busy, now - self.moved_at))
        elif now - self.probed_at > self.release.timeouts["probe_every_s"]:
            completion(self.release, timeout=self.release.timeouts["probe_s"])
            self.probed_at = self.moved_at = time.monotonic()

    def watch(self):
        """Return when the engine is dead or hung."""
        beat = min(int(os.environ.get("WATCHDOG_USEC") or 15_000_000) / 3e6, 5.0)
        well = time.monotonic()
        while self.sleep(beat):
            if self.stopping:
                continue
            try:
                self.look()
            except Down as e:
                ill = time.monotonic() - well
                notify("WATCHDOG=1", "STATUS=unhealthy for %d s: %s" % (ill, str(e)[:120]))
                if ill > self.release.timeouts["hang_s"]:
                    if not self.sleep(REAP_S):
                        break  # it ended while it was asked: no hang
                    print("eyas: hung for %d s (%s): ending it for a restart" % (ill, e), flush=True)
                    return False
            else:
                well = time.monotonic()
                notify("WATCHDOG=1", "STATUS=serving")
        return True

    def run(self):
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self.on_signal)
        self.start()
        if not self.wait_ready():
            return self.end(self.ended())
        notify("READY=1", "STATUS=serving")
        if not self.watch():
            return self.end(HUNG)
        return self.end(self.ended())


if __name__ == "__main__":
    of_this_host = Release()
    if "group" in of_this_host.data:
        from ranked import Ranked

        sys.exit(Ranked(of_this_host).run())
    sys.exit(Supervisor(of_this_host).run())
