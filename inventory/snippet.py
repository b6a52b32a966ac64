"""A shell snippet someone found, read into commands without running anything.

Reads what people paste: continuations, comments, prompts, quotes, assignments and ``export``, wrappers such
as ``sudo`` or ``docker run``, typographic quotes and dashes. Whatever a shell would have done otherwise than
the author meant becomes a note.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from inventory.errors import UsageError
from inventory.shellwords import Token, shell_tokens

__all__ = ["LONGEST", "Command", "Note", "NoteKind", "Snippet", "read_snippet"]

NoteKind = Literal["removed", "renamed", "no-effect", "default-changed", "missing-repo", "shell", "other"]

#: Nobody types a longer command; anything beyond is a wrong file.
LONGEST = 200_000

_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PROMPT = re.compile(r"^\s*(?:\([\w.-]+\)\s*)?(?:[\w.-]+@[\w.-]+[^\s$#]*)?[$%❯]\s+")
_USER_PROMPT = re.compile(r"^\s*[\w.-]+@[\w.-]+:[^\s$#]*#\s+")
_VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)(?::?-([^}]{0,200}))?\})")
_TYPOGRAPHY = str.maketrans(
    {"“": '"', "”": '"', "„": '"', "‘": "'", "’": "'", "\u00a0": " ", "\u200b": "", "\ufeff": ""}
)
_LONG_DASH = re.compile(r"(?<=\s)[\u2013\u2014](?=\w)")  # noqa: RUF100
_PIP = re.compile(r"(.*/)?pip[\d.]*")

#: Programs that run the program after them, with their options that take a value.
_WRAPPERS: dict[str, frozenset[str]] = {
    "sudo": frozenset({"-u", "--user", "-g"}),
    "env": frozenset({"-u", "-C"}),
    "nohup": frozenset(),
    "time": frozenset(),
    "exec": frozenset({"-a"}),
    "nice": frozenset({"-n"}),
    "ionice": frozenset({"-c", "-n"}),
    "stdbuf": frozenset({"-o", "-i", "-e"}),
    "numactl": frozenset(),
    "taskset": frozenset({"-c"}),
    "setsid": frozenset(),
    "uvx": frozenset({"--with", "--from", "--python"}),
}
_WRAPPER_PAIRS = {("uv", "run"), ("poetry", "run"), ("conda", "run"), ("pixi", "run")}
_PAIR_OPTIONS = frozenset({"--with", "-n", "-p", "--python", "--project", "--directory", "-e"})
_DOCKER_SWITCHES = frozenset(
    {
        "--rm",
        "--init",
        "--privileged",
        "--detach",
        "--interactive",
        "--tty",
        "--read-only",
        "--no-healthcheck",
    }
)


@dataclass(frozen=True)
class Note:
    """One thing the reader of a translation must know. ``flag`` is what it is about."""

    kind: NoteKind
    flag: str
    text: str


@dataclass(frozen=True)
class Command:
    """One simple command: words as the shell would pass them, the environment set for it, redirects."""

    words: tuple[str, ...]
    env: dict[str, str] = field(default_factory=dict)
    redirects: tuple[tuple[str, str], ...] = ()
    image: str = ""


@dataclass(frozen=True)
class Snippet:
    commands: tuple[Command, ...]
    notes: tuple[Note, ...] = ()
    #: Versions the snippet names: {"vllm": "0.6.2"} from a pip line or an image tag.
    versions: dict[str, str] = field(default_factory=dict)


def read_snippet(text: str) -> Snippet:
    """Commands, notes and named versions of a snippet.

    Raises UsageError for an empty, over-long or unfinished snippet (an open quote).
    """
    if len(text) > LONGEST:
        raise UsageError(
            f"{len(text)} characters are no command",
            hint=f"give the snippet alone, up to {LONGEST} characters",
        )
    if not text.strip():
        raise UsageError("the command is empty", hint='invoke translate --command "vllm serve ..."')
    notes: list[Note] = []
    clean = _clean(text, notes)
    commands = [_unwrap(c, notes) for c in _commands(shell_tokens(clean), notes)]
    commands = [c for c in commands if c.words]
    return Snippet(tuple(commands), _once([*notes, *_pip_notes(commands)]), _versions(commands))


# --- text -------------------------------------------------------------------------------------------------


def _clean(text: str, notes: list[Note]) -> str:
    plain = text.replace("\r\n", "\n").replace("\r", "\n")
    fixed = _LONG_DASH.sub("--", plain.translate(_TYPOGRAPHY))
    if fixed != plain:
        notes.append(Note("shell", "", "typographic quotes, dashes or spaces were read as plain ones"))
    lines = [line for line in fixed.split("\n") if not line.lstrip().startswith("```")]
    return _joined([_USER_PROMPT.sub("", _PROMPT.sub("", line)) for line in lines], notes)


def _joined(lines: Sequence[str], notes: list[Note]) -> str:
    """Lines with their continuations put right, where a shell would have cut the command in two."""
    out: list[str] = []
    for line in lines:
        stripped = line.rstrip()
        if stripped.endswith("\\") and stripped != line:
            notes.append(Note("shell", "\\", "a space after the backslash ends the command there"))
        continued = bool(out) and out[-1].endswith("\\") and not out[-1].endswith("\\\\")
        if out and continued:
            line = re.sub(r"^\s*>\s+", "", line)  # noqa: PLW2901 - the prompt of a continued line
        elif out and out[-1].strip() and re.match(r"\s*--?[A-Za-z]", line):
            notes.append(Note("shell", line.split()[0], "the line before it lacks a backslash at its end"))
            out[-1] += " \\"
        out.append(line.rstrip() if stripped.endswith("\\") else line)
    return "\n".join(out)


# --- commands ---------------------------------------------------------------------------------------------


def _commands(tokens: Iterator[Token], notes: list[Note]) -> list[Command]:
    """Simple commands in order; assignments and exports hold for the later ones."""
    shell: dict[str, str] = {}
    exported: dict[str, str] = {}
    commands: list[Command] = []
    for group in _groups(tokens):
        words, redirects = _expand(group, shell | exported, notes)
        own, rest = _assignments(words)
        if rest[:1] in (["export"], ["set"]):
            exported |= _assignments(rest[1:])[0]
        elif not rest:
            shell |= own
        else:
            commands.append(Command(tuple(rest), exported | own, tuple(redirects)))
    return commands


def _groups(tokens: Iterator[Token]) -> Iterator[list[Token]]:
    group: list[Token] = []
    for token in tokens:
        if token.kind == "operator":
            if group:
                yield group
            group = []
        else:
            group.append(token)
    if group:
        yield group


def _expand(
    group: Sequence[Token], known: dict[str, str], notes: list[Note]
) -> tuple[list[str], list[tuple[str, str]]]:
    words: list[str] = []
    redirects: list[tuple[str, str]] = []
    pending = ""
    for token in group:
        if token.kind == "redirect":
            if token.glued and words and words[-1].isdigit():
                words.pop()
            pending = token.text
            continue
        text = "".join(_variables(p, known, notes) if live else p for p, live in token.parts)
        if pending:
            redirects.append((pending, text))
            pending = ""
        elif text or token.quoted:
            words.append(text)
    return words, redirects


def _variables(text: str, known: dict[str, str], notes: list[Note]) -> str:
    def value(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name in known:
            return known[name]
        if found[3] is not None:
            return found[3]
        notes.append(Note("shell", f"${name}", f"{name} is not set in the snippet; left as it stands"))
        return found[0]

    return _VARIABLE.sub(value, text)


def _assignments(words: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    env: dict[str, str] = {}
    for at, word in enumerate(words):
        found = _ASSIGNMENT.fullmatch(word)
        if found is None:
            return env, list(words[at:])
        if found[1] == "ExecStart":
            return env, [found[2], *words[at + 1 :]]
        env[found[1]] = found[2]
    return env, []


# --- wrappers ---------------------------------------------------------------------------------------------


def _unwrap(command: Command, notes: list[Note]) -> Command:
    words, env = list(command.words), dict(command.env)
    while words:
        name = words[0].rsplit("/", 1)[-1]
        if name in _WRAPPERS:
            words = _skip_options(words[1:], _WRAPPERS[name])
            words = (
                words[1:] if name == "taskset" and words and re.fullmatch(r"[\d,x-]+", words[0]) else words
            )
        elif tuple(words[:2]) in _WRAPPER_PAIRS:
            words = _skip_options(words[2:], _PAIR_OPTIONS)
        elif name == "timeout" and len(words) > 2:
            words = _skip_options(words[1:], frozenset({"-k", "-s"}))[1:]
        elif name in {"docker", "podman", "nerdctl"} and "run" in words[1:3]:
            return _container(replace(command, words=tuple(words), env=env), notes)
        else:
            break
        more, words = _assignments(words)
        env |= more
    return replace(command, words=tuple(words), env=env)


def _skip_options(words: list[str], with_value: frozenset[str]) -> list[str]:
    while words and words[0].startswith("-"):
        words = words[2:] if words[0] in with_value else words[1:]
    return words


def _container(command: Command, notes: list[Note]) -> Command:
    words = list(command.words[command.words.index("run") + 1 :])
    env = dict(command.env)
    while words and words[0].startswith("-"):
        option, _, inline = words[0].partition("=")
        alone = bool(inline) or option in _DOCKER_SWITCHES or re.fullmatch(r"-[dit]+", option)
        value = inline or (words[1] if not alone and len(words) > 1 else "")
        if option in {"-e", "--env"} and "=" in value:
            name, _, given = value.partition("=")
            env[name] = given
        words = words[1:] if alone else words[2:]
    if not words:
        return replace(command, words=(), env=env)
    text = "the container is left out: this argv runs in an environment of the same engine"
    notes.append(Note("other", command.words[0], text))
    return Command(tuple(words[1:]), env, command.redirects, image=words[0])


# --- what else the snippet says ---------------------------------------------------------------------------


def _versions(commands: Sequence[Command]) -> dict[str, str]:
    found: dict[str, str] = {}
    for command in commands:
        if _is_pip(command.words):
            for word in command.words:
                pinned = re.fullmatch(r"(vllm|sglang)(?:\[[^\]]*\])?==([\w.]+)", word)
                if pinned:
                    found[pinned[1]] = pinned[2]
        tag = re.search(r"(vllm|sglang)[^:]*:v?(\d+\.\d+\.\d+(?:\.post\d+)?)", command.image)
        if tag:
            found[tag[1]] = tag[2]
    return found


def _is_pip(words: Sequence[str]) -> bool:
    return "install" in words[:5] and any(_PIP.fullmatch(w) for w in words[:4])


def _pip_notes(commands: Sequence[Command]) -> tuple[Note, ...]:
    """A note per version bound that the shell took for a redirect."""
    return tuple(
        Note(
            "shell",
            f"{operator}{target}",
            f"unquoted {operator}{target}: the shell writes pip's output to a file named {target!r} and pip "
            "gets no bound; quote it",
        )
        for command in commands
        if _is_pip(command.words)
        for operator, target in command.redirects
        if operator in {">", "<"} and re.match(r"=?\d|=", target)
    )


def _once(notes: Sequence[Note]) -> tuple[Note, ...]:
    return tuple(dict.fromkeys(notes))
