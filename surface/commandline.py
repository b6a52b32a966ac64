"""How the tasks meet invoke: errors, exit codes, words, pipes. The tasks are beside it.

Works the same under ``invoke`` and ``eyas``. Put right on invoke's classes at import: a wrong flag would be
exit 1, ``--help`` after a positional argument would be its value, ``| head`` would be a traceback.
"""

import errno
import functools
import json
import math
import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from invoke import Context, Program, Task, task
from invoke.exceptions import Exit, ParseError
from invoke.parser.argument import Argument
from invoke.parser.parser import ParseMachine

from inventory.errors import EyasError, UsageError
from inventory.nearest import did_you_mean

__all__ = ["ROOT", "command", "run_program"]

ROOT = Path(__file__).resolve().parent.parent
INTERRUPTED = 130
BROKEN_PIPE = 141  # what a shell shows for a program that SIGPIPE ended
_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EIO}

#: Options of invoke that would be ignored by tasks that talk to hosts themselves.
_REFUSED = {
    "dry": ("-R/--dry", "to see what would change without changing it: --check"),
    "command-timeout": ("-T/--command-timeout", "every remote command already has its own limit"),
}


class _Task(Task[Any]):
    """Keeps the texts of its options, which invoke takes apart when it first parses a line."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.option_texts = dict(self.help)

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        self.help = dict(self.option_texts)
        return super().get_arguments(ignore_unknown_help)


def command(
    *,
    help: dict[str, str] | None = None,
    checkout: bool = False,
    **options: Any,
) -> Callable[..., Any]:
    """An invoke task whose errors become a message, one next step and eyas's exit code.

    ``checkout``: the task needs what only a source checkout has. ``positional=[]`` because a required
    argument would otherwise swallow ``--help``.
    """

    def wrap(body: Callable[..., int | None]) -> Any:
        @functools.wraps(body)
        def run(c: Context, *args: Any, **kwargs: Any) -> None:
            as_json = bool(kwargs.get("json"))
            code = _guarded(lambda: body(_here(c, checkout), *args, **kwargs), as_json=as_json)
            if code:
                raise Exit(code=code)

        given = {"positional": [], "auto_shortflags": False, "help": help or {}, **options}
        return task(klass=_Task, **given)(run)

    return wrap


def _here(c: Context, checkout: bool) -> Context:
    if checkout and not (ROOT / "tests").is_dir():
        raise UsageError(
            "this task needs eyas's source checkout, not the installed package",
            hint="clone the repository and run ./eyas there",
        )
    return c


def _guarded(body: Callable[[], int | None], *, as_json: bool) -> int | None:
    try:
        code = body()
        sys.stdout.flush()
    except EyasError as e:
        _fail(e, as_json=as_json)
    except KeyboardInterrupt as e:
        raise Exit("interrupted; run the same command again to finish", INTERRUPTED) from e
    except BrokenPipeError:
        _reader_left()
    except SystemExit as e:
        if isinstance(e.__context__, BrokenPipeError):  # rich turns it into exit 1
            _reader_left()
        raise
    except OSError as e:
        if e.errno in _DISK:
            _to_nowhere(sys.stdout)
            raise Exit(f"error: cannot write: {e.strerror}", UsageError.exit_code) from e
        if not e.filename:
            _bug(e, as_json=as_json)
            raise
        unusable = UsageError(f"{e.filename}: {e.strerror}", hint="name a path that can be used")
        _fail(unusable, as_json=as_json)
    except Exception as e:
        _bug(e, as_json=as_json)
        raise
    return code


def _fail(e: EyasError, *, as_json: bool) -> NoReturn:
    if as_json:
        _document(e.message, e.hint, e.host)
    raise Exit(f"error: {e}", e.exit_code) from e


def _bug(e: Exception, *, as_json: bool) -> None:
    """Exit 1 with the traceback, which is what a report of the bug needs."""
    print("error: this is a bug in eyas; please report it with the lines below", file=sys.stderr)
    if as_json:
        _document(f"bug in eyas: {type(e).__name__}: {e}", "report it with the traceback on stderr", "")


def _document(error: str, hint: str, host: str) -> None:
    try:
        print(json.dumps({"schema": 1, "error": error, "hint": hint, "host": host}), flush=True)
    except BrokenPipeError:
        _reader_left()


def _reader_left() -> NoReturn:
    """``| head`` has what it wanted: end quietly, also at the interpreter's own last flush."""
    _to_nowhere(sys.stdout)
    raise Exit(code=BROKEN_PIPE)


