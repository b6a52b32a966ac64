"""Known cards and drivers, as data: `inventory/engines/cards.toml` and `drivers.toml`."""

import functools
import tomllib
from pathlib import Path
from typing import Literal

from packaging.version import Version
from pydantic import BaseModel, ConfigDict, Field

__all__ = ["Branch", "Card", "Chip", "Drivers", "card_named", "find_card", "load_cards", "load_drivers"]

ENGINES = Path(__file__).resolve().parent / "engines"


class _Row(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")
    source: str = ""


class Card(_Row):
    """A card. ``memory_mib`` is what nvidia-smi prints; ``names`` are parts of what NVML calls it."""

    name: str
    names: tuple[str, ...]
    memory_mib: int
    compute_capability: str
    architecture: str
    market: Literal["workstation", "datacenter"] = Field(alias="class")
    link: Literal["pcie", "nvlink"]
    bridge: bool
    nvswitch: bool
    pcie_gen: int
    memory_bandwidth_gbs: int
    open_module_only: bool = False

    @property
    def memory_gib(self) -> float:
        return self.memory_mib / 1024


class Branch(_Row):
    """A driver branch and its Ubuntu packages. ``open``: the open kernel module."""

    branch: int
    ubuntu: str
    plain: str
    plain_open: str
    server: str
    server_open: str
    fabric_manager: str
    end_of_life: str
    default: bool = False
    note: str = ""

    def package(self, *, server: bool, open_module: bool) -> str:
        if server:
            return self.server_open if open_module else self.server
        return self.plain_open if open_module else self.plain


class _Floor(_Row):
    cuda_major: int
    driver: str


class _Toolkit(_Row):
    cuda: str
    driver: str


class Chip(_Row):
    """A range of PCI device ids (hexadecimal, both ends included) and the kernel module its cards run on."""

    first: str
    last: str
    architecture: str
    module: Literal["closed", "either", "open"]
    datacenter: bool = False

    def holds(self, device: int) -> bool:
        return int(self.first, 16) <= device <= int(self.last, 16)


class DriverPackages(_Row):
    """Packages around the driver's own, as templates; see drivers.toml."""

    signed: tuple[str, ...]
    headers: str
    fabric_service: str
    initramfs_mib: int


class Drivers(_Row):
    """What each driver runs and which package brings it."""

    floor: tuple[_Floor, ...]
    toolkit: tuple[_Toolkit, ...]
    branch: tuple[Branch, ...]
    packages: DriverPackages
    chip: tuple[Chip, ...]

    def chip_of(self, device: str) -> Chip | None:
        """The chip with this PCI device id ("0x2684"); None when it is not catalogued."""
        number = int(device, 16)
        return next((c for c in self.chip if c.holds(number)), None)

    def branch_for(self, floor: str) -> Branch | None:
        """The branch to install for a driver floor: the default one, or the next newer that is enough."""
        least = Version(floor).major if floor else 0
        enough = [b for b in self.branch if b.branch >= least]
        return next((b for b in enough if b.default), min(enough, key=lambda b: b.branch, default=None))

    def branch_of(self, driver: str) -> Branch | None:
        """The branch that a driver version ("580.159.04") is of."""
        return next((b for b in self.branch if str(b.branch) == driver.partition(".")[0]), None)

    def floor_for(self, cuda: str) -> str | None:
        """The oldest driver that runs this CUDA ("13.0") by minor-version compatibility."""
        major = Version(cuda).major
        return next((f.driver for f in self.floor if f.cuda_major == major), None)

    def shipped_with(self, cuda: str) -> str | None:
        """The driver this toolkit came with: the floor where PTX must be compiled at load."""
        return next((t.driver for t in self.toolkit if Version(t.cuda) == Version(cuda)), None)

    def newest_cuda(self, driver: str) -> str | None:
        """The newest toolkit whose own driver is not newer than this one."""
        fits = [t.cuda for t in self.toolkit if Version(t.driver) <= Version(driver)]
        return max(fits, key=Version, default=None)

    @property
    def default_branch(self) -> Branch:
        return next(b for b in self.branch if b.default)


@functools.cache
def load_cards() -> tuple[Card, ...]:
    data = tomllib.loads((ENGINES / "cards.toml").read_text(encoding="utf-8"))
    return tuple(Card.model_validate(row) for row in data["card"])


@functools.cache
def load_drivers() -> Drivers:
    return Drivers.model_validate(tomllib.loads((ENGINES / "drivers.toml").read_text(encoding="utf-8")))


def find_card(nvml_name: str) -> Card | None:
    """The card NVML calls this ("NVIDIA GeForce RTX 4090"), None when it is not catalogued."""
    name = nvml_name.lower()
    return next((c for c in load_cards() if any(_part(n, name) for n in c.names)), None)


def card_named(name: str) -> Card | None:
    """The card an operator means: its catalogue name, then any NVML name; case does not matter."""
    wanted = name.strip().lower()
    return next((c for c in load_cards() if c.name.lower() == wanted), None) or find_card(name)


def _part(part: str, name: str) -> bool:
    """Whole words only: "nvidia l4" is not in "nvidia l40s"."""
    at = name.find(part)
    after = name[at + len(part) : at + len(part) + 1]
    return at >= 0 and not after.isalnum()
