"""Card profiles: MODELxN of one of the TOML files here, with faults of ``faults/`` added by ``+``.

``rtx4090x2``, ``h200x8``, ``a100-80x2+mig``, ``rtx4090+driver-570+busy``, ``none`` (no card at all).
"""

import re
import tomllib
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from inventory.errors import UsageError

__all__ = ["Profile", "drivers", "fault_names", "model_names", "parse"]

HERE = Path(__file__).resolve().parent
MAX_CARDS = 8


@dataclass(frozen=True)
class Profile:
    """What the host has in its slots, and which driver it runs.

    ``keys``: the lines of the card library's profile file. ``module``: the loaded kernel module; None: the
    one that is installed, ``none``, ``nouveau``, or a version. ``kernel_log``: what the kernel said about it.
    """

    name: str
    keys: dict[str, str]
    pci: tuple[str, ...] = ()
    switches: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    enable: tuple[str, ...] = ()
    module: str | None = None
    secure_boot: bool = False
    kernel_log: tuple[str, ...] = ()
    says: tuple[str, ...] = field(default=())

    @property
    def text(self) -> str:
        return "".join(f"{key}={value}\n" for key, value in self.keys.items())


@cache
def drivers() -> dict[int, dict[str, Any]]:
    """Stand-in driver releases by branch: version, cuda, revision of the package."""
    table = tomllib.loads((HERE.parent / "card/drivers.toml").read_text())
    return {row["branch"]: {**row, "revision": table["revision"]} for row in table["branch"]}


def model_names() -> list[str]:
    return sorted(p.stem for p in HERE.glob("*.toml"))


def fault_names() -> list[str]:
    return sorted(p.stem for p in (HERE / "faults").glob("*.toml"))


def parse(text: str) -> Profile:
    """The profile a name stands for; UsageError names what exists when it stands for none."""
    base, *faults = text.split("+")
    if base == "none":
        return Profile(text, {"count": "0"})
    found = re.fullmatch(r"(.+?)(?:x([0-9]))?", base)
    model, count = (found[1], int(found[2] or 1)) if found else ("", 1)
    if model not in model_names() or not 1 <= count <= MAX_CARDS:
        raise UsageError(
            f"no such profile: {text!r}",
            hint=f"MODELxN with N up to {MAX_CARDS}, MODEL one of {', '.join(model_names())}; or none",
        )
    table = _load(HERE / f"{model}.toml")
    for change in (table.get("when", {}).get(str(count), {}), *map(_fault, faults)):
        table = _changed(table, change)
    return _profile(text, table, count)


def _fault(name: str) -> dict[str, Any]:
    if name not in fault_names():
        raise UsageError(f"no such card fault: {name!r}", hint=f"one of {', '.join(fault_names())}")
    return _load(HERE / "faults" / f"{name}.toml")


@cache
def _load(path: Path) -> dict[str, Any]:
    return tomllib.loads(path.read_text())


def _changed(table: dict[str, Any], change: dict[str, Any]) -> dict[str, Any]:
    """Scalars and package lists are replaced; tables are merged; logs and sayings add up."""
    out = dict(table)
    for key, value in change.items():
        if isinstance(value, dict):
            out[key] = {**table.get(key, {}), **value}
        elif key in {"kernel_log", "says"}:
            out[key] = [*table.get(key, []), *([value] if isinstance(value, str) else value)]
        else:
            out[key] = value
    return out


def _profile(name: str, table: dict[str, Any], count: int) -> Profile:
    pci = table["pci"][:count]
    driver = drivers()[table["branch"]]
    words = {"branch": table["branch"], "library": driver["version"], "pci": pci[0].rpartition(".")[0]}
    keys = {"count": str(count), "cuda": str(driver["cuda"])}
    keys |= _text(table.get("machine", {}))
    keys |= {f"proc.{pid}": who for pid, who in table.get("processes", {}).items()}
    for i, address in enumerate(pci):
        keys |= _card(i, address, table)
    return Profile(
        name,
        keys,
        pci=tuple(pci),
        switches=tuple(table.get("switches", ())),
        packages=_filled(table["packages"], words),
        enable=tuple(table.get("enable", ())),
        module=table.get("module"),
        secure_boot=table.get("secure_boot", False),
        kernel_log=_filled(table.get("kernel_log", ()), words),
        says=tuple(table.get("says", ())),
    )


def _card(index: int, address: str, table: dict[str, Any]) -> dict[str, str]:
    own = {
        "pci": address,
        "minor": index,
        "uuid": f"GPU-00000000-0000-0000-0000-{index + 1:012}",
        **table["card"],
        **table.get("all", {}),
        **(table.get("one", {}) if index == 0 else {}),
    }
    return {f"{index}.{key}": value for key, value in _text(own).items()}


def _text(table: dict[str, Any]) -> dict[str, str]:
    return {key: str(value) for key, value in table.items()}


def _filled(lines: Iterable[str], words: dict[str, Any]) -> tuple[str, ...]:
    return tuple(line.format(**words) for line in lines)
