"""Run the stand-in hub alone: ``python -m tests.lab.hub --root DIR --bind A --port P --cdn B``."""

import argparse
import json
import signal
import sys
from pathlib import Path

from tests.lab.hub import Hub


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or SIGINT; the first line on stdout is a JSON object with the addresses."""
    parser = argparse.ArgumentParser(description="A stand-in for the model hub and for a package index.")
    parser.add_argument("--root", type=Path, required=True, help="folder of owner/name repositories")
    parser.add_argument("--bind", default="127.0.0.1", help="address of the endpoint")
    parser.add_argument("--port", type=int, default=0, help="port of the endpoint (0: any)")
    parser.add_argument("--cdn", default="", help="address of the CDN, unlike the endpoint's (default: none)")
    parser.add_argument("--wheels", type=Path, action="append", default=[], help="folder served as an index")
    args = parser.parse_args(argv)
    if missing := [str(p) for p in (args.root, *args.wheels) if not p.is_dir()]:
        parser.error(f"no such folder: {', '.join(missing)}")
    try:
        hub = Hub(args.root, bind=args.bind, port=args.port, cdn=args.cdn or None, wheels=tuple(args.wheels))
    except OSError as e:
        parser.error(f"cannot listen on {args.bind}:{args.port} or {args.cdn or '-'}: {e}")
    stopping = {signal.SIGTERM, signal.SIGINT}
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping)
    with hub:
        print(json.dumps({"url": hub.url, "cdn": hub.cdn_url, "index": hub.index_url}), flush=True)
        signal.sigwait(stopping)
    return 0


if __name__ == "__main__":
    sys.exit(main())
