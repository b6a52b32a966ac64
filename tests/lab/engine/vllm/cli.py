"""The command ``vllm``: ``vllm serve MODEL [flags]`` and ``vllm --version``."""

import os
import signal
import socket
import sys
from typing import Any

from . import __version__
from .core import Lines, fork
from .options import options, parse
from .refuse import Refused, check
from .say import Log
from .settings import Watched

__all__ = ["main"]


def main(argv: list[str] | None = None) -> int:
    """Exit 0 stopped or engine dead, 1 failed to start, 2 wrong flags."""
    argv = sys.argv[1:] if argv is None else argv
    if argv and argv[0] in {"-v", "--version"}:
        print(__version__)
        return 0
    if not argv or argv[0] != "serve":
        return _usage()
    values = parse(argv[1:])
    log = Log("APIServer")
    log.info("api_utils.py:347", "vLLM stand-in, version %s, model %s" % (__version__, values.get("model_tag")))
    shown = {name: value for name, value in values.items() if name != "api_key"}
    log.info("api_utils.py:286", "non-default args: %s" % shown)
    try:
        Watched().get()
        listener = _bind(values)
        configs = check(values, options()["retired_keys"])
    except (OSError, Refused, ValueError) as e:
        text = str(e) if isinstance(e, Refused) else "%s: %s" % (type(e).__name__, e)
        log.plain("Traceback (most recent call last):\n" + text)
        return 1
    return _run(values, configs, listener, log)


def _usage() -> int:
    commands = "{chat,complete,serve,launch,bench,collect-env,run-batch}"
    sys.stderr.write("usage: vllm [-h] [-v]\n            %s ...\n" % commands)
    return 2


def _bind(values: dict[str, Any]) -> socket.socket:
    """Bound at once, as the real one does, and listening only when the engine is ready."""
    host = values.get("host") or "0.0.0.0"  # noqa: S104 - the real default
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, values.get("port", 8000)))
    return listener


def _run(values: dict[str, Any], configs: tuple[dict[str, Any], dict[str, Any]], listener: socket.socket, log: Log) -> int:
    for config in configs:
        if names := config.get("architectures"):
            log.info("model.py:733", "Resolved architecture: %s" % names[0])
    length = values.get("max_model_len") or configs[0].get("max_position_embeddings") or 4096
    log.info("model.py:2152", "Using max model len %d" % length)
    core, link = fork(values, configs, "VLLM::EngineCore")
    signal.signal(signal.SIGTERM, lambda *_: _give_up(core))
    if not _ready(link):
        _, status = os.waitpid(core, 0)
        dead = {"EngineCore": os.waitstatus_to_exitcode(status)}
        text = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): %s"
        log.plain("Traceback (most recent call last):\n" + text % dead)
        return 1
    from .server import Engine, serve  # loaded after the fork: the core needs none of it

    served = values.get("served_model_name")
    model = (served[0] if isinstance(served, list) else served) or values.get("model_tag") or values["target"]
    log.info("entry.py:140", "Starting vLLM server on http://%s:%d" % listener.getsockname()[:2])
    return serve(listener, Engine(link, values, model, length), log, core)


def _ready(link: socket.socket) -> bool:
    first = Lines(link).receive(wait=True)
    return bool(first and "ready" in first[0])


def _give_up(core: int) -> None:
    """SIGTERM during the start."""
    os.kill(core, signal.SIGKILL)
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
