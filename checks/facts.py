"""HostFacts: one frozen snapshot of one probe.

A fact is addressed by a dotted path and is ``Known(value)`` or ``Missing(reason)``; a value nobody could
read is never a default. On disk a Missing is ``{"missing": "reason"}``, so a saved probe replays exactly.

Paths (units: bytes, seconds, watts, degrees Celsius, MHz unless the name says otherwise)::

    os.{id,version_id,pretty,kernel,arch,glibc,hostname,boot_id,uptime_s,time,time_synced,container}
    cpu.{count,model}     memory.{total,available,swap_total,swap_free}
    disks[]   {path,exists,mount,fstype,total,free,read_only}      for the folders eyas uses
    shm.{total,free}      limits.{nofile_hard,memlock_hard}        cgroup.{version,memory_max}
    ports[]   {port,address,pid,process}                            listening TCP
    python.{path,version,venv}    tools.{rsync,systemctl,curl,gcc,g++,ninja,ip}  path of each
    driver.{module_version,module_open,library_version,package,package_version,nouveau,nova,secure_boot,
            holds[],unattended_upgrades,reboot_required,cuda_version,nvml_error,nvml_error_code,devices[]}
    driver.fabric_manager.{installed,version,active}
    gpus[]    {index,name,uuid,cc,pci,memory_total,memory_used,memory_free,processes[]{pid,bytes,name},
               persistence,mig,ecc{mode,volatile_uncorrected,aggregate_uncorrected},
               remapped{correctable,uncorrectable,pending,failed},retired_pages,clocks{sm,sm_max,mem},
               throttle[],power,power_limit,temperature,pcie{gen,gen_max,width,width_max},nvlinks_active,
               fabric{state,status},error}
    p2p[][]   status name per pair     topology[][]  level name per pair
    xid[]     {time,pci,code,text}     from the kernel log
    cuda.{home,nvcc,nvcc_version,lib_versions[]}
    eyas.{root,current,lock_holder}    eyas.releases[] {id,deployment,created}
    eyas.envs[] {id,complete,torch,engine_version}     eyas.weights[] {id,complete,bytes}
    eyas.units{NAME: {active,sub,result,main_pid,restarts,exec,fragment_sha256,enabled,
               limits{nofile,memlock},argv[],environment{},started_at,timeout_start_s,memory_current}}
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from inventory.errors import InventoryError

__all__ = ["SCHEMA", "HostFacts", "Known", "Missing"]

SCHEMA = 1
T = TypeVar("T")


@dataclass(frozen=True)
class Known:
    value: Any


@dataclass(frozen=True)
class Missing:
    reason: str


@dataclass(frozen=True)
class HostFacts:
    """A probe's result. ``tree`` is the decoded JSON; treat it as read-only."""

    host: str
    taken_at: float
    tree: dict[str, Any]
    schema: int = SCHEMA

    def get(self, path: str) -> Known | Missing:
        """The fact at ``path`` (``gpus.0.memory_total``). Absent paths are Missing("not probed")."""
        node: Any = self.tree
        for part in path.split("."):
            if _is_missing(node):
                return Missing(node["missing"])
            if isinstance(node, list) and part.isdigit() and int(part) < len(node):
                node = node[int(part)]
            elif isinstance(node, dict) and part in node:
                node = node[part]
            else:
                return Missing("not probed")
        return Missing(node["missing"]) if _is_missing(node) else Known(node)

    def value(self, path: str, kind: type[T]) -> T | None:
        """The value when it is known and of this type, else None. For display and optional refinements."""
        fact = self.get(path)
        return fact.value if isinstance(fact, Known) and isinstance(fact.value, kind) else None

    def to_json(self) -> str:
        return json.dumps({"schema": self.schema, "host": self.host, "taken_at": self.taken_at, **self.tree})

    @classmethod
    def from_json(cls, text: str, *, source: str = "facts") -> "HostFacts":
        """Read a saved probe. Raises InventoryError naming ``source`` when it is not one."""
        try:
            tree = json.loads(text)
            schema, host, taken = tree.pop("schema"), tree.pop("host"), tree.pop("taken_at")
        except (ValueError, KeyError, AttributeError) as e:
            raise InventoryError(f"{source} is not a saved probe: {e}") from e
        if schema > SCHEMA:
            raise InventoryError(f"{source} has facts schema {schema}, this eyas reads up to {SCHEMA}")
        return cls(host=host, taken_at=float(taken), tree=tree, schema=schema)

    @classmethod
    def load(cls, path: Path) -> "HostFacts":
        return cls.from_json(path.read_text(encoding="utf-8"), source=str(path))


def _is_missing(node: Any) -> bool:
    return isinstance(node, dict) and set(node) == {"missing"}
