"""The catalogue of published drafts: what exists for a target, and what a wrong name was meant to be.

It answers without a network. Rows and their sources are in engines/pairs.toml.
"""

import re
import tomllib
from dataclasses import dataclass, field
from difflib import SequenceMatcher
from functools import cache, lru_cache
from pathlib import Path

__all__ = ["MissingRepo", "Pair", "Pairs", "SmallDraft", "base_name", "load_pairs"]

CATALOGUE = Path(__file__).parent / "engines" / "pairs.toml"
#: Endings that name a storage format, not another model: drafts of the plain model fit these too.
_QUANT = re.compile(
    r"[-_.](awq|gptq|int[48]|w\d+a\d+|fp8|fp4|nvfp4|mxfp4|bf16|fp16|dynamic|block|kv|marlin|bnb|4bit|8bit"
    r"|gguf|quantized|autoround|hf)(?=$|[-_.])",
    re.IGNORECASE,
)
#: Below this likeness a name says nothing: "x/y" has no neighbour.
LIKE = 0.6
_WORD = re.compile(r"[a-z]+|\d+(?:\.\d+)*[a-z]?")


@dataclass(frozen=True)
class Pair:
    """A target and a draft that some source names as belonging together."""

    target: str
    draft: str
    method: str
    source: str
    engines: tuple[str, ...] = ()
    params: str = ""
    note: str = ""
    published_as: str = ""


@dataclass(frozen=True)
class SmallDraft:
    """A small model of the target's family with the same ``vocab_size``: method ``draft_model``."""

    target: str
    draft: str
    vocab_size: int
    source: str
    note: str = ""


@dataclass(frozen=True)
class MissingRepo:
    """A name in circulation that no source knows. ``fits``: real heads for ``target``, best first."""

    repo: str
    target: str
    nearest: tuple[str, ...]
    fits: tuple[str, ...]
    fallback: str
    text: str
    source: str


@dataclass(frozen=True)
class Pairs:
    """All rows, with the look-ups that the gate and the translator need. Names compare without case."""

    pairs: tuple[Pair, ...]
    small: tuple[SmallDraft, ...] = ()
    missing_repos: tuple[MissingRepo, ...] = ()
    aliases: dict[str, str] = field(default_factory=dict)

    def for_target(self, repo: str, engine: str | None = None) -> tuple[Pair, ...]:
        """Heads for this target (also under another name or quantised), one row per draft."""
        found = [p for p in self.pairs if self.same_model(p.target, repo)]
        found = [p for p in found if engine is None or engine in p.engines]
        return tuple({p.draft.lower(): p for p in reversed(found)}.values())[::-1]

    def for_draft(self, repo: str) -> tuple[Pair, ...]:
        """The targets that a head was trained for."""
        return tuple(p for p in self.pairs if p.draft.lower() == repo.lower())

    def small_drafts(self, repo: str) -> tuple[SmallDraft, ...]:
        return tuple(s for s in self.small if self.same_model(s.target, repo))

    def missing(self, repo: str) -> MissingRepo | None:
        return next((m for m in self.missing_repos if m.repo.lower() == repo.lower()), None)

    def known(self, repo: str) -> bool:
        """True when some source names this repository, as target or draft."""
        return any(repo.lower() == name.lower() for name in self.names())

    def names(self) -> tuple[str, ...]:
        rows = [n for p in self.pairs for n in (p.draft, p.target)]
        return tuple(dict.fromkeys(rows + [n for s in self.small for n in (s.draft, s.target)]))

    def nearest(self, repo: str, count: int = 3) -> tuple[str, ...]:
        """Existing names most like ``repo``, best first; none when nothing is alike.

        A catalogued wrong name has its curated answer.
        """
        curated = self.missing(repo)
        if curated:
            return (*curated.nearest, *(f for f in curated.fits if f not in curated.nearest))[:count]
        ranked = sorted((-_likeness(repo, name), name) for name in self.names())
        return tuple(name for score, name in ranked[:count] if -score >= LIKE)

    def same_model(self, one: str, other: str) -> bool:
        """Whether two names mean the same model: an alias, another owner's copy, a quantised form."""
        return self._canonical(one) == self._canonical(other)

    def _canonical(self, repo: str) -> str:
        plain = self.aliases.get(repo.lower(), repo)
        return base_name(self.aliases.get(base_name(plain), plain))


@lru_cache(maxsize=4096)
def base_name(repo: str) -> str:
    """The name without owner, storage format and case: ``x/Llama-3.1-8B-AWQ`` is ``llama-3.1-8b``."""
    name = repo.rstrip("/").rsplit("/", 1)[-1]
    name = _QUANT.sub("", name)
    return re.sub(r"[-_. ]+", "-", name.lower()).strip("-")


def _likeness(one: str, other: str) -> float:
    """0 to 2: shared words count most (their order does not), then spelling, then the owner."""
    a, b = _words(one), _words(other)
    shared = len(a & b) / max(1, len(a | b))
    spelling = SequenceMatcher(None, base_name(one), base_name(other)).ratio()
    return shared + 0.8 * spelling + 0.2 * (_owner(one) == _owner(other) != "")


def _words(repo: str) -> frozenset[str]:
    return frozenset(_WORD.findall(repo.rsplit("/", 1)[-1].lower()))


def _owner(repo: str) -> str:
    return repo.split("/", 1)[0].lower() if "/" in repo else ""


@cache
def load_pairs(path: Path = CATALOGUE) -> Pairs:
    """The shipped catalogue. Raises on a malformed file, which is a bug of ours, not of the user."""
    data = tomllib.loads(path.read_text(encoding="utf-8"))
    aliases = {name.lower(): row["repo"] for row in data["alias"] for name in row["also"]}
    aliases |= {base_name(name): repo for name, repo in aliases.items()}
    return Pairs(
        pairs=tuple(Pair(**row | {"engines": tuple(row["engines"])}) for row in data["pair"]),
        small=tuple(SmallDraft(**row) for row in data["small"]),
        missing_repos=tuple(
            MissingRepo(**row | {k: tuple(row[k]) for k in ("nearest", "fits")}) for row in data["missing"]
        ),
        aliases=aliases,
    )
