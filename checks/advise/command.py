"""What `invoke advise` does: read the words, decide, write the deployment when asked, print."""

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import get_args

from pydantic import ValidationError
from rich.console import Console

from checks.advise.data import use_named
from checks.advise.decide import Load, advise
from checks.advise.question import Answer, Question, parse_gpus, parse_number
from checks.advise.show import show
from checks.bench.model import BenchResult
from checks.modelmeta import model_ref
from inventory.errors import UsageError
from inventory.model import Deployment, EngineName
from inventory.snippet import Note
from inventory.translated import write_deployment

__all__ = ["answer", "question"]

MOST_USERS = 1024
MOST_TOKENS = 10_000_000


def question(*, model: str, gpus: str, users: str, use: str, context: str = "", engine: str = "") -> Question:
    """Raises UsageError that names the wrong word."""
    if not model:
        raise UsageError("no model is named", hint="--model owner/name, or a folder")
    if engine and engine not in get_args(EngineName):
        raise UsageError(f"--engine {engine!r} is not known", hint="vllm or sglang")
    card, count = parse_gpus(gpus)
    meant = use_named(use)
    return Question(
        model=model_ref(model, "--model"),
        card=card,
        count=count,
        users=parse_number("--users", users, MOST_USERS),
        use=meant,
        context=parse_number("--context", context, MOST_TOKENS) if context else meant.context,
        engine=engine or None,  # type: ignore[arg-type]
    )


def answer(
    q: Question,
    load: Load,
    *,
    benches: Sequence[BenchResult] = (),
    write: str = "",
    as_json: bool = False,
) -> int:
    """Print the advice; with ``write`` also the deployment file of that name."""
    found = advise(q, load, benches)
    written = None
    if write:
        named = _named(found.deployment, write)
        written = str(write_deployment(named, _notes(found), head="Advised by `invoke advise`:"))
    found = replace(found, commands=_next(q, write))
    if as_json:
        print(json.dumps({**found.to_json(), "written": written}, ensure_ascii=False))
    else:
        show(found, Console())
        if written:
            print(f"wrote {written}")
    return 0


def _notes(a: Answer) -> tuple[Note, ...]:
    told = (f"{x.what}: {x.value} ({x.known}: {x.by})" for x in a.lines)
    return tuple(Note("other", "", " ".join(t.split())) for t in (a.verdict, *told))


def _next(q: Question, name: str) -> tuple[str, ...]:
    if not name:
        return ("the same with --write NAME, which makes it a deployment",)
    card = f'--gpu "{q.card.name}" --gpus {q.count}'
    pin = (f"invoke pin --deployment {name}",) if q.model.repo else ()
    return (
        f"invoke plan --deployment {name} {card}",
        *pin,
        f"invoke provision --host HOST --deployment {name} --check --diff",
        f"invoke bench --host HOST --deployment {name}",
    )


def _named(d: Deployment, name: str) -> Deployment:
    try:
        return Deployment.model_validate({**d.model_dump(), "name": name})
    except ValidationError as e:
        raise UsageError(f"--write {name!r}: {e.errors()[0]['msg']}", hint="--write llama-chat") from e
