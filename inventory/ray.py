"""Ray's own command line, for deployments whose hosts work together through Ray.

Every port is stated, so that a firewall can be written from the deployment; the dashboard is off. Ray's ports
are open to whoever reaches them and run code: the network between the hosts must be closed to others.
"""

from inventory.errors import UsageError
from inventory.model import Deployment
from inventory.roles import Node

__all__ = ["PORTS", "WORKER_PORTS", "ray_argv", "ray_environment"]

#: Offset from master_port -> the option of `ray start`. +1 is the supervisors' own.
PORTS = {
    2: "--node-manager-port",
    3: "--object-manager-port",
    4: "--runtime-env-agent-port",
    5: "--dashboard-agent-listen-port",
    6: "--dashboard-agent-grpc-port",
    7: "--metrics-export-port",
}
#: Worker processes listen on these, counted from master_port.
WORKER_PORTS = (100, 999)


def ray_argv(d: Deployment, node: Node, *, run_dir: str) -> tuple[str, ...]:
    """`ray start` of this rank, program name first. ``run_dir``: short, for sockets; only rank 0 names it."""
    base = d.master_port
    low, high = (base + n for n in WORKER_PORTS)
    if high > 65535:
        raise UsageError(f"master_port {base} leaves no room for Ray's worker ports", hint="below 64500")
    here = ["--head", "--port", str(base), "--include-dashboard", "false", "--temp-dir", run_dir]
    there = ["--address", f"{node.head_address}:{base}"]
    ranks = d.tensor_parallel * d.pipeline_parallel // d.nodes
    sizes = (
        ["--num-gpus", str(ranks)] if d.device == "cuda" else ["--num-cpus", str(ranks), "--num-gpus", "0"]
    )
    ports = [word for offset, option in PORTS.items() for word in (option, str(base + offset))]
    workers = ["--min-worker-port", str(low), "--max-worker-port", str(high)]
    where = [*(here if node.rank == 0 else there), "--node-ip-address", node.address]
    return ("ray", "start", *where, *sizes, *ports, *workers, "--disable-usage-stats", "--block")


def ray_environment(d: Deployment, node: Node) -> dict[str, str]:
    """What the engine on rank 0 needs to join the cluster instead of starting one."""
    return {"RAY_ADDRESS": f"{node.head_address}:{d.master_port}", "RAY_USAGE_STATS_ENABLED": "0"}
