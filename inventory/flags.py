"""Reading flags: argv tokens to items, by a lexicon of one release or of every release of an engine.

As lenient as the engines' own parsers: ``--flag=value``, underscores for dashes, ``--no-x``, JSON values
given whole or key by key (``--speculative-config.model X``), negative numbers as values.
"""

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from pydantic import JsonValue

from inventory.catalogue import Engine, EngineRelease, Flag, Retired, Shorthand
from inventory.errors import UsageError

__all__ = ["Item", "Lexicon", "read_flags", "strip_program"]

_NUMBER = re.compile(r"-\d+(\.\d+)?")
_PYTHON = re.compile(r"(.*/)?python[\d.]*")


@dataclass(frozen=True)
class Item:
    """One flag as read. ``written``: the tokens as they stood. Unknown flags have neither role nor key."""

    written: tuple[str, ...]
    flag: str
    value: JsonValue = None
    role: str | None = None
    spec_key: str | None = None
    retired: Retired | None = None
    #: Why a known flag was not understood.
    why: str = ""

    @property
    def unknown(self) -> bool:
        return not (self.role or self.spec_key or self.retired)


class Lexicon:
    """What each flag means. Later rows win, so the newest release's meaning holds in a merged one."""

    def __init__(
        self, flags: Iterable[Flag], shorthands: Iterable[Shorthand] = (), retired: Iterable[Retired] = ()
    ) -> None:
        self.flags: dict[str, Flag] = {}
        self.keys: dict[str, Flag] = {}
        self.json_flags: set[str] = set()
        self.shorthands: dict[str, Shorthand] = {}
        self.retired = {r.flag: r for r in retired}
        for flag in flags:
            self._add(flag)
        for short in shorthands:
            if short.json_flag:
                self.json_flags.add(short.flag)
            else:
                self.shorthands[short.flag] = short

    def _add(self, flag: Flag) -> None:
        if flag.key:
            self.keys[flag.key] = flag
            self.json_flags.add(flag.flag)
            return
        for name in (flag.flag, *flag.aliases, *([flag.prefix] if flag.prefix else [])):
            self.flags[name] = flag

    @classmethod
    def of_release(cls, release: EngineRelease) -> "Lexicon":
        return cls(release.flags.values(), release.shorthands)

    @classmethod
    def of_engine(cls, engine: Engine) -> "Lexicon":
        """Every spelling any catalogued version of this engine ever had."""
        return cls(engine.flag, engine.shorthand, engine.retired)

    def negated(self, name: str) -> Flag | None:
        """The boolean flag that ``--no-x`` (or ``--disable-x`` for ``--enable-x``) switches off."""
        positive = "--" + name.removeprefix("--no-")
        if name.startswith("--disable-"):
            positive = "--enable-" + name.removeprefix("--disable-")
        flag = self.flags.get(positive)
        return flag if positive != name and flag is not None and flag.kind in {"boolean", "switch"} else None


