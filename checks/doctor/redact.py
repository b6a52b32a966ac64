"""Take secrets out of text before it leaves the operator's machine, and count what was taken."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache, partial

__all__ = ["MASK", "Redactor"]

MASK = "[removed]"

_NAMES = r"(?:api[-_]?keys?|token|secret(?:[-_]?key)?|passw(?:or)?d|passphrase|credentials?|auth[-_]?key)"
_SETTING = (
    r"((?<![A-Za-z])(?:--?)?(?:[\w.-]{0,40}[-_.])?" + _NAMES + r"['\"]?(?: {0,2}[=:] {0,2}| )\[?['\"]?)"
    r"((?!none\b|null\b|true\b|false\b|\[removed\])[^\s'\",;}\]]{4,})"
)
_PARAMETER = (
    r"([?&](?i:token|key|api_key|access_token|signature|sig|x-amz-[\w-]{1,30}|password)=)([^&\s'\"]{4,})"
)
#: kind -> pattern; group 1 (kept) precedes the secret, group 2 is the secret. No nested repetition.
_KINDS: tuple[tuple[str, str], ...] = (
    ("private key", r"(-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----)([A-Za-z0-9+/=\s\\]{1,16000})"),
    ("hub token", r"(\b)((?:hf|api_org)_[A-Za-z0-9]{8,})"),
    ("api key", r"(\b)((?:sk|pk|rk)-(?:[A-Za-z]{2,12}-)?[A-Za-z0-9_-]{12,})"),
    ("cloud key", r"(\b)((?:AKIA|ASIA)[A-Z0-9]{16})"),
    ("git token", r"(\b)((?:gh[pousr]_|glpat-|github_pat_)[A-Za-z0-9_-]{12,})"),
    ("chat token", r"(\b)(xox[abprs]-[A-Za-z0-9-]{8,})"),
    ("web token", r"(\b)(eyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]{4,})?)"),
    ("authorization", r"((?:[Bb]earer|[Bb]asic|[Tt]oken)[ =:]{1,3})([A-Za-z0-9._~+/=-]{6,})"),
    ("url credentials", r"(\b[a-z][a-z0-9+.-]{1,20}://)([^\s/@:'\"]{0,200}:[^\s/@'\"]{1,200}(?=@))"),
    ("url parameter", _PARAMETER),
    ("setting", _SETTING),
)
_WORDS = re.compile(
    r"token|key|secret|passw|passphrase|bearer|basic|hf_|sk-|pk-|rk-|akia|asia|gh[pousr]_|glpat|github_pat|xox|eyj|://|credential|api_org",
    re.IGNORECASE,
)
_SAFE_SETTING = re.compile(
    r"^(?:\d{1,9}(?:\.\d+)?|ids?|size|count|type|types|usage|per|len|length|limit|budget|throughput|was|is|and|or|for|of|in|to|not|the|/run/\S+|env:\S+|file:\S+)$",
    re.IGNORECASE,
)


@cache
def _kinds() -> tuple[tuple[str, re.Pattern[str]], ...]:
    return tuple((kind, re.compile(p, re.IGNORECASE if kind == "setting" else 0)) for kind, p in _KINDS)


class Redactor:
    """Replaces secrets by MASK; ``removed`` counts them by kind."""

    def __init__(self) -> None:
        self.removed: Counter[str] = Counter()

    def text(self, text: str) -> str:
        if not _WORDS.search(text):
            return text
        for kind, pattern in _kinds():
            text = pattern.sub(partial(self._replace, kind), text)
        return text

    def lines(self, blocks: Iterable[bytes]) -> Iterator[bytes]:
        """Redact a stream line by line; a line longer than 1 MiB is cut into pieces that overlap nothing."""
        rest = b""
        for block in blocks:
            data = rest + block
            cut = data.rfind(b"\n") + 1 or (len(data) if len(data) > 1 << 20 else 0)
            rest = data[cut:]
            if cut:
                yield self.text(data[:cut].decode("utf-8", "replace")).encode()
        if rest:
            yield self.text(rest.decode("utf-8", "replace")).encode()

    def _replace(self, kind: str, match: re.Match[str]) -> str:
        if kind == "setting" and _SAFE_SETTING.match(match[2]):
            return match[0]
        self.removed[kind] += 1
        return f"{match[1]}{MASK}"
