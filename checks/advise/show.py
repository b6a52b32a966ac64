"""The answer for people: the verdict, then every line with how it is known and by what."""

from rich.console import Console
from rich.table import Table
from rich.text import Text

from checks.advise.question import Answer, Known

__all__ = ["show"]

_STYLE: dict[Known, str] = {
    "measured": "green",
    "planned": "cyan",
    "estimated": "yellow",
    "assumed": "yellow",
}


#: A source longer than this is printed once, below.
_SHORT = 60


def show(answer: Answer, console: Console) -> None:
    console.print(Text(answer.verdict, style="bold"), soft_wrap=True)
    console.print()
    table, sources = Table("what", "value", "known", "by", box=None, pad_edge=False, header_style="dim"), []
    for x in answer.lines:
        if len(x.by) > _SHORT and x.by not in sources:
            sources.append(x.by)
        by = f"[{sources.index(x.by) + 1}]" if x.by in sources else x.by
        table.add_row(Text(x.what), Text(x.value), Text(x.known, style=_STYLE.get(x.known, "")), Text(by))
    (console if console.is_terminal else Console(width=10_000)).print(table)
    for n, source in enumerate(sources, 1):
        console.print(Text(f"[{n}] {source}", style="dim"), soft_wrap=True)
    if answer.passed_over:
        console.print("\npassed over:", style="dim")
    for one in answer.passed_over:
        console.print(Text(f"  {one['draft']}: {one['why']}"), soft_wrap=True)
    console.print("\nnext:", style="dim")
    for command in answer.commands:
        console.print(Text(f"  {command}"), soft_wrap=True)
