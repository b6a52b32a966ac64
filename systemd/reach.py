"""Can the hosts of a group reach each other? Run on each of them at the same time, from standard input.

    reach.py {"address", "ports": [..], "peers": {"HOST": "ADDRESS"}, "seconds"}

Listens on its own address, at each port and at a high one that the kernel picks, and says so in its first
line: "listening {PORT: how}", how being "free", "busy" or why not. Then one line on standard input,
{"HOST": {PORT: how}}, says what to connect to. Each connection must carry 64 KiB there and an answer back,
which it does not where the packet size is wrong; a busy port is somebody's, and connecting to it is proof
enough. Prints one JSON object, {"HOST PORT": "ok" or why not}, and listens on until standard input ends.
"""

import errno
import json
import socket
import sys
import threading

BLOCK = 65536


def answer(listener):
    while True:
        try:
            sock, _ = listener.accept()
        except OSError:
            return
        threading.Thread(target=swallow, args=(sock,), daemon=True).start()


def swallow(sock):
    with sock:
        try:
            sock.settimeout(10)
            left = BLOCK
            while left and (data := sock.recv(left)):
                left -= len(data)
            sock.sendall(b"eyas")
        except OSError:
            return


def listen(address, port):
    """(port, how): "free", "busy", or why nobody can listen there."""
    try:
        listener = socket.create_server((address, port))
    except OSError as e:
        return port, "busy" if e.errno == errno.EADDRINUSE else str(e)
    threading.Thread(target=answer, args=(listener,), daemon=True).start()
    return listener.getsockname()[1], "free"


def connect(own, address, port, seconds, busy):
    try:
        with socket.create_connection((address, port), seconds, (own, 0)) as sock:
            if busy:
                return "ok"
            sock.sendall(bytes(BLOCK))
            said = sock.recv(4)
    except TimeoutError:
        return "timed out after %g s" % seconds
    except OSError as e:
        return e.strerror or str(e)
    return "ok" if said == b"eyas" else "somebody else answers"


def main(words):
    told = json.loads(words)
    print(
        "listening " + json.dumps(dict(listen(told["address"], p) for p in [*told["ports"], 0])), flush=True
    )
    targets = json.loads(sys.stdin.readline() or "{}")
    found, threads = {}, []

    def one(host, port, how):
        found["%s %s" % (host, port)] = connect(
            told["address"], told["peers"][host], int(port), told["seconds"], how == "busy"
        )

    for host, ports in targets.items():
        for port, how in ports.items():
            threads.append(threading.Thread(target=one, args=(host, port, how)))
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    print(json.dumps(found), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main(sys.argv[1])
