"""What a deployment asks of a host, as plain numbers: the rules need nothing else of it."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from inventory.model import Device

__all__ = ["Floors", "Want"]


@dataclass(frozen=True)
class Floors:
    """What the wheels of one engine release run on.

    ``python`` is a PEP 440 range; ``compute_capability`` the lowest and highest the wheels hold code for;
    "" or None: no such floor.
    """

    engine: str
    version: str
    torch: str = ""
    cuda: str = ""
    driver: str = ""
    python: str = ""
    glibc: str = ""
    compute_capability: tuple[str, str] | None = None

    @property
    def label(self) -> str:
        built = f" (torch {self.torch}, CUDA {self.cuda})" if self.torch and self.cuda else ""
        return f"{self.engine} {self.version}{built}"


@dataclass(frozen=True)
class Want:
    """One deployment on one host. Bytes are bytes; ``cards`` are NVML indexes, None: the first ones."""

    device: Device = "cuda"
    floors: Floors | None = None
    tensor_parallel: int = 1
    pipeline_parallel: int = 1
    nodes: int = 1
    cards: tuple[int, ...] | None = None
    gpu_memory_utilization: float = 0.9
    address: str = "127.0.0.1"
    port: int | None = None
    #: Our own unit: what it holds (port, card memory) is not "taken by someone else".
    unit: str = ""
    #: Bytes that will be written, by folder, each with a word for what it is: {"/opt/eyas": {"wheels": n}}.
    disk: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    #: Target plus draft, as they will be loaded.
    weights_bytes: int = 0
    arch: str = "x86_64"
    tools: tuple[str, ...] = ()
    #: `--install-driver`: a missing or old driver is not a reason to stop.
    driver_will_be_installed: bool = False

    @property
    def cards_here(self) -> int:
        """Cards one node holds."""
        return -(-self.tensor_parallel * self.pipeline_parallel // self.nodes)
