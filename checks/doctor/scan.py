"""One pass over a log: literal anchors find candidate lines, regular expressions decide.

Cost is bounded whatever the log holds: lines are cut at LINE_CAP around the anchor, a window tries some
BUDGET expressions (the first and last places of each anchor), a signature keeps the first and last KEEP hits.
In the middle of a very large log they try fewer: a failure is told in its first or last lines, or often.
"""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import accumulate, count
from operator import add

from checks.doctor.catalogue import Signature
from checks.doctor.patterns import harmless
from checks.doctor.reader import Window, looks_binary, windows
from checks.doctor.text import Clean, clean, continues
from checks.doctor.unwrap import unwrapped

__all__ = ["Hit", "LogView", "scan"]

LINE_CAP = 2400
BUDGET, MIDDLE_BUDGET, FIRST_WINDOWS = 4000, 500, 8
PER_ANCHOR = (3, 60)
KEEP = 12
BEFORE, AFTER = 14_000, 9_000
WRAP_WIDTH = 60
#: Lines that one message may have been wrapped onto besides its first.
WRAPPED = 2
#: In a large window an anchor's longest word is looked for in the vocabulary first, some 50 times smaller.
_WORD = re.compile(r"[a-z_]{3,64}")
SMALL_WINDOW = 16_000


@dataclass(frozen=True)
class Hit:
    """One line that a signature matched. ``start`` counts the engine starts seen before it."""

    sig: Signature
    line: int
    text: str
    groups: dict[str, str]
    proc: str = ""
    before: tuple[Clean, ...] = ()
    after: tuple[Clean, ...] = ()
    start: int = 0


@dataclass
class LogView:
    """What one pass found. ``hits`` are in line order."""

    hits: list[Hit] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    starts: list[int] = field(default_factory=list)
    lines: int = 0
    size: int = 0
    binary: bool = False
    level_errors: int = 0

    def all(self, mark: str) -> list[Hit]:
        """Hits of every signature with this mark or id."""
        return [h for h in self.hits if mark in {h.sig.mark, h.sig.id}]

    def first(self, mark: str) -> Hit | None:
        return next(iter(self.all(mark)), None)

    def last(self, mark: str) -> Hit | None:
        found = self.all(mark)
        return found[-1] if found else None

    def has(self, *marks: str) -> bool:
        return any(self.all(m) for m in marks)


def scan(blocks: Iterable[bytes], signatures: Iterable[Signature]) -> LogView:
    """Read the whole log once. Never raises on its content."""
    log, numbers = unwrapped(blocks)
    view = _Scanner(tuple(signatures)).run(log)
    if numbers:
        view.hits = [replace(h, line=numbers[min(h.line, len(numbers)) - 1]) for h in view.hits]
        view.starts = [numbers[min(n, len(numbers)) - 1] for n in view.starts]
    return view


@dataclass(frozen=True)
class _Index:
    """Anchor -> the signatures it may start; an anchor's longest word ("" for none) -> such anchors."""

    by_anchor: dict[str, list[Signature]]
    by_word: dict[str, list[str]]

    def present(self, low: str, flat: str) -> list[str]:
        """The anchors that ``flat`` holds: ``low``, lower case, with its line ends as spaces."""
        if len(flat) < SMALL_WINDOW:
            return [a for a in self.by_anchor if a in flat]
        words = "\n".join(set(_WORD.findall(low)))
        found = {a for word, of in self.by_word.items() if word in words for a in of if a in flat}
        return [a for a in self.by_anchor if a in found]


@lru_cache(maxsize=4)
def _index(signatures: tuple[Signature, ...]) -> _Index:
    by_anchor: dict[str, list[Signature]] = {}
    for sig in signatures:
        for anchor in sig.anchors:
            by_anchor.setdefault(anchor, []).append(sig)
    by_word: dict[str, list[str]] = {}
    for anchor in by_anchor:
        by_word.setdefault(max(_WORD.findall(anchor), key=len, default=""), []).append(anchor)
    return _Index(by_anchor, by_word)