def _to_nowhere(stream: Any) -> None:
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass  # a stream without a file has no last flush that could fail


def _open_standard_streams() -> None:
    """``>&-`` leaves no stream at all, and the next file opened would become stdout."""
    while (fd := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(fd)
    for name, number in (("stdout", 1), ("stderr", 2)):
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w", encoding="utf-8", closefd=False))


def _optional_words() -> None:
    """Let a task's positional arguments be optional words: an option or the line's end leaves the rest empty.

    Invoke itself feeds them ``--help`` and calls each missing one an error.
    """
    handle, complete = ParseMachine.handle, ParseMachine.complete_context

    def end_words(machine: ParseMachine) -> None:
        for arg in machine.context.missing_positional_args if machine.context else ():
            arg.set_value("", cast=False)

    def handle_token(machine: ParseMachine, token: str) -> None:
        if token.startswith("-"):
            end_words(machine)
        handle(machine, token)

    def complete_context(machine: ParseMachine) -> None:
        end_words(machine)
        complete(machine)

    patched: Any = ParseMachine
    patched.handle, patched.complete_context = handle_token, complete_context


def _strict_parsing() -> None:
    """A wrong command line is exit 2; an option of invoke that the tasks would ignore is refused.

    An empty value is wrong too: ``--write "$NAME"`` with no NAME must not mean that nothing was asked.
    """
    set_value = Argument.set_value

    def set_checked(arg: Argument, value: Any, cast: bool = True) -> None:
        if cast and value == "" and not arg.positional:
            raise ParseError(f"--{arg.name} is empty")
        try:
            set_value(arg, value, cast)
        except ValueError as e:
            raise ParseError(f"--{arg.name} is {value!r}, not a number") from e
        number = arg.value if cast and arg.kind in {int, float} else 0
        if not (isinstance(number, int | float) and 0 <= number < math.inf):  # also nan
            raise ParseError(f"--{arg.name} is {value!r}: from 0 on, and finite")

    changed: Any = Argument
    changed.set_value = set_checked
    patched: Any = Program
    for step in ("parse_core", "parse_tasks", "parse_cleanup"):
        setattr(patched, step, _usage_is_2(getattr(Program, step)))


def _usage_is_2(step: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(step)
    def strict(program: Program, *args: Any) -> None:
        try:
            step(program, *args)
            sys.stdout.flush()
        except ParseError as e:
            _fail(UsageError(_said(e), hint=_nearest(e, program)), as_json="--json" in program.argv)
        except BrokenPipeError:
            _reader_left()
        for name, (option, hint) in _REFUSED.items():
            if step.__name__ == "parse_tasks" and program.args[name].value:
                _fail(UsageError(f"{option} does nothing here", hint=hint), as_json="--json" in program.argv)

    return strict


def _said(e: ParseError) -> str:
    """Without the names of invoke's own classes."""
    bare = re.match(r"Flag <Argument: ([\w-]+)", str(e))
    return f"--{bare[1].replace('_', '-')} needs a value" if bare else str(e)


def _nearest(e: ParseError, program: Program) -> str:
    """The option or task that was meant, if one is near."""
    unknown = re.search(r"No idea what '(.+)' is", str(e))
    task = e.context.name if e.context and e.context.name in program.collection.task_names else ""
    known = list(e.context.flags) if task and e.context else list(program.collection.task_names)
    near = did_you_mean(unknown[1], known) if unknown else ""
    return near or (f"invoke {task} --help" if task else "invoke --list")


class _Eyas(Program):
    def print_version(self) -> None:
        from importlib.metadata import version

        self.version = version("eyas")
        super().print_version()


def run_program(namespace: Any) -> None:
    """The tasks as a program of their own, named ``eyas``."""
    _Eyas(name="eyas", binary="eyas", namespace=namespace).run()


_open_standard_streams()
_optional_words()
_strict_parsing()
# Invoke never keeps compiled files, so every start would compile half the libraries again.
sys.dont_write_bytecode = bool(os.environ.get("PYTHONDONTWRITEBYTECODE"))
