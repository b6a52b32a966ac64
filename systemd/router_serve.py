"""ExecStart of a sglang-router: settings from the file beside this one, the API key from systemd.

Its command takes the key only as an argument, open to every user; its own Python entry point takes it here.
"""

import json
import os
import pathlib

from sglang_router.launch_router import launch_router
from sglang_router.router_args import RouterArgs

HERE = pathlib.Path(__file__).resolve().parent


def api_key():
    with open(os.path.join(os.environ["CREDENTIALS_DIRECTORY"], "api-key.map"), encoding="utf-8") as f:
        return f.read().split()[1]


def main():
    with open(HERE / "router.json", encoding="utf-8") as f:
        told = json.load(f)
    live = [b for b in told["backends"] if b["name"] not in told["drained"]]
    launch_router(
        RouterArgs(
            worker_urls=["http://" + b["endpoint"] for b in live],
            host=told["listen"],
            port=told["port"],
            policy=told["policy"],
            api_key=api_key(),
            health_check_interval_secs=2,
            health_failure_threshold=2,
            worker_startup_timeout_secs=1800,
            request_timeout_secs=3600,
            prometheus_host="127.0.0.1",
            prometheus_port=told["metrics_port"],
            history_backend="none",
        )
    )


if __name__ == "__main__":
    main()
