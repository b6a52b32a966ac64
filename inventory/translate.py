"""A command someone found, of any age and either engine, as argv and deployment for the release wanted.

``translate`` never runs anything and never needs the network: what each flag was and is comes from the engine
catalogue, which repositories exist from the catalogue of pairs. Every difference becomes a note.
"""

import difflib
import re
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from inventory.adapt import adapt_draft
from inventory.catalogue import Catalogue, Engine, EngineRelease, load_catalogue
from inventory.command import render, spell
from inventory.errors import UsageError
from inventory.flags import Item, Lexicon, read_flags, strip_program
from inventory.model import Deployment
from inventory.roles import FIELDS, Node, roles_of
from inventory.snippet import Command, Note, Snippet, read_snippet
from inventory.surroundings import take_environment, take_secrets
from inventory.work import Work

__all__ = ["Note", "Translation", "translate"]

_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})


@dataclass(frozen=True)
class Translation:
    """``argv`` says what the command said; ``deployment`` is the same as a file eyas provisions."""

    argv: tuple[str, ...]
    deployment: Deployment
    notes: tuple[Note, ...]

    def as_json(self) -> dict[str, Any]:
        """The document of ``invoke translate --json``."""
        return {
            "schema": 1,
            "argv": list(self.argv),
            "deployment": self.deployment.model_dump(mode="json", exclude_defaults=True),
            "notes": [{"kind": n.kind, "flag": n.flag, "text": n.text} for n in self.notes],
        }


def translate(
    text: str, *, engine: str | None = None, engine_version: str | None = None, name: str | None = None
) -> Translation:
    """Read ``text`` and say it for ``engine`` (default: its own) at ``engine_version`` (default: the newest).

    Raises UsageError when no command in it serves a model, or what it says can't be said there.
    """
    catalogue = load_catalogue()
    snippet = read_snippet(text)
    command, source, args, form = _serving(snippet, catalogue)
    target = catalogue.engine(engine or source.engine)
    version = engine_version if engine_version not in {None, "auto"} else target.published[-1]
    work = Work(
        source=source, release=catalogue.release(target.engine, version or ""), notes=[*snippet.notes]
    )
    if work.release.note:
        work.note("other", "", work.release.note)
    _read(work, args)
    _program_note(work, form)
    work.source_release = _source_release(catalogue, work, snippet)
    take_secrets(work, command)
    take_environment(work, command)
    _retired(work)
    adapt_draft(work)
    _fields(work)
    _renamed(work)
    _defaults(work)
    deployment = _deployment(work, name)
    return Translation(_argv(work, deployment), deployment, tuple(dict.fromkeys(work.notes)))


# --- finding and reading the command ----------------------------------------------------------------------


def _serving(
    snippet: Snippet, catalogue: Catalogue
) -> tuple[Command, Engine, tuple[str, ...], tuple[str, ...]]:
    """The first command that starts a server; its engine, arguments and program form."""
    for command in snippet.commands:
        for engine in catalogue.engines.values():
            image = command.image.partition("@")[0].partition(":")[0]
            if image.endswith(engine.images) and (not command.words or command.words[0].startswith("-")):
                return command, engine, command.words, engine.program_forms[0]
            try:
                form, args = strip_program(command.words, engine.program_forms)
            except UsageError:
                continue
            return command, engine, args, form
    begins = "; ".join(" ".join(c.words[:3]) for c in snippet.commands[:3])[:200]
    forms = [" ".join(f) for e in catalogue.engines.values() for f in e.program_forms]
    raise UsageError(
        f"no command here starts an engine; it begins: {begins or 'nothing'}",
        hint=f"a command that serves begins with one of: {'; '.join(forms)}",
    )


def _read(work: Work, args: tuple[str, ...]) -> None:
    items, positional = read_flags(args, Lexicon.of_engine(work.source))
    for item in items:
        _keep(work, item)
    if positional and "model" not in work.roles:
        work.roles["model"] = positional.pop(0)
    for word in positional:
        work.note("other", word, "belongs to no flag; left out")
    if not isinstance(work.roles.get("model"), str):
        raise UsageError(
            "the command names no model", hint="vllm serve MODEL ..., or --model-path MODEL for SGLang"
        )