class _Scanner:
    def __init__(self, signatures: tuple[Signature, ...]) -> None:
        self.index = _index(signatures)
        self.view = LogView()
        self.windows = 0

    def run(self, blocks: Iterable[bytes]) -> LogView:
        for window in windows(self._counted(blocks)):
            if self.view.binary:
                break
            self._window(window)
            self.view.lines = window.first_line + window.text.count("\n", window.begin, window.end)
        self._finish()
        return self.view

    def _counted(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        for block in blocks:
            if self.view.size == 0:
                self.view.binary = looks_binary(block)
            self.view.size += len(block)
            yield block
            if self.view.binary:
                return

    def _window(self, window: Window) -> None:
        low = window.text.lower()
        flat = low.replace("\n", " ").replace("\r", " ")
        lines = _Lines(window)
        present = self.index.present(low, flat)
        middle = self.windows >= FIRST_WINDOWS and not window.last
        self.windows += 1
        budget, least = (MIDDLE_BUDGET, 1) if middle else (BUDGET, PER_ANCHOR[0])
        most = min(max(budget // (2 * len(present) or 1), least), PER_ANCHOR[1])
        tried: set[tuple[str, int]] = set()
        for anchor in present:
            for begin, end in _places(flat, anchor, lines, most):
                for sig in self.index.by_anchor[anchor]:
                    if (sig.id, begin) not in tried:
                        tried.add((sig.id, begin))
                        self._try(sig, lines, begin, end)

    def _try(self, sig: Signature, lines: "_Lines", begin: int, end: int) -> None:
        found, here = lines.search(sig, begin, end)
        if found is None or harmless().search(here.text.lower()):
            return
        self.view.counts[sig.id] += 1
        near = sig.window and self.view.counts[sig.id] % (KEEP * 8) <= 2 * KEEP
        before, after = lines.around(begin, end) if near else ((), ())
        self.view.hits.append(Hit(sig, lines.number(begin), here.text, found, here.proc, before, after))
        if self.view.counts[sig.id] % (KEEP * 8) == 0:
            self._thin(sig)

    def _thin(self, sig: Signature) -> None:
        """Keep the first and last hits of a signature that fires all the time."""
        mine = sorted((h for h in self.view.hits if h.sig.id == sig.id), key=lambda h: h.line)
        keep = {id(h) for h in (*mine[:KEEP], *mine[-KEEP:])}
        self.view.hits = [h for h in self.view.hits if h.sig.id != sig.id or id(h) in keep]

    def _finish(self) -> None:
        hits = sorted(self.view.hits, key=lambda h: h.line)
        begins = [h.line for h in hits if h.sig.mark == "start"]
        self.view.starts = begins
        self.view.hits = [_in_start(h, bisect_right(begins, h.line)) for h in hits]


def _in_start(hit: Hit, start: int) -> Hit:
    return Hit(hit.sig, hit.line, hit.text, hit.groups, hit.proc, hit.before, hit.after, start)


def _places(flat: str, anchor: str, lines: "_Lines", most: int) -> list[tuple[int, int]]:
    """Line extents that hold the anchor: the first and the last ``most`` of the window's own part."""
    spans: dict[int, int] = {}
    stop = lines.window.end + len(anchor) - 1
    at = flat.find(anchor, lines.window.begin, stop)
    while at >= 0 and len(spans) < most:
        begin, end = lines.extent(at)
        spans[begin] = end
        at = flat.find(anchor, max(end, at + 1), stop)
    if at < 0:
        return list(spans.items())
    tail: dict[int, int] = {}
    at = flat.rfind(anchor, at, stop)
    while at >= 0 and len(tail) < most:
        begin, end = lines.extent(at)
        if begin in spans:
            break
        tail[begin] = end
        at = flat.rfind(anchor, lines.window.begin, begin)
    return [*spans.items(), *sorted(tail.items())]


class _Lines:
    """Line geometry of one window; lines are cleaned at most once."""

    def __init__(self, window: Window) -> None:
        self.window = window
        self.text = window.text
        self._breaks: list[int] | None = None
        self._clean: dict[tuple[int, int], Clean] = {}

    def extent(self, at: int) -> tuple[int, int]:
        """Begin and end of the line around ``at`` (a carriage return ends a line too), cut to LINE_CAP."""
        text = self.text
        low, high = max(0, at - LINE_CAP), min(len(text), at + LINE_CAP)
        begin = max(text.rfind("\n", low, at), text.rfind("\r", low, at))
        begin = begin + 1 if begin >= 0 else low if low == 0 else at - LINE_CAP // 2
        stops = [p for p in (text.find("\n", at, high), text.find("\r", at, high)) if p >= 0]
        end = min(stops, default=high)
        if end - begin > LINE_CAP:
            begin, end = max(begin, at - LINE_CAP // 2), min(end, at + LINE_CAP // 2)
        return begin, end

    def number(self, at: int) -> int:
        if self._breaks is None:
            begin = self.window.begin
            lengths = map(len, self.text[begin : self.window.end].split("\n")[:-1])
            self._breaks = list(map(add, accumulate(lengths), count(begin)))
        return self.window.first_line + bisect_right(self._breaks, at - 1)

    def cleaned(self, begin: int, end: int) -> Clean:
        key = (begin, end)
        if key not in self._clean:
            self._clean[key] = clean(self.text[begin:end])
        return self._clean[key]

    def search(self, sig: Signature, begin: int, end: int) -> tuple[dict[str, str] | None, Clean]:
        """Match the line, or the line joined with what was wrapped onto the next ones."""
        here = self.cleaned(begin, end)
        found = sig.match(here.text)
        if found is not None or end - begin < WRAP_WIDTH:
            return found, here
        joined = here
        for _ in range(WRAPPED):
            begin, end = self._next(end)
            more = self.cleaned(begin, end) if end > begin else None
            if more is None or not continues(joined, more):
                break
            for glue in (" ", ""):
                wider = Clean(joined.text + glue + more.text, here.proc, here.level, here.prefixed)
                found = sig.match(wider.text)
                if found is not None:
                    return found, wider
            joined = Clean(joined.text + " " + more.text, here.proc, here.level, here.prefixed)
        return None, here

    def _next(self, end: int) -> tuple[int, int]:
        begin = end + 1
        if begin >= len(self.text) or self.text[end] not in "\r\n":
            return begin, begin
        stop = self.text.find("\n", begin)
        stop = len(self.text) if stop < 0 else stop
        return begin, min(stop, begin + LINE_CAP)

    def around(self, begin: int, end: int) -> tuple[tuple[Clean, ...], tuple[Clean, ...]]:
        """The cleaned lines before and after, nearest last and first, each up to some 100 lines."""
        head = self.text[max(0, begin - BEFORE) : begin]
        tail = self.text[end : end + AFTER]
        return _cleaned(head), _cleaned(tail)


def _cleaned(text: str) -> tuple[Clean, ...]:
    lines = (clean(line[:1000]) for line in text.replace("\r", "\n").split("\n") if line.strip())
    return tuple(c for c in lines if c.text.strip("^~ "))
