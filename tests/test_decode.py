"""What comes back over SSH is not always the probe's: each way it can be wrong has its own words."""

import json
import subprocess
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from checks.probe.decode import LARGEST, decode, without_python
from checks.probe.pack import FALLBACK, FALLBACK_ARGV
from inventory.errors import HostUnreachable

TREE: dict[str, Any] = {
    "probe": {"schema": 1, "ms": 5},
    "os": {"id": "ubuntu", "pretty": "Ubuntu \U0001f427"},
}


def output(tree: Any = TREE, schema: int = 1, size: int | None = None) -> bytes:
    body = json.dumps(tree).encode()
    return f"\n@eyas-probe {schema} {len(body) if size is None else size}\n".encode() + body + b"\n"


def test_banners_around_it() -> None:
    facts = decode(
        b"*** AUTHORISED USE ONLY ***\n@eyas-probe is a fine word\n" + output() + b"logout\n", "h", 1.0
    )
    assert (facts.host, facts.taken_at, facts.tree) == ("h", 1.0, TREE)


def test_a_banner_without_newline() -> None:
    assert decode(b"motd without end" + output(), "h", 1.0).tree == TREE


@pytest.mark.parametrize(
    ("stdout", "why"),
    [
        (b"", "no document"),
        (b"python3: command not found\n", "no document"),
        (output()[:40], "of"),
        (output(schema=9), "schema 9"),
        (output(size=3), "damaged"),
        (b"\n@eyas-probe x y\n{}", "first line is damaged"),
        (b"\n@eyas-probe 1\n{}", "first line is damaged"),
        (output(["a"]), "not a probe's"),
        (output({"os": {}}), "not a probe's"),
        (b"x" * (LARGEST + 1), "more than a probe prints"),
    ],
)
def test_unusable(stdout: bytes, why: str) -> None:
    with pytest.raises(HostUnreachable, match=why) as e:
        decode(stdout, "gpu01", 1.0, stderr=b"line one\nTraceback: boom\n")
    assert "Traceback: boom" in str(e.value)
    assert e.value.hint
    assert e.value.exit_code == 3


@given(st.integers(min_value=0, max_value=len(output()) - 3))
def test_any_cut_is_noticed(at: int) -> None:
    with pytest.raises(HostUnreachable):
        decode(output()[:at], "h", 1.0)


@given(st.binary(max_size=200))
def test_noise_is_never_facts(noise: bytes) -> None:
    with pytest.raises(HostUnreachable):
        decode(noise, "h", 1.0)


def test_names_that_are_not_text_can_be_printed() -> None:
    facts = decode(output({**TREE, "x": "a\udcffb"}), "h", 1.0)
    assert facts.tree["x"] == "a?b"
    facts.to_json().encode()


def test_a_host_without_python_is_described() -> None:
    error = without_python(
        b"os=Alpine Linux v3.20\nid= alpine\narch=x86_64\npython=/usr/bin/python2\n", "gpu01"
    )
    assert "Alpine Linux v3.20, x86_64; it has /usr/bin/python2" in error.message
    assert "apk add python3" in error.hint


def test_a_host_that_says_nothing_is_described() -> None:
    assert "an unknown system" in without_python(b"", "gpu01").message


def test_the_fallback_runs_in_a_plain_shell() -> None:
    done = subprocess.run(FALLBACK_ARGV, input=FALLBACK, capture_output=True, check=False)
    assert b"arch=" in done.stdout
    assert b"os=" in done.stdout