def _keep(work: Work, item: Item) -> None:
    slot = item.role or item.spec_key or item.flag
    if slot in work.seen and work.seen[slot].written != item.written:
        work.note("other", item.flag, "given twice; the last one counts")
        work.unknown = [u for u in work.unknown if u.flag != item.flag]
    work.seen[slot] = item
    if item.role:
        work.roles[item.role] = item.value
    elif item.spec_key:
        work.extra[item.spec_key] = item.value
    elif item.retired:
        work.retired.append(item)
    else:
        work.unknown.append(item)


def _program_note(work: Work, form: tuple[str, ...]) -> None:
    given = " ".join(w.rsplit("/", 1)[-1] for w in form)
    plain = re.sub(r"^python[\d.]*", "python", given)
    if work.same_engine and plain != " ".join(work.release.program):
        work.note("renamed", plain, f"now {' '.join(work.release.program)}")


def _source_release(catalogue: Catalogue, work: Work, snippet: Snippet) -> EngineRelease:
    """The release the snippet names, else the newest that knows every flag given: its defaults held."""
    named = snippet.versions.get(work.source.engine)
    if named in work.source.published:
        return catalogue.release(work.source.engine, str(named))
    flags = [i.flag for i in work.seen.values() if not i.unknown]
    for version in reversed(work.source.published):
        release = catalogue.release(work.source.engine, version)
        if all(release.knows(flag) for flag in flags):
            return release
    return catalogue.release(work.source.engine, work.source.published[-1])


# --- flags ------------------------------------------------------------------------------------------------


def _retired(work: Work) -> None:
    for item in work.retired:
        row = item.retired
        if row is None:
            continue
        if not work.same_engine:
            work.note("removed", item.flag, f"{work.release.engine} has nothing like it")
        elif row.holds(work.version):
            work.added += item.written
        elif row.extra_key and work.release.json_flag:
            value = int(str(item.value)) if row.extra_type == "int" else item.value
            work.extra.setdefault(row.extra_key, value)
            work.note(row.kind, item.flag, row.text)
        else:
            work.note(row.kind, item.flag, row.text)
            if row.becomes:
                tail = [str(item.value)] if row.takes_value and len(row.becomes) == 1 else []
                work.added += [*row.becomes, *tail]
    for item in work.unknown:
        _unknown(work, item)


def _unknown(work: Work, item: Item) -> None:
    """A flag no role stands for: kept where this release has it, or where nobody knows."""
    rows = [k for k in work.source.known if _positive(item.flag) in k.flags]
    if not work.same_engine:
        work.note("removed", item.flag, f"a flag of {work.source.engine}; no equivalent is catalogued")
    elif any(row.holds(work.version) for row in rows):
        work.added += item.written
    elif rows:
        work.note("removed", item.flag, f"{work.here} lacks it (seen in {work.source.engine} {rows[0].spec})")
    else:
        names = work.release.others | {f.flag for f in work.release.flags.values()}
        near = next(iter(difflib.get_close_matches(item.flag, sorted(names), 1, cutoff=0.85)), "")
        work.added += item.written
        text = item.why or "not in the catalogue: kept as it stands"
        work.note("other", item.flag, f"{text}; did you mean {near}?" if near and not item.why else text)


def _positive(flag: str) -> str:
    return "--" + flag.removeprefix("--no-") if flag.startswith("--no-") else flag


def _fields(work: Work) -> None:
    """Roles that are plain fields of a deployment; those the other engine lacks are named and left out."""
    for role, field in FIELDS.items():
        if role not in work.roles:
            continue
        value = work.roles[role]
        if role == "memory_fraction" and not work.same_engine:
            work.drop(role, "removed", _FRACTION.format(there=work.release.engine))
            continue
        if role not in work.release.flags:
            work.drop(role, "removed", f"{work.here} has nothing like it")
            continue
        spelled = next((v for v in work.release.values if (v.role, v.given) == (role, value)), None)
        if spelled and not work.same_engine:
            work.note("renamed", work.flag(role), f"{value} is {spelled.becomes} here")
            value = spelled.becomes
        work.want[field] = value
    if "served_model_name" in work.roles:
        work.want["served_model_name"] = work.roles["served_model_name"]
    if work.roles.get("device") == "cpu":
        work.want["device"] = "cpu"
    if isinstance(nodes := work.roles.get("nodes"), int) and nodes > 1:
        work.want |= {"nodes": nodes, "distributed": "native"}


_FRACTION = (
    "the engines count different things (vLLM: everything, SGLang: weights and KV only); {there} sizes it"
)


