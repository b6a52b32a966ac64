"""HostFacts: one frozen snapshot of one probe.

A fact is addressed by a dotted path and is ``Known(value)`` or ``Missing(reason)``; a value nobody could
read is never a default. A Known None says "looked, there is none": an absent tool, no limit, no unit.
On disk a Missing is ``{"missing": "reason"}``, so a saved probe replays exactly.

Paths (units: bytes, seconds, watts, degrees Celsius, MHz unless the name says otherwise)::

    os.{id,version_id,codename,pretty,kernel,kernels_installed[],cmdline[],arch,glibc,hostname,boot_id,
        uptime_s,time,time_synced,time_error_us,container}
    cpu.{count,online,model,flags[],numa_nodes}
    memory.{total,available,swap_total,swap_free}
    disks[]   {path,exists,nearest,mount,fstype,options[],total,free,inodes_free,read_only,device}
              for the folders asked about; ``nearest``: deepest existing one; ``device``: equal on one disk
    shm.{total,free}  shm.files[] {name,bytes,uid}
    limits.{nofile,memlock,nproc,stack,core}_{soft,hard}   of the login that probed; None: unlimited
    sysctl.{NAME}     cgroup.{version,memory_max}
    ports[]   {port,address,pid,process,unit}               listening TCP
    network.interfaces[] {name,state,mtu,speed_mbit,device,infiniband,address,netmask}    IPv4, the first;
              ``speed_mbit`` None: the kernel knows none; ``device``: backed by hardware
    python.{path,version,venv,headers,others[]}    tools.{rsync,systemctl,curl,gcc,...}  path, None: absent
    driver.{module_version,module_open,library_version,driver_version,nvml_version,cuda_version,source,
            nvml_error,nvml_error_code,nvidia_smi{exit,text},package,package_version,packages{NAME: version},
            holds[],module_file{filename,version,license,signer,vermagic},nouveau,nova,peermem,secure_boot,
            lockdown,iommu_groups,acs[]{pci,control},nodes[]{path,mode,uid},kernel_lines[]{time,text},
            devices[]{pci,device,kind,driver,numa_node,link_speed,link_width},
            reboot_required{required,packages[]},unattended_upgrades{installed,enabled,blacklist[]}}
            ``source``: who answered for the cards, "nvml", "nvidia-smi" or None; ``devices``: NVIDIA's
            functions on the PCI bus, kind gpu or nvswitch, seen with no driver; ``module_file``: on disk, for
            the running kernel
    driver.fabric_manager.{installed,package,version,active}
    gpus[]    {index,error,name,uuid,cc,pci,minor,vbios,persistence,compute_mode,mig,mig_pending,
               memory_total,memory_used,memory_free,memory_reserved,bar1_total,
               processes[]{pid,bytes,name,unit,uid,kind},
               ecc{mode,mode_pending,volatile_uncorrected,aggregate_uncorrected,volatile_corrected},
               remapped{correctable,uncorrectable,pending,failed},retired_pages,retired_pending,
               temperature,recovery_action,clocks{sm,sm_max,mem,mem_max},throttle[],utilization,
               power,power_limit,power_default,pcie{gen,gen_max,width,width_max},nvlinks_active,
               fabric{state,status}}
               a card that gives no answer has only index and error
    p2p[][]   ok, self, lost, or why not, per pair     topology[][]  internal ... system, per pair
    xid[]     {time,pci,code,text}     from the kernel log of this boot
    cuda.{home,toolkits[],nvcc,nvcc_version,lib_versions[],libraries{NAME: path}}
    services{NAME: {active,load}}      nvidia-fabricmanager, nvidia-persistenced, unattended-upgrades
    eyas.{root,current{DEPLOYMENT: release},uv[],lock_holder}   lock_holder: only while the lock is held
    eyas.releases[] {id,complete,sha256,deployment,created,...}
    eyas.envs[]     {id,complete,torch,engine_version,proof}
    eyas.weights[]  {id,complete,bytes,files,partial_files}
    eyas.user       {name,uid,gid,home,groups[]} or None
    eyas.folders{PATH: {owner,mode,kind} or None}     eyas.files{PATH: {sha256,bytes,owner,mode} or None}
    eyas.units{NAME.service: {load,active,sub,result,status_text,main_pid,exit_status,restarts,exec,fragment,
               fragment_sha256,drop_ins[],enabled,needs_reload,user,limits{nofile,memlock,nproc},argv[],
               environment{},started_at,timeout_start_s,memory_current}}
               names with dots and slashes are keys: get the parent, then index it
    probe.{schema,ms,uid,sections_ms{},root}
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from inventory.errors import InventoryError
from inventory.jsonfile import decode_json

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
            tree = decode_json(text, f"{source} is not a saved probe")
            schema, host, taken = int(tree.pop("schema")), str(tree.pop("host")), float(tree.pop("taken_at"))
        except KeyError as e:
            raise InventoryError(f"{source} is not a saved probe: it has no {e}") from e
        except (ValueError, TypeError, AttributeError) as e:
            raise InventoryError(f"{source} is not a saved probe") from e
        if schema > SCHEMA:
            raise InventoryError(f"{source} has facts schema {schema}, this eyas reads up to {SCHEMA}")
        return cls(host=host, taken_at=taken, tree=tree, schema=schema)

    @classmethod
    def load(cls, path: Path) -> "HostFacts":
        return cls.from_json(path.read_text(encoding="utf-8"), source=str(path))


def _is_missing(node: Any) -> bool:
    return isinstance(node, dict) and set(node) == {"missing"}
