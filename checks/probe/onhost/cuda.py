"""The CUDA toolkit beside the driver: homes, nvcc, libraries the loader knows."""

import os
import re

from .base import Look, LookFailed, attempt

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

LIBRARIES = re.compile(r"^\s*(lib(?:cudart|nccl|cuda|cublas|nvidia-ml)\.so\S*) .*=> (\S+)", re.MULTILINE)


def collect(look: Look) -> "dict[str, Any]":
    home = attempt(_home, look)
    nvcc = attempt(_nvcc, look, home)
    found = attempt(_libraries, look)
    versions = sorted({n.split(".so.")[-1] for n in found if n.startswith("libcudart.so.")})
    gone = isinstance(found, dict) and "missing" in found
    return {
        "cuda": {
            "home": home,
            "toolkits": attempt(_toolkits, look),
            "nvcc": nvcc,
            "nvcc_version": attempt(_nvcc_version, look, nvcc) if isinstance(nvcc, str) else None,
            "lib_versions": found if gone else versions,
            "libraries": found,
        }
    }


def _home(look: Look) -> "str | None":
    for path in (os.environ.get("CUDA_HOME"), os.environ.get("CUDA_PATH"), "/usr/local/cuda"):
        if path and look.exists(path):
            return path
    return None


def _toolkits(look: Look) -> "list[str]":
    return ["/usr/local/" + n for n in look.names("/usr/local") if re.match(r"cuda-\d", n)]


def _nvcc(look: Look, home: "Any") -> "str | None":
    if isinstance(home, str) and look.exists(home + "/bin/nvcc"):
        return home + "/bin/nvcc"
    return look.which("nvcc")


def _nvcc_version(look: Look, nvcc: str) -> str:
    look.search += ":" + os.path.dirname(look.path(nvcc))
    match = re.search(r"release ([\d.]+)", look.run("nvcc", "--version"))
    if not match:
        raise LookFailed("nvcc --version names no release")
    return match.group(1)


def _libraries(look: Look) -> "dict[str, str]":
    return dict(LIBRARIES.findall(look.run("ldconfig", "-p")))
