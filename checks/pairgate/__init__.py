"""Does this draft fit this target in this engine version? Answered from metadata, before anything starts."""

from checks.pairgate.gate import alternatives, check_pair, missing_draft
from checks.pairgate.lookup import judge
from checks.pairgate.model import PairVerdict, PairWant, Reason
from checks.pairgate.want import want_from, want_of

__all__ = [
    "PairVerdict",
    "PairWant",
    "Reason",
    "alternatives",
    "check_pair",
    "judge",
    "missing_draft",
    "want_from",
    "want_of",
]
