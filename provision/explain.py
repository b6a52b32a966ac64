"""The doctor's word on a start that failed, for the one line a failed `provision` ends with."""

from checks.doctor.diagnose import diagnose
from checks.doctor.journal import latest_starts
from checks.doctor.model import Inputs

__all__ = ["explain"]


def explain(journal: str) -> str:
    """One sentence for a failed start, "slug: cause; next: fix"; "" when its journal names nothing."""
    try:
        report = diagnose(Inputs(log=[latest_starts(journal, "eyas-").encode("utf-8", "replace")]))
    except Exception:  # noqa: BLE001 - the failure itself is told either way
        return ""
    first = next((f for f in report.findings if f.root and f.slug != "unrecognised-failure"), None)
    if first is None:
        return ""
    fix = first.fix[0] if first.fix else None
    return f"{first.slug}: {first.title}" + (f"; next: {fix.change} {fix.value}".rstrip() if fix else "")
