"""Every task with odd words, streams and surroundings: its exit code, one JSON document, no traceback."""

import io
import json
import re
import sys
from pathlib import Path
from typing import Any

import pytest
from invoke import Collection, Program

import tasks
from inventory.errors import CheckRefused
from surface.commandline import INTERRUPTED, command

ROOT = Path(__file__).resolve().parent.parent
ALL = Collection.from_module(tasks)
NAMES = sorted(ALL.task_names)
#: They work on the checkout itself.
CONTRIBUTOR = {"bench-fleet", "simulate-fleet", "check", "test", "docs", "demo"}
WITH_JSON = [n for n in NAMES if "json" in ALL[n].option_texts]
NUMBERS = [("facts", "--forks"), ("provision", "--forks"), ("lab", "--hosts"), ("command", "--node-rank")]


class Run:
    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self.capsys = capsys

    def __call__(self, *argv: str, namespace: Collection | None = None) -> tuple[int, str, str]:
        """Exit code, stdout, stderr. What is not an exit is a traceback and fails the test."""
        code = 0
        try:
            Program(namespace=namespace or _namespace(argv[0])).run(["invoke", *argv])
        except SystemExit as e:
            code = int(e.code or 0)
        out, err = self.capsys.readouterr()
        return code, out, err


def _namespace(word: str) -> Collection:
    """The one task where one is named: invoke copies every task it knows at each start."""
    return _only(ALL[word], word) if word in NAMES else ALL


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "stdin", io.StringIO(""))
    return Run(capsys)


@pytest.mark.parametrize("name", NAMES)
def test_every_task_explains_itself(run: Run, name: str) -> None:
    code, out, _ = run(name, "--help")
    assert code == 0
    lines = out.splitlines()
    assert lines[lines.index("Docstring:") + 1].strip() not in {"", "none"}
    options = re.split(r"\n  (?=--)", out.partition("Options:")[2])[1:]
    assert [o for o in options if len(o.split()) < 2] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_word_can_be_given(name: str) -> None:
    """Invoke takes a word only for an argument without a value; with a default it would be a task's name."""
    words = [a for a in ALL[name].get_arguments() if a.positional]
    assert [a.name for a in words if a.value is not None] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_wrong_option_is_usage(run: Run, name: str) -> None:
    code, out, err = run(name, "--no-such-option", "--json")
    assert code == 2
    assert json.loads(out)["schema"] == 1
    assert "next: " in err


@pytest.mark.parametrize(
    ("argv", "hint"),
    [
        (("provison",), "provision"),
        (("facts", "--hots", "gpu01"), "--host"),
        (("facts", "--qqq"), "valid: --host, "),
        (("qqq",), "invoke --list"),
        (("facts", "--host"), "invoke facts --help"),
    ],
)
def test_the_word_that_was_meant_is_named(run: Run, argv: tuple[str, ...], hint: str) -> None:
    code, _, err = run(*argv)
    assert code == 2
    assert hint in err.partition("next: ")[2]


def test_an_option_without_its_value_is_named_as_it_was_typed(run: Run) -> None:
    code, _, err = run("rollout", "--max-fail")
    assert code == 2
    assert err.startswith("error: --max-fail needs a value\n")


@pytest.mark.parametrize("name", sorted(set(WITH_JSON) - CONTRIBUTOR))
def test_bare_json_is_one_document(run: Run, name: str) -> None:
    code, out, _ = run(name, "--json")
    assert code in {0, 2}
    assert json.loads(out)["schema"] == 1


@pytest.mark.parametrize(("name", "option"), NUMBERS)
def test_a_word_where_a_number_belongs(run: Run, name: str, option: str) -> None:
    code, _, err = run(name, f"{option}=many")
    assert code == 2
    assert "'many', not a number" in err


@pytest.mark.parametrize(
    ("name", "option"),
    [
        ("audit", "--last=-1"),
        ("rollout", "--pause=-5"),
        ("rollout", "--ttft-tolerance=nan"),
        ("router", "--timeout=inf"),
    ],
)
def test_a_number_that_means_nothing(run: Run, name: str, option: str) -> None:
    """With nan for a tolerance no comparison would ever be red."""
    code, _, err = run(name, option)
    assert code == 2
    assert "from 0 on, and finite" in err


