"""What `provision` would change on a host, asked beside a diagnosis. Apart, for what it imports is slow."""

import threading

from checks.facts import HostFacts
from inventory.errors import EyasError
from inventory.model import Deployment, Host
from provision.converge import Options, plan_changes
from provision.looking import Drift
from provision.sources import Sources
from provision.want import want_for

__all__ = ["drift_of"]

#: What would change is asked of the hub; a diagnosis doesn't wait longer for it.
_DRIFT_S = 5.0


def drift_of(host: Host, d: Deployment, facts: HostFacts, sources: Sources) -> Drift:
    """What `provision` would change, as far as the hub tells within the time there is."""
    if d.nodes > 1:
        return Drift(unseen="one host of several: invoke provision --check tells of the group")
    result: list[Drift] = []

    def ask() -> None:
        try:
            want = want_for(host, d, facts, sources, lambda _: None)
            changes = plan_changes(want, facts, Options(check=True, sources=sources), lambda _: None)
            result.append(Drift(tuple(c.title for c in changes)))
        except EyasError as e:
            result.append(Drift(unseen=f"the deployment could not be resolved: {e.message}", cause=e.cause))
        except Exception as e:  # noqa: BLE001 - what would change is a side view; a bug there hides nothing else
            result.append(Drift(unseen=f"{type(e).__name__}: {e}"))

    worker = threading.Thread(target=ask, daemon=True)
    worker.start()
    worker.join(_DRIFT_S)
    return result[0] if result else Drift(unseen=f"the hub did not answer within {_DRIFT_S:g} s")
