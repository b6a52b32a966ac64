"""Facts of many hosts, held as `facts --json` holds them: recorded probes, decoded by the product.

Run as ``python -m tests.scale.look HOSTS``: in a process of its own, for its memory.
"""

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

from checks.facts import HostFacts
from inventory.model import Host
from provision.fleet import each_host
from provision.run import facts_document
from tests.scale.parameters import Look

__all__ = ["hold", "seconds"]

RECORDED = Path(__file__).parents[1] / "hosts" / "h200x2-580.json"


def seconds(hosts: int, forks: int, known: Look) -> float:
    """Until all have answered: forks at a time, and not faster than one core makes connections."""
    return known.start_s + max(hosts * known.operator_cpu_ms / 1000, hosts / min(forks, hosts) * known.host_s)


def hold(hosts: int) -> dict[str, Any]:
    """Decode so many probes and write them as one document; seconds of CPU, bytes, MiB at most."""
    text = RECORDED.read_text(encoding="utf-8")
    began = time.process_time()
    fleet = [Host(name=f"gpu{n:05}", address="10.0.0.1") for n in range(hosts)]
    found = each_host(fleet, lambda _: HostFacts.from_json(text).to_json())
    decoded = time.process_time() - began
    size = len(facts_document(found, []))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {"hosts": hosts, "cpu_s": round(decoded, 2), "json_bytes": size, "peak_mib": peak}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("hosts", type=int)
    print(json.dumps(hold(parser.parse_args().hosts)))


if __name__ == "__main__":
    main()
