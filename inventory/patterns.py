"""Ansible host patterns over one inventory: names, groups, ranges, wildcards, ``!x``, ``&x``, ``~regex``.

Three deliberate differences from Ansible, all towards safety: a part that matches nothing is an error
instead of a warning (a misspelt ``!gpu07`` must not touch gpu07), an empty part is an error, and
``gpu[01:08]`` means the eight names unless ``gpu`` is a group, where it is Ansible's slice of that group.
"""

import re
from collections.abc import Mapping, Sequence
from fnmatch import translate
from ipaddress import ip_address

from inventory.errors import InventoryError, UsageError
from inventory.nearest import did_you_mean
from inventory.ranges import expand, has_range

__all__ = ["PLAIN", "match", "split"]

#: A name that may fall through to ssh_config: not only digits (that would be a port split off a name).
PLAIN = re.compile(r"(?!\d+$)(?:[A-Za-z0-9_][\w.-]*@)?[A-Za-z0-9_][\w.-]*", re.ASCII)

_WORD = re.compile(r"(?:[^\s:\[\]]|\[[^\]]*\])+")
_SLICE = re.compile(r"(?P<group>.+)\[(?:(?P<one>-?\d+)|(?P<first>\d*):(?P<last>\d*))\]")
_EXAMPLE = "name hosts, groups, ranges gpu[01:08], globs gpu*, !excluded, &intersected, ~regex"


def split(pattern: str | None) -> list[str]:
    """The parts of a pattern, in order. Raises UsageError for nothing, for an empty part, for a flag."""
    if pattern is None or not pattern.strip():
        raise UsageError(
            "no host is selected: the pattern is empty", hint='name hosts, or "all" for every one'
        )
    parts = [p.strip() for p in pattern.split(",")]
    if len(parts) == 1:
        parts = [pattern.strip()] if _whole(pattern.strip()) else _colons(pattern)
    for part in parts:
        if not part.lstrip("!&") or part == "~":
            raise UsageError(f"pattern {pattern!r} has an empty part", hint="is a variable in it unset?")
        if part.startswith("-"):
            raise UsageError(f"pattern {pattern!r}: {part!r} looks like an option", hint=_EXAMPLE)
    return parts


def _whole(part: str) -> bool:
    """Regexes and IPv6 addresses hold colons that separate nothing."""
    return part.lstrip("!&").startswith("~") or _is_address(part.lstrip("!&").strip("[]"))


def _colons(pattern: str) -> list[str]:
    parts = _WORD.findall(pattern)
    if ":".join(parts) != pattern.strip():
        raise UsageError(f"pattern {pattern!r} cannot be read", hint=_EXAMPLE)
    return parts


def _is_address(text: str) -> bool:
    try:
        ip_address(text)
    except ValueError:
        return False
    return True


def match(parts: Sequence[str], hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Names of the matching hosts, each once, in the order of the parts; plain unknown names pass through.

    Unions come first, then intersections, then exclusions, wherever they stand. Only ``!`` and ``&`` parts
    start from every host. Raises UsageError naming the part that matches nothing.
    """
    unions = [p for p in parts if p[0] not in "!&"]
    found = dict.fromkeys(
        n for p in unions for n in _names(p, hosts, groups, fall_through=True)
    ) or dict.fromkeys(hosts if not unions else [])
    for part in parts:
        if part[0] == "&":
            keep = set(_names(part[1:], hosts, groups))
            found = {n: None for n in found if n in keep}
    for part in parts:
        if part[0] == "!":
            drop = set(_names(part[1:], [*hosts, *found], groups))
            found = {n: None for n in found if n not in drop}
    if not found:
        raise UsageError(f"pattern {','.join(parts)!r} leaves no host", hint="see: invoke hosts")
    return list(found)


def _names(
    part: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]], *, fall_through: bool = False
) -> list[str]:
    if part in hosts:
        return [part]
    if part in groups:
        return _some(part, list(groups[part]), "group {!r} has no hosts", hosts, groups)
    if (cut := _SLICE.fullmatch(part)) and cut["group"] in groups:
        return _some(part, _slice(cut, groups[cut["group"]]), "{!r} is outside its group", hosts, groups)
    if has_range(part):
        return _ranged(part, hosts, groups, fall_through=fall_through)
    if part[0] == "~" or re.search(r"[*?\[]", part):
        return _some(part, _by_regex(part, hosts, groups), "nothing matches {!r}", hosts, groups)
    if fall_through and (PLAIN.fullmatch(part) or _is_address(part.strip("[]"))):
        return [part.strip("[]")]
    return _some(part, [], "no host or group is named {!r}", hosts, groups)


def _some(
    part: str, names: list[str], why: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]
) -> list[str]:
    if not names:
        known = [n for n in (*groups, *hosts) if n != part and groups.get(n, (n,))]
        hint = did_you_mean(part, known) or "see: invoke hosts"
        raise UsageError(why.format(part), hint=hint)
    return names


def _slice(cut: re.Match[str], members: Sequence[str]) -> list[str]:
    """Ansible's subscript: both ends included, negative counts from the end."""
    if cut["one"] is not None:
        at = int(cut["one"])
        return [members[at]] if -len(members) <= at < len(members) else []
    first = int(cut["first"] or 0)
    return list(members[first : int(cut["last"]) + 1] if cut["last"] else members[first:])


def _ranged(
    part: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]], *, fall_through: bool
) -> list[str]:
    """A range of names is all in the inventory or, like a plain name, all outside it."""
    try:
        names = expand(part)
    except InventoryError as e:
        raise UsageError(e.message, hint=e.hint) from e
    missing = [n for n in names if n not in set(hosts)]
    if not missing:
        return names
    if fall_through and len(missing) == len(names) and all(PLAIN.fullmatch(n) for n in names):
        return names
    shown = ", ".join(missing[:4]) + (", ..." if len(missing) > 4 else "")
    return _some(shown, [], f"{part}: not in the inventory: {{}}", hosts, groups)


def _by_regex(part: str, hosts: Sequence[str], groups: Mapping[str, Sequence[str]]) -> list[str]:
    """Groups and hosts whose name matches; a ``~regex`` is anchored at the start only, as in Ansible."""
    try:
        compiled = re.compile(part[1:] if part[0] == "~" else translate(part))
    except re.error as e:
        raise UsageError(f"pattern {part!r} is not a regular expression: {e}", hint=_EXAMPLE) from e
    from_groups = [h for g, members in groups.items() if compiled.match(g) for h in members]
    return list(dict.fromkeys([*from_groups, *(h for h in hosts if compiled.match(h))]))
