"""The review's units and its history, without a host."""

from typing import Any

import pytest

from inventory.errors import UsageError
from inventory.model import Host
from provision.review import Review, _judged, _row, _units, install
from provision.run import Flags
from tests.bench.made import proof

HOST = Host(name="gpu01", address="x", vars={"eyas_deployment": "llama-3.1-8b-eagle3"})


@pytest.mark.parametrize(
    "review",
    [
        Review(textfiles="relative"),
        Review(textfiles="/a b"),
        Review(textfiles="/x\nExecStart=/bin/sh"),
        Review(calendar=""),
        Review(calendar="weekly\n[Service]"),
    ],
)
def test_a_word_that_could_not_stand_in_a_unit_is_refused(review: Review) -> None:
    with pytest.raises(UsageError) as e:
        install([HOST], None, review, Flags())
    assert e.value.hint


def test_the_units_name_all_they_need() -> None:
    found = {n: text.decode() for n, text in _units("chat", "/opt/eyas/lib/bench", Review()).items()}
    assert set(found) == {"review-eyas-chat.service", "review-eyas-chat.timer"}
    assert "OnCalendar=weekly\n" in found["review-eyas-chat.timer"]
    service = found["review-eyas-chat.service"]
    assert "/opt/eyas/lib/bench/review.py chat /var/lib/eyas " in service
    assert "EYAS_CREDENTIALS=/etc/eyas/credentials/chat" in service
    assert "{{" not in "".join(found.values())


def told(**changes: Any) -> dict[str, Any]:
    now, before = proof(85, noise=0.001, seed=1), proof(100, noise=0.001, seed=2)
    latest = {"now": now, "baseline": before, "busy": False, "error": "", **changes}
    return _judged({"deployment": "chat", "latest": latest, "history": []})


def test_the_newest_review_is_judged_as_the_doctor_would() -> None:
    assert told()["answer"] == "fail"
    assert told(busy=True)["answer"] == "can't tell"
    assert told(baseline=None)["answer"] == "can't tell"
    assert told(now=None, error="refused")["text"] == "refused"
    assert _judged({"deployment": "chat", "latest": None, "history": []})["answer"] == "can't tell"


@pytest.mark.parametrize("entry", [{}, {"time": "x", "now": None}, {"now": {"acceptance_rate": 0.5}}])
def test_a_thin_entry_is_shown_with_dashes(entry: dict[str, Any]) -> None:
    row = _row(entry)
    assert len(row) == 5
    assert "-" in row
