"""The tiny models that the lab's hub serves, made once by the engine's own Python and kept in the cache.

``python -m tests.lab.assets.models`` makes them (about a minute) and prints where they are.
"""

import hashlib
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from inventory.errors import ChangeFailed
from tests.lab.assets.cache import build_once, cache_root
from tests.lab.assets.wheelhouse import SPEC, engine_venv

__all__ = ["OWNER", "Models", "build_models"]

OWNER = "eyas-lab"
STEPS = 60
RECIPE = ("corpus.py", "heads.py", "train.py")


@dataclass(frozen=True)
class Models:
    """A folder laid out as a hub's repositories: ``root/<owner>/<name>``."""

    root: Path

    def path(self, name: str) -> Path:
        return self.root / OWNER / name

    @staticmethod
    def repo(name: str) -> str:
        """The hub's id of a model, for a deployment's ``repo:``."""
        return f"{OWNER}/{name}"

    @property
    def target(self) -> Path:
        return self.path("tiny-llama")

    @property
    def eagle3(self) -> Path:
        return self.path("tiny-llama-eagle3")

    @property
    def names(self) -> list[str]:
        return sorted(p.name for p in (self.root / OWNER).iterdir())


def build_models(*, steps: int = STEPS, python: Path | None = None) -> Models:
    """Train or find the tiny models; ``python`` has torch and transformers (default: the engine's own)."""
    digest = hashlib.sha256(f"{steps} {SPEC['lock']}".encode())
    for name in RECIPE:
        digest.update(Path(__file__).with_name(name).read_bytes())
    target = cache_root() / "lab" / f"models-{digest.hexdigest()[:12]}"
    return Models(build_once(target, lambda out: _train(out / OWNER, steps, python)))


def _train(out: Path, steps: int, python: Path | None) -> None:
    python = python or engine_venv() / "bin" / "python"
    script = Path(__file__).with_name("train.py")
    # One thread: on a busy machine two wait for each other and take ten times as long.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    argv = [str(python), str(script), str(out), str(steps)]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        last = "\n".join(done.stderr.strip().splitlines()[-3:])
        raise ChangeFailed(
            f"could not make the tiny models: {last}", hint="rm -r the engine's venv, try again"
        )


def main() -> None:
    models = build_models()
    print("\n".join([f"models {models.root}", *(f"  {models.repo(n)}" for n in models.names)]))


if __name__ == "__main__":
    main()
