"""One folder from host to host, verified on arrival: what rsync is told, and what its end means."""

from collections.abc import Callable
from dataclasses import dataclass

from inventory.errors import ChangeFailed
from provision import layout
from provision.programs import program
from provision.rollout.copykey import CopyKey, allow
from provision.rollout.tree import Copied
from provision.shell import Shell

__all__ = ["Goods", "carry"]

Say = Callable[[str], None]
_COPY_S = 6 * 3600
#: rsync's exit codes that say the other side or the way to it failed.
_SOURCE_FAILED = {5, 10, 12, 23, 30, 35, 255}


@dataclass(frozen=True)
class Goods:
    """A folder many hosts need: its name for people, ``root`` (what a source's key may read), where it lies.

    ``verify`` checks every byte of ``folder + ".partial"`` by hashes that came another way, and gives the
    folder its name; it raises ChangeFailed and leaves only what is right when something is wrong.
    """

    label: str
    root: str
    folder: str
    verify: Callable[[Shell, Say], None]


def carry(source: Shell, target: Shell, key: CopyKey, goods: Goods, say: Say) -> Copied:
    """From source to target. Raises HostUnreachable, naming the end that is lost."""
    try:
        login = allow(source, key, goods.root)
        keys = _host_keys(source)
    except ChangeFailed as e:
        say(f"{goods.label}: nothing can be had from {source.host.name}: {e.message}")
        return Copied.SOURCE
    code = _rsync(source, target, f"{keys}\n{key.private.decode()}".encode(), login, goods, say)
    if code:
        say(f"{goods.label}: copy from {source.host.name} ended with {code}")
        return Copied.SOURCE if code in _SOURCE_FAILED else Copied.TARGET
    try:
        goods.verify(target, say)
    except ChangeFailed as e:
        say(f"{goods.label} from {source.host.name}: {e.message}")
        return Copied.CORRUPT
    return Copied.OK


def _host_keys(source: Shell) -> str:
    """known_hosts lines of a source, read over the connection we already trust."""
    host = source.host
    at = host.address if host.port == 22 else f"[{host.address}]:{host.port}"
    got = source.run(("sh", "-c", "cat /etc/ssh/ssh_host_*_key.pub"), timeout=20)
    return "".join(f"{at} {' '.join(line.split()[:2])}\n" for line in got.stdout.splitlines() if line.strip())


def _rsync(source: Shell, target: Shell, given: bytes, login: str, goods: Goods, say: Say) -> int:
    where = f"{login}@{source.host.address}:{goods.folder.removeprefix(goods.root + '/')}"
    words = (layout.WORK, where, f"{goods.folder}.partial", str(source.host.port))
    options = ("-rt", "--partial", "--timeout=60", "--info=progress2", "--no-human-readable")
    say(f"{goods.label}: copying from {source.host.name}")
    got = target.run(
        ("sh", "-c", program("copy_from.sh").decode(), "sh", *words, *options, "--exclude=.eyas-*"),
        timeout=_COPY_S,
        check=False,
        stdin=given,
        on_line=lambda line: say(f"{goods.label}: {line.strip()}"),
    )
    return got.exit
