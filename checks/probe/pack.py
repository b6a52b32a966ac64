"""Builds the one script that is piped to ``python3 -I -`` on the host.

It holds our host side, what it asks for of pynvml's single file (with its licence header) and the parameters;
nothing is left on the host. Everything is compressed: about 40 kB travel. Most of what a look costs is Python
starting and compiling there, so what isn't needed is neither sent nor imported.
"""

import base64
import json
import re
import zlib
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from checks.probe.prune import pruned

__all__ = ["ARGV", "DEFAULT_FOLDERS", "FALLBACK", "FALLBACK_ARGV", "payload"]

#: The command on the host; the payload is its standard input.
ARGV = ("python3", "-IS", "-")

#: For a host where ARGV ends with 127: what is it, so that the refusal is precise (decode.without_python).
FALLBACK_ARGV = ("sh", "-s")
FALLBACK = b"""\
(. /etc/os-release && printf 'os=%s\\nid=%s\\n' "$PRETTY_NAME" "${ID_LIKE:-} $ID") 2>/dev/null
printf 'arch=%s\\n' "$(uname -m)"
for p in python3.14 python3.13 python3.12 python3.11 python3.10 python3 python python2; do
  command -v "$p" 2>/dev/null | sed 's/^/python=/'
done
"""

_NVML = re.compile(r"\b(?:c_)?nvml\w+|\bNVML\w+")
ONHOST = Path(__file__).parent / "onhost"
DEFAULT_FOLDERS = ("/", "/opt/eyas", "/var/lib/eyas", "/tmp", "/var/log")  # noqa: S108 - a folder of the host, asked about only

_SCRIPT = """\
# eyas probe: reads, prints one document, leaves nothing.
import base64, gc, importlib.machinery, json, os, sys, types, zlib
if sys.version_info < (3, 6):
    sys.exit("the eyas probe needs Python 3.6 or newer, this is " + sys.version.split()[0])
sys.dont_write_bytecode = True
gc.disable()  # it ends within seconds
def unpack(text):
    return zlib.decompress(base64.b64decode(text)).decode("utf-8")
FILES = json.loads(unpack("@FILES@"))
PYNVML = "@PYNVML@"
class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        top, _, part = name.partition(".")
        if top != "eyas_onhost" or (part or "__init__") not in FILES:
            return None
        return importlib.machinery.ModuleSpec(name, Finder, is_package=not part)
    @staticmethod
    def create_module(spec):
        return None
    @staticmethod
    def exec_module(module):
        part = module.__name__.partition(".")[2] or "__init__"
        exec(compile(FILES[part], "<eyas probe: %s>" % part, "exec"), module.__dict__)
def pynvml():
    module = types.ModuleType("pynvml")
    sys.modules["pynvml"] = module
    exec(compile(unpack(PYNVML), "<pynvml>", "exec"), module.__dict__)
    return module
sys.meta_path.insert(0, Finder)
from eyas_onhost.main import main
main(json.loads(unpack("@PARAMS@")), pynvml)
sys.stderr.flush()
os._exit(0)
"""


def payload(params: dict[str, Any] | None = None) -> bytes:
    """The script with its parameters.

    ``folders`` (disk facts), ``files`` (managed files to digest), ``own_folders`` (owner and mode), ``user``
    (default eyas), ``root`` (a prefix before every path, for fixtures), ``time_scale`` (of every limit),
    ``cards_from`` ("nvidia-smi": do not ask NVML).
    """
    given = {"folders": list(DEFAULT_FOLDERS), **(params or {})}
    script = _SCRIPT.replace("@FILES@", _files()).replace("@PYNVML@", _pynvml())
    return script.replace("@PARAMS@", _pack(json.dumps(given))).encode("ascii")


def _pack(text: str) -> str:
    return base64.b64encode(zlib.compress(text.encode(), 9)).decode("ascii")


@cache
def _files() -> str:
    return _pack(json.dumps({p.stem: p.read_text(encoding="utf-8") for p in sorted(ONHOST.glob("*.py"))}))


@cache
def _pynvml() -> str:
    return _pack(pynvml_part())


@cache
def pynvml_part() -> str:
    """Of pynvml, what the host side names; its errors are classes made from every NVML_ERROR_ there is."""
    spec = find_spec("pynvml")
    assert spec is not None
    assert spec.origin is not None
    named = {n for p in ONHOST.glob("*.py") for n in _NVML.findall(p.read_text(encoding="utf-8"))}
    return pruned(Path(spec.origin).read_text(encoding="utf-8"), named, ("NVML_ERROR_",))