@pytest.mark.parametrize(
    "argv",
    [
        ("translate", "--command", "vllm serve a/b", "--write", ""),
        ("engines", "--engine", ""),
        ("plan", "--truth", "--rows="),
        ("provision", "--host", ""),
    ],
)
def test_an_empty_value_is_not_no_value(run: Run, argv: tuple[str, ...]) -> None:
    code, _, err = run(*argv)
    assert code == 2
    assert "is empty" in err


@pytest.mark.parametrize("argv", [("-R", "hosts"), ("hosts", "-R"), ("-T", "5", "hosts")])
def test_options_of_invoke_that_would_be_ignored(run: Run, argv: tuple[str, ...]) -> None:
    code, _, err = run(*argv)
    assert code == 2
    assert "does nothing here" in err


FILES = {
    "deep": b"[" * 100_000,
    "array": b"[]",
    "number": b"7",
    "cut": b'{"schema": 1, "ho',
    "binary": bytes(range(256)),
    "latin1": b'{"schema": "\xe9"}',
    "empty": b"",
    "odd": b'{"schema": [], "host": 3, "taken_at": "now"}',
}


@pytest.mark.parametrize("content", [*FILES, "missing", "folder"])
@pytest.mark.parametrize(
    "argv",
    [
        ("plan", "--deployment", "llama-3.1-8b-eagle3", "--facts"),
        ("plan", "--scenario"),
        ("plan", "--truth", "--rows"),
        ("doctor", "--facts"),
        ("doctor", "--bundle"),
    ],
    ids=" ".join,
)
def test_a_bad_json_file_is_named(run: Run, argv: tuple[str, ...], content: str, tmp_path: Path) -> None:
    path = tmp_path / "named.file"
    if content == "folder":
        path.mkdir()
    elif content != "missing":
        path.write_bytes(FILES[content])
    code, out, err = run(*argv, str(path), "--json")
    if argv == ("doctor", "--facts") and content in {"odd", "latin1"}:
        return  # any flat object is facts to the doctor, and a byte that is no text is only shown so
    assert code == 2
    assert "named.file" in err
    assert json.loads(out)["error"]


@command(help={"json": "x"})
def bug(c: object, json: bool = False) -> None:
    raise ZeroDivisionError("canary")


@command(help={"json": "x"})
def unwritable(c: object, json: bool = False) -> None:
    Path("/nonexistent/folder/file").write_text("x")


@command(help={"json": "x"})
def refused(c: object, json: bool = False) -> None:
    raise CheckRefused("no", hint="yes", host="gpu01")


@command(help={"json": "x"})
def stopped(c: object, json: bool = False) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("task", "code", "says"),
    [
        (refused, 4, "gpu01: no\n  next: yes"),
        (unwritable, 2, "/nonexistent/folder/file: No such file"),
        (stopped, INTERRUPTED, "run the same command again"),
    ],
)
def test_what_goes_wrong_in_a_task(run: Run, task: object, code: int, says: str) -> None:
    got, _, err = run("t", namespace=_only(task))
    assert got == code
    assert says in err


def test_a_bug_shows_its_place_and_still_one_document(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ZeroDivisionError):
        run("t", "--json", namespace=_only(bug))
    out, err = capsys.readouterr()
    assert json.loads(out)["error"] == "bug in eyas: ZeroDivisionError: canary"
    assert "a bug in eyas" in err


def _only(task: Any, name: str = "t") -> Collection:
    collection = Collection()
    collection.add_task(task, name=name)
    return collection


def test_a_positional_word_has_no_default() -> None:
    """Invoke takes one with a default for given, so that `TASK WORD` would be an unknown task."""
    wrong = [
        f"{name}: {argument.name}"
        for name, task in tasks.namespace.tasks.items()
        for argument in task.get_arguments()
        if argument.positional and argument.default is not None
    ]
    assert wrong == []