def strip_program(
    argv: Sequence[str], forms: Iterable[tuple[str, ...]]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Split argv into the program and its arguments. Raises UsageError when it starts none of them."""
    forms = tuple(forms)
    for form in forms:
        head = tuple(argv[: len(form)])
        if len(head) == len(form) and all(map(_same_word, head, form)):
            return head, tuple(argv[len(form) :])
    known = " or ".join(f"`{' '.join(f)} ...`" for f in forms)
    begins = " ".join(argv[:3]) or "nothing"
    raise UsageError(f"this starts no engine: {begins!r}", hint=f"a command that serves begins {known}")


def _same_word(given: str, wanted: str) -> bool:
    if wanted == "python":
        return bool(_PYTHON.fullmatch(given))
    return given == wanted or given.rsplit("/", 1)[-1] == wanted


def read_flags(tokens: Sequence[str], lexicon: Lexicon) -> tuple[list[Item], list[str]]:
    """Items in order, and the words that belong to no flag.

    A value of another type than its flag's ("auto" for a number) leaves the flag unknown, with a reason.
    Raises UsageError for a missing value and for broken JSON.
    """
    items: list[Item] = []
    positional: list[str] = []
    at = 0
    while at < len(tokens):
        token = tokens[at]
        if not token.startswith("-") or len(token) == 1 or _NUMBER.fullmatch(token):
            if positional and items and items[-1].unknown:
                items[-1] = replace(items[-1], written=(*items[-1].written, token))
            else:
                positional.append(token)
            at += 1
            continue
        following = tokens[at + 1] if at + 1 < len(tokens) else None
        found, used = _read(token, following, lexicon)
        items += found
        at += used
    return items, positional


def _read(token: str, following: str | None, lexicon: Lexicon) -> tuple[list[Item], int]:
    name, equals, inline = token.partition("=")
    name = _dashes(name)
    base, _, key = name.partition(".")
    if flag := lexicon.negated(name):
        return [Item((token,), name, value=False, role=flag.role)], 1
    row = lexicon.flags.get(name) or lexicon.shorthands.get(name)
    if isinstance(row, Flag) and row.kind in {"switch", "boolean", "off"}:
        return [Item((token,), name, value=row.kind != "off", role=row.role)], 1
    retired = lexicon.retired.get(name)
    takes = _takes_value(retired, following) if retired and row is None else None
    if takes is False and not equals:
        return [Item((token,), name, retired=retired)], 1
    if row is None and retired is None and base not in lexicon.json_flags:
        return _unknown(token, name, equals, following)
    value, used = (inline, 1) if equals else (_needed(name, following), 2)
    written = (token,) if equals else (token, value)
    if base in lexicon.json_flags:
        return _spec_items(written, base, key, value, lexicon), used
    if row is not None:
        return [_valued(written, name, value, row)], used
    return [Item(written, name, value, retired=retired)], used


def _valued(written: tuple[str, ...], name: str, value: str, row: Flag | Shorthand) -> Item:
    try:
        return Item(written, name, _typed(value, row.type), role=row.role)
    except ValueError:
        return Item(written, name, value, why=f"{value} is no {row.type}: kept as it stands")


def _dashes(name: str) -> str:
    base, dot, key = name.partition(".")
    return base.replace("_", "-") + dot + key


def _takes_value(row: Retired, following: str | None) -> bool:
    if row.takes_value == "optional":
        return following is not None and not following.startswith("-")
    return row.takes_value


def _unknown(token: str, name: str, equals: str, following: str | None) -> tuple[list[Item], int]:
    alone = (
        bool(equals) or following is None or (following.startswith("-") and not _NUMBER.fullmatch(following))
    )
    if alone or following is None:
        return [Item((token,), name)], 1
    return [Item((token, following), name, following)], 2


def _needed(name: str, following: str | None) -> str:
    if following is None or (following.startswith("--") and len(following) > 2):
        raise UsageError(f"{name} has no value", hint=f"write it as {name} VALUE")
    return following


def _human_int(value: str) -> int:
    """Read "16k" as 16000 and "16K" as 16384, as vLLM does."""
    found = re.fullmatch(r"(-?\d[\d_]*(?:\.\d+)?)([kKmMgG]?)", value)
    if not found:
        raise ValueError(value)
    scale = {"": 1, "k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}[found[2]]
    return int(float(found[1]) * scale) if "." in found[1] or scale != 1 else int(found[1])


def _typed(value: str, kind: str) -> JsonValue:
    """Raises ValueError when the value is of another type."""
    if kind == "int":
        return _human_int(value)
    if kind == "float":
        return float(value)
    if kind == "json":
        decoded: JsonValue = json.loads(value)
        return decoded
    return value


def _spec_items(written: tuple[str, ...], flag: str, dotted: str, value: str, lexicon: Lexicon) -> list[Item]:
    pairs = {dotted: _loose(value)} if dotted else _object(flag, value)
    items = []
    for raw, inner in pairs.items():
        key = raw.replace("-", "_")
        row = lexicon.keys.get(key)
        role = row.role if row else None
        items.append(Item(written, f"{flag}.{key}", inner, role=role, spec_key=None if role else key))
    return items


def _loose(value: str) -> JsonValue:
    try:
        decoded: JsonValue = json.loads(value)
    except ValueError:
        return value
    return decoded


def _object(flag: str, value: str) -> dict[str, JsonValue]:
    try:
        decoded = json.loads(value)
    except ValueError as e:
        raise UsageError(
            f"the value of {flag} is not JSON: {e}",
            hint=f"quote it whole for the shell: {flag} '{{\"method\": ...}}'",
        ) from e
    if not isinstance(decoded, dict):
        raise UsageError(f"the value of {flag} is not a JSON object: {value[:80]}", hint="it begins with {")
    return decoded