def _renamed(work: Work) -> None:
    """A note for each role whose spelling here differs from the one given."""
    for role, item in work.seen.items():
        if item.role is None or role not in work.release.flags or role in work.settled:
            continue
        flag = work.release.flags[role]
        if flag.kind == "positional" or work.release.spells(role, item.flag):
            continue
        abbreviated = flag.prefix == item.flag
        text = f"an abbreviation; written out it is {flag.where}" if abbreviated else f"now {flag.where}"
        work.note("renamed", item.flag, text)


def _defaults(work: Work) -> None:
    """What the engine takes unsaid, where that changed between the command's time and the release wanted."""
    then = work.source_release
    if not work.same_engine or then is None:
        return _other_defaults(work)
    method = work.draft.get("method", "none")
    now = {d.name: d for d in work.release.default_rows}
    for row in then.default_rows:
        after = now.get(row.name)
        relevant = row.role and row.role not in work.roles and row.method in {None, method}
        if relevant and after and after.value != row.value and work.applies(row.name):
            flag = work.release.flags.get(str(row.role))
            work.note(
                "default-changed",
                (flag.key or flag.flag) if flag else row.name,
                f"unsaid, {row.name} was {row.value} in {then.version} and is {after.value} "
                f"in {work.release.version}",
            )
    return None


def _other_defaults(work: Work) -> None:
    limit = work.release.defaults.get("max_num_seqs_with_speculation")
    if limit and work.draft and "max_num_seqs" not in work.roles:
        flag = work.release.flags["max_num_seqs"].flag
        work.note(
            "default-changed", flag, f"with speculation {work.release.engine} runs {limit} requests at once"
        )
    if "port" not in work.roles and work.source_release:
        work.want["port"] = work.source_release.defaults["port"]
        work.said.add("port")
        work.note(
            "default-changed",
            "--port",
            f"{work.source.engine} listens on {work.want['port']} unless told; kept, now written out",
        )


# --- result -----------------------------------------------------------------------------------------------


def _deployment(work: Work, name: str | None) -> Deployment:
    _network(work)
    model = str(work.roles["model"])
    want = {
        "name": name or _slug(model, str(work.draft.get("method", ""))),
        "engine": work.release.engine,
        "engine_version": work.release.version,
        "target": _model(model, work.roles.get("revision")),
        **work.want,
        **({"draft": work.draft} if work.draft else {}),
        "extra_args": tuple(work.added),
    }
    try:
        deployment = Deployment.model_validate(want)
    except ValidationError as e:
        first = e.errors()[0]
        where = ".".join(str(p) for p in first["loc"])
        raise UsageError(
            f"this command makes no deployment: {where}: {first['msg']}",
            hint="correct the value in the command",
        ) from e
    return deployment


def _network(work: Work) -> None:
    host = work.roles.get("host", work.source_release.defaults.get("host") if work.source_release else None)
    if host in _LOOPBACK or "api_key" in work.want:
        return
    work.want.pop("host", None)
    work.note(
        "other",
        "--host",
        f"the command listens on {host} for everyone; the deployment stays on 127.0.0.1 without api_key",
    )


def _model(label: str, revision: Any) -> dict[str, Any]:
    if label.startswith(("/", "./", "../", "~")):
        return {"path": label}
    return {"repo": label} | ({"revision": revision} if revision else {})


def _slug(model: str, method: str) -> str:
    words = model.rstrip("/").rsplit("/", 1)[-1] + (f"-{method}" if method else "")
    return re.sub(r"[^a-z0-9._-]+", "-", words.lower().replace("_", "-")).strip("-.")[:63] or "translated"


def _argv(work: Work, deployment: Deployment) -> tuple[str, ...]:
    """The deployment's argv, saying host and port only where the command did."""
    node = None
    if deployment.nodes > 1:
        rank, head, port = (work.roles.get(r) for r in ("node_rank", "master_address", "master_port"))
        joined = str(work.roles.get("master_address_port") or f"{head or 'HEAD'}:{port or 29501}")
        address, _, number = joined.rpartition(":")
        node = Node(int(str(rank or 0)), address, int(number))
    render(deployment, work.release, node=node)
    roles = roles_of(deployment, work.release, node=node)
    for role in ("host", "port"):
        if role in work.roles:
            roles[role] = work.roles[role]
        elif role not in work.said:
            roles.pop(role, None)
    release = replace(work.release, always=())
    return spell(roles, release, spec_extra=dict(deployment.draft.extra), extra_args=deployment.extra_args)
