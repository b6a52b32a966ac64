"""Where things live on a host. One place, so that the probe, the plan and prune agree."""

import re
from hashlib import sha256

ROOT = "/opt/eyas"
STATE = "/var/lib/eyas"
ETC = "/etc/eyas"
USER = "eyas"
UV = f"{ROOT}/uv"
#: The programs that a bench and the review bring along.
BENCH = f"{ROOT}/lib/bench"
LOCK = f"{STATE}/lock"
#: Held open by long work; whoever takes the lock ends what still has it open.
WORK = f"{LOCK}/work"
AUDIT = f"{STATE}/audit.jsonl"

__all__ = ["AUDIT", "BENCH", "ETC", "LOCK", "ROOT", "STATE", "USER", "UV", "WORK"]


def env_dir(lock_id: str) -> str:
    return f"{ROOT}/envs/{lock_id[:16]}"


def new_env_dir(lock_id: str) -> str:
    """Where an environment is built and proven before it takes its place."""
    return f"{ROOT}/envs/.{lock_id[:16]}.new"


def wheelhouse_dir(lock_id: str) -> str:
    return f"{ROOT}/wheelhouse/{lock_id[:16]}"


def weights_dir(label: str, commit: str) -> str:
    """One folder a commit. The label is made a safe single path component; a digest keeps it unique."""
    slug = re.sub(r"[^A-Za-z0-9._-]+", "--", label).strip("-.")[-80:]
    if slug != label:
        slug += "-" + sha256(label.encode()).hexdigest()[:8]
    return f"{STATE}/weights/{slug}/{commit}"


def release_dir(release_id: str) -> str:
    return f"{STATE}/releases/{release_id}"


def current_link(deployment: str) -> str:
    return f"{STATE}/current/{deployment}"


def unit_name(deployment: str) -> str:
    return f"eyas-{deployment}"


def unit_files(deployment: str) -> tuple[str, ...]:
    """The last one only where the deployment's hosts work together through Ray, on rank 0."""
    unit = unit_name(deployment)
    return f"{unit}.service", f"{unit}-health.service", f"{unit}-health.timer", f"{unit}-ray.service"


def unit_path(unit_file: str) -> str:
    return f"/etc/systemd/system/{unit_file}"


def credentials_dir(deployment: str) -> str:
    return f"{ETC}/credentials/{deployment}"


def api_key_path(deployment: str, digest: str) -> str:
    """One file a key, named by the key's digest in release.json: a former release keeps the key it had."""
    return f"{credentials_dir(deployment)}/api-key-{digest[:16]}"


def baseline_path(key: str) -> str:
    """Recorded output of a target without speculation, to compare later releases with."""
    return f"{STATE}/baselines/{key}.json"


def bench_marker(deployment: str) -> str:
    """There while a bench serves another release than the one that is to be served."""
    return f"{STATE}/bench/{deployment}.json"


def putback_unit(deployment: str) -> str:
    """Not named like a deployment's own units: it is none."""
    return f"putback-{unit_name(deployment)}.service"


def review_unit(deployment: str) -> str:
    return f"review-{unit_name(deployment)}"


def review_folder(deployment: str) -> str:
    return f"{STATE}/review/{deployment}"
