"""A deployment as the exact argv of one engine release, and back.

``render`` gives logical argv: its first elements name a program (``vllm serve``) that `provision` maps onto
an environment's bin folder. ``parse`` reads such argv into roles again; what it does not know it keeps.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce

from pydantic import JsonValue

from inventory.catalogue import EngineRelease, Flag, load_catalogue
from inventory.errors import UsageError
from inventory.flags import Item, Lexicon, read_flags, strip_program
from inventory.model import Deployment
from inventory.roles import Node, Roles, roles_of

__all__ = ["Node", "ParsedCommand", "parse", "render", "render_env", "spell"]

#: Argv is readable by every user of the host, so these are refused.
SECRET_FLAGS = frozenset({"--api-key", "--admin-api-key", "--hf-token"})


@dataclass(frozen=True)
class ParsedCommand:
    """Argv as roles. ``spec_extra``: the JSON's other keys; ``extra_args``: the rest."""

    program: tuple[str, ...]
    roles: Roles
    spec_extra: dict[str, JsonValue] = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()


def render(
    deployment: Deployment,
    release: EngineRelease,
    *,
    target_path: str | None = None,
    draft_path: str | None = None,
    node: Node | None = None,
) -> tuple[str, ...]:
    """The argv that serves this deployment. Paths stand for the models where weights are in place already.

    Raises UsageError for what this release can't express (naming versions that can) and for secrets.
    """
    roles = roles_of(deployment, release, target_path=target_path, draft_path=draft_path, node=node)
    extra = _spec_extra(deployment, release)
    _check_extra_args(deployment, release, roles)
    return spell(roles, release, spec_extra=extra, extra_args=deployment.extra_args)


def render_env(deployment: Deployment, release: EngineRelease, *, node: Node | None = None) -> dict[str, str]:
    """The environment the service runs with, without secrets; the deployment's own values win."""
    world = deployment.tensor_parallel * deployment.pipeline_parallel
    here = node or Node(0, "")
    words = {
        "{ranks}": "|".join(str(n) for n in range(world // deployment.nodes)),
        "{address}": here.address,
        "{interface}": here.interface,
    }
    ours = {
        row.name: reduce(lambda text, pair: text.replace(*pair), words.items(), row.value)
        for row in release.env
        if row.device in {None, deployment.device}
        and world >= row.min_world
        and deployment.nodes >= row.min_nodes
    }
    return ours | deployment.env


def spell(
    roles: Roles,
    release: EngineRelease,
    *,
    spec_extra: dict[str, JsonValue] | None = None,
    extra_args: Sequence[str] = (),
) -> tuple[str, ...]:
    """Roles in this release's spelling: program, model, flags in the catalogue's order, the JSON, extras."""
    argv = [*release.program]
    keyed: dict[str, JsonValue] = {}
    for role, flag in release.flags.items():
        if role not in roles:
            continue
        if flag.key:
            keyed[flag.key] = roles[role]
        else:
            argv += _one(flag, roles[role])
    keyed |= spec_extra or {}
    if keyed and release.json_flag:
        argv += [release.json_flag, json.dumps(keyed, separators=(",", ":"))]
    drafting = bool(keyed) or any(r in roles for r in ("draft_model", "num_speculative_tokens"))
    needed = release.with_draft if drafting else ()
    return (*argv, *(w for w in needed if w not in extra_args), *release.always, *extra_args)


def parse(argv: Sequence[str], release: EngineRelease) -> ParsedCommand:
    """Read argv of this release into roles.

    Raises UsageError when it starts no known server, a value is missing, or JSON is broken.
    """
    program, rest = strip_program(argv, load_catalogue().engine(release.engine).program_forms)
    lexicon = Lexicon.of_release(release)
    items, positional = read_flags(rest, lexicon)
    roles: Roles = {}
    extra: dict[str, JsonValue] = {}
    unknown: list[str] = []
    for item in items:
        if item.role:
            roles[item.role] = item.value
        elif item.spec_key:
            extra[item.spec_key] = item.value
        elif item.written[0] not in {*release.always, *release.with_draft}:
            unknown += item.written
    if positional and "model" not in roles:
        roles["model"] = positional.pop(0)
    return ParsedCommand(program, roles, extra, (*unknown, *positional))


def _one(flag: Flag, value: JsonValue) -> list[str]:
    match flag.kind:
        case "positional":
            return [str(value)]
        case "switch":
            return [flag.flag] if value else []
        case "off":
            return [] if value else [flag.flag]
        case "boolean":
            return [flag.flag if value else "--no-" + flag.flag.removeprefix("--")]
    return [flag.flag, str(value)]


def _spec_extra(deployment: Deployment, release: EngineRelease) -> dict[str, JsonValue]:
    extra = deployment.draft.extra
    if not extra:
        return {}
    if release.json_flag is None:
        raise UsageError(
            f"{release.engine} {release.version} has no JSON for draft.extra ({', '.join(extra)})",
            hint="put its own flags into extra_args",
        )
    keys = {f.key: role for role, f in release.flags.items() if f.key}
    for key in extra:
        if key in keys:
            raise UsageError(
                f"draft.extra repeats {key}", hint=f"set draft.{keys[key].removeprefix('draft_')}"
            )
        gone = next((k for k in release.retired_keys if k.key == key), None)
        if gone:
            raise UsageError(
                f"{release.engine} {release.version} refuses the key {key}: {gone.text}",
                hint=f"take {key} out of draft.extra",
            )
    return dict(extra)


def _check_extra_args(deployment: Deployment, release: EngineRelease, roles: Roles) -> None:
    items, _ = read_flags(deployment.extra_args, Lexicon.of_release(release))
    for item in items:
        name = item.written[0].split("=", 1)[0]
        if name.replace("_", "-") in SECRET_FLAGS:
            raise UsageError(
                f"deployment {deployment.name}: {name} in extra_args would show a secret to every user",
                hint="use api_key or hub_token with env:NAME or file:PATH",
            )
        if _repeats(item, roles):
            raise UsageError(
                f"deployment {deployment.name}: extra_args repeats {name}, which the deployment sets itself",
                hint=f"keep one of them: the field for {item.role or 'the draft'}, or extra_args",
            )


def _repeats(item: Item, roles: Roles) -> bool:
    drafting = any(r.startswith(("draft_", "num_spec")) for r in roles)
    return (item.role in roles) or bool(item.spec_key and drafting)
