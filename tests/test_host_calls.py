"""How programs are started on a host."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def test_programs_on_a_host_leave_no_compiled_files() -> None:
    """A full disk leaves one that is too short, and the program beside it can't start any more."""
    files = [
        *(ROOT / "provision").rglob("*.py"),
        *(ROOT / "systemd").glob("*.j2"),
        *(ROOT / "systemd").glob("*.sh"),
    ]
    found = [(f.name, words) for f in files for words in re.findall(r"[\s\"](-s\w+)[\s\"]", f.read_text())]
    calls = [(name, words) for name, words in found if "E" in words]
    assert len(calls) > 10
    assert [(name, words) for name, words in calls if "B" not in words] == []
