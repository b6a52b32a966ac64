"""``vllm serve`` flags, from the list that the build wrote for this version. Unknown ones end it, as for real."""

import argparse
import json
from importlib import resources
from typing import Any, NoReturn

__all__ = ["Unrecognized", "options", "parse"]


class Unrecognized(SystemExit):
    """Exit 2, after the real parser's words."""


def options() -> dict[str, Any]:
    """``{"flags": [{"names", "kind", "type", "role"}], "json": [names], "retired_keys": [...]}``."""
    text = (resources.files(__package__ or "vllm") / "options.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def _fail(message: str) -> NoReturn:
    import sys

    commands = "{chat,complete,serve,launch,bench,collect-env,run-batch}"
    sys.stderr.write("usage: vllm [-h] [-v]\n            %s ...\nvllm: error: %s\n" % (commands, message))
    raise Unrecognized(2)


def parse(argv: list[str]) -> dict[str, Any]:
    """Values by role (``port``, ``tensor_parallel``, ...); the speculative configuration as ``spec``."""
    known = options()
    parser = argparse.ArgumentParser("vllm serve", allow_abbrev=False, exit_on_error=False)
    parser.add_argument("model_tag", nargs="?")
    for flag in known["flags"]:
        _add(parser, flag)
    for name in known["json"]:
        parser.add_argument(name, dest="spec", type=json.loads)
    words, dotted = _dotted([_dashed(w) for w in argv], known["json"])
    try:
        found, rest = parser.parse_known_args(words)
    except (argparse.ArgumentError, argparse.ArgumentTypeError) as e:
        _fail(str(e))
    if rest:
        _fail("unrecognized arguments: " + " ".join(rest))
    values = vars(found)
    if dotted:
        values["spec"] = {**(values.get("spec") or {}), **dotted}
    return {name: value for name, value in values.items() if value is not None}


def _add(parser: argparse.ArgumentParser, flag: dict[str, Any]) -> None:
    names, dest = flag["names"], flag["role"]
    if flag["kind"] == "switch":
        parser.add_argument(*names, dest=dest, action="store_true", default=None)
    elif flag["kind"] == "off":
        parser.add_argument(*names, dest=dest, action="store_false", default=None)
    elif flag["kind"] == "boolean":
        parser.add_argument(*names, dest=dest, action=argparse.BooleanOptionalAction)
    else:
        kinds = {"int": _human, "float": float, "json": json.loads, "str": str}
        parser.add_argument(*names, dest=dest, type=kinds[flag["type"]])


def _human(text: str) -> int:
    """Whole numbers, also ``4k`` (thousand) and ``4K`` (1024)."""
    units = {"k": 10**3, "m": 10**6, "g": 10**9, "K": 2**10, "M": 2**20, "G": 2**30}
    return int(float(text[:-1]) * units[text[-1]]) if text[-1:] in units else int(text)


def _dashed(word: str) -> str:
    if not word.startswith("--"):
        return word
    name, equals, value = word.partition("=")
    head, dot, key = name.partition(".")
    return head.replace("_", "-") + dot + key + equals + value


def _dotted(words: list[str], flags: list[str]) -> tuple[list[str], dict[str, Any]]:
    """``--speculative-config.method eagle3`` is a key of the JSON value."""
    kept: list[str] = []
    keys: dict[str, Any] = {}
    rest = iter(words)
    for word in rest:
        name, equals, value = word.partition("=")
        flag, dot, key = name.partition(".")
        if dot and flag in flags:
            text = value if equals else next(rest, "")
            try:
                keys[key.replace("-", "_")] = json.loads(text)
            except ValueError:
                keys[key.replace("-", "_")] = text
        else:
            kept.append(word)
    return kept, keys
