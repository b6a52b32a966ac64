"""What an engine uses beside its wheels: said where the lock does not bring it, with the way to it."""

import shlex

from inventory.catalogue import EngineRelease
from inventory.locks import WheelLock
from inventory.model import Deployment
from inventory.rows import Piece
from provision import layout

__all__ = ["lacking", "own_places"]

#: What such a command looks at to find where it may write.
_WHERE = ("HOME", "XDG_CACHE_HOME", "FLASHINFER_WORKSPACE_BASE")


def own_places(deployment: str) -> dict[str, str]:
    """Every cache below the unit's own folders: a service user has no home that can be written."""
    unit = layout.unit_name(deployment)
    cache, state = f"/var/cache/{unit}", f"/var/lib/{unit}"
    return {
        "HOME": state,
        "XDG_CACHE_HOME": cache,
        "XDG_CONFIG_HOME": f"{state}/config",
        "VLLM_CACHE_ROOT": f"{cache}/vllm",
        "HF_HOME": f"{cache}/hf",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "NUMBA_CACHE_DIR": f"{cache}/numba",
        "OUTLINES_CACHE_DIR": f"{cache}/outlines",
        "FLASHINFER_WORKSPACE_BASE": cache,
    }


def lacking(d: Deployment, engine: EngineRelease, lock: WheelLock) -> tuple[str, ...]:
    """What the engine would use and the lock does not bring, as notes: nothing is added to a locked set."""
    return tuple(
        f"the lock has no {p.wheel}: {p.why}; {_way_to(p, d, lock)} (docs/beside-the-wheels.md)"
        for p in engine.pieces
        if p.device in {None, d.device}
        and p.method in {None, d.draft.method}
        and p.wheel not in lock.packages
    )


def _way_to(piece: Piece, d: Deployment, lock: WheelLock) -> str:
    """The engine's own command where it has one: as the service's user, and into the cache that it reads."""
    relock = "where your index has it: invoke lock --requirement FILE"
    if piece.how == "wheel":
        return relock
    program, *rest = piece.argv
    places = own_places(d.name)
    words = ("env", *(f"{k}={places[k]}" for k in _WHERE), f"{layout.env_dir(lock.id)}/bin/{program}", *rest)
    return f"{relock}; on a host with a network: {shlex.join(('sudo', '-u', layout.USER, *words))}"
