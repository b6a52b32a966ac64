"""Proof of an environment: proof file, lock id, then the modules that must import. Prints what it found."""

import importlib
import importlib.metadata
import json
import os
import sys


def canonical(name):
    return name.lower().replace("_", "-").replace(".", "-")


def main(proof, lock_id, *modules):
    packages = {canonical(d.metadata["Name"]): d.version for d in importlib.metadata.distributions()}
    found = {"lock": lock_id, "packages": packages}
    for name in modules:
        found[name] = getattr(importlib.import_module(name), "__version__", None)
    if "torch" in modules:
        found["torch_cuda"] = sys.modules["torch"].version.cuda
    os.sync()
    with open(proof + ".new", "w", encoding="utf-8") as f:
        json.dump(found, f)
        f.flush()
        os.fsync(f.fileno())
    print("EYAS-PROOF " + json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
