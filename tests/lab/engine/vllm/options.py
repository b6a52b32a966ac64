"""``vllm serve`` flags, from the list that the build wrote for this version; unknown ones end it."""

import argparse
import json
from collections.abc import Callable
from importlib import resources
from typing import Any, NoReturn

__all__ = ["Unrecognized", "options", "parse", "shown"]


class Unrecognized(SystemExit):
    """Exit 2, after the real parser's words."""


def options() -> dict[str, Any]:
    """What the build wrote: ``flags``, ``json`` flags, ``spec_keys``, ``retired_keys``, ``metrics``."""
    text = (resources.files(__package__ or "vllm") / "options.json").read_text(encoding="utf-8")
    return json.loads(text)  # type: ignore[no-any-return]


def _fail(message: str) -> NoReturn:
    import sys

    commands = "{chat,complete,serve,launch,bench,collect-env,run-batch}"
    sys.stderr.write(f"usage: vllm [-h] [-v]\n            {commands} ...\nvllm: error: {message}\n")
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
    if spec := {**_by_role(values, known["spec_keys"]), **(values.get("spec") or {})}:
        values["spec"] = spec
    values["model"] = values.pop("model_tag") or values.get("target") or _fail("no model was named")
    return {name: value for name, value in values.items() if value is not None}


def _by_role(values: dict[str, Any], keys: dict[str, str]) -> dict[str, Any]:
    """Speculation given flag by flag, as old versions and shorthands have it, under the keys of the JSON."""
    spec = {}
    for role, key in keys.items():
        for name in (role, f"short_{role}"):
            if (value := values.pop(name, None)) is not None:
                spec[key] = value
    if spec.get("model") == "[ngram]":
        spec["method"] = "ngram"
        del spec["model"]
    return spec


def shown(values: dict[str, Any]) -> dict[str, Any]:
    """The same under the names that the real server logs."""
    known = options()
    names = {f["role"]: f["names"][0].lstrip("-").replace("-", "_") for f in known["flags"]}
    named = {
        names.get(role, role): value for role, value in values.items() if role not in {"api_key", "spec"}
    }
    return named | ({"speculative_config": values["spec"]} if "spec" in values else {})


def _add(parser: argparse.ArgumentParser, flag: dict[str, Any]) -> None:
    names, dest = flag["names"], flag["role"]
    if flag["kind"] == "switch":
        parser.add_argument(*names, dest=dest, action="store_true", default=None)
    elif flag["kind"] == "off":
        parser.add_argument(*names, dest=dest, action="store_false", default=None)
    elif flag["kind"] == "optional":
        parser.add_argument(*names, dest=dest, nargs="?", const="")
    elif flag["kind"] == "boolean":
        parser.add_argument(*names, dest=dest, action=argparse.BooleanOptionalAction)
    else:
        kinds: dict[str, Callable[[str], Any]] = {
            "int": _human,
            "float": float,
            "json": json.loads,
            "str": str,
        }
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
