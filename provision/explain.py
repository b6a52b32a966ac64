"""The doctor's word on what failed: one sentence for the operator, whole findings for the report."""

from checks.doctor.catalogue import catalogue
from checks.doctor.diagnose import diagnose
from checks.doctor.journal import latest_starts
from checks.doctor.model import Inputs
from checks.outcome import Evidence, Finding, Fix, Severity

__all__ = ["Explained", "explain", "named"]

#: One sentence, "slug: cause; next: fix", and what was found; ("", ()) when nothing names it.
Explained = tuple[str, tuple[Finding, ...]]


def explain(journal: str) -> Explained:
    """What the journal of a failed start names."""
    try:
        report = diagnose(Inputs(log=[latest_starts(journal, "eyas-").encode("utf-8", "replace")]))
    except Exception:  # noqa: BLE001 - the failure itself is told either way
        return "", ()
    first = next((f for f in report.findings if f.root and f.slug != "unrecognised-failure"), None)
    if first is None:
        return "", ()
    fix = first.fix[0] if first.fix else None
    sentence = f"{first.slug}: {first.title}" + (f"; next: {fix.change} {fix.value}".rstrip() if fix else "")
    return sentence, report.findings


def named(
    slug: str, evidence: Evidence, *, severity: Severity | None = None, host: str = ""
) -> list[Finding]:
    """The finding of a cause that is known without a log; none for a cause the catalogue lacks."""
    code = catalogue().by_slug.get(slug)
    if code is None:
        return []
    fixes = tuple(Fix(x.change, x.value, x.command, x.why) for x in code.fix if not x.asks)
    why = f"{code.what} {code.why}"
    told = severity or code.severity
    return [Finding(code.code, code.slug, told, code.title, why, (evidence,), fixes, host=host)]
