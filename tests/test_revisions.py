"""A branch in a deployment's file: resolved once, kept while it is served, told when it moves."""

from typing import Any

import pytest

from checks.facts import HostFacts
from inventory.errors import CheckRefused
from inventory.model import Deployment, ModelRef
from provision.revisions import Branches, served_commit
from provision.rollout.plan import Member
from provision.rollout.resolve import one_commit
from provision.weights import FileSpec, Manifest

OLD, NEW = "a" * 40, "b" * 40
MAIN = ModelRef(repo="acme/m")
CHAT = Deployment(name="chat", engine="vllm", target=MAIN)


class Hub:
    """Its ``main`` is at ``commit``; counts what it is asked."""

    def __init__(self, commit: str = OLD) -> None:
        self.commit = commit
        self.asked: list[str] = []

    def __call__(self, ref: ModelRef) -> Manifest:
        self.asked.append(ref.revision)
        commit = ref.revision if ref.pinned else self.commit
        return Manifest(ref, commit, (FileSpec(f"{commit[0]}.safetensors", 1),))


def facts(commit: Any = OLD, *, label: str = "acme/m", deployment: str = "chat") -> HostFacts:
    release = {"id": "r1", "weights": {"target": {"label": label, "commit": commit}}}
    return HostFacts("gpu01", 0.0, {"eyas": {"current": {deployment: "r1"}, "releases": [release]}})


NOTHING = HostFacts("gpu02", 0.0, {})


def test_todays_commit_is_taken_once_a_run_and_the_way_to_pin_it_is_named() -> None:
    hub, branches = Hub(), Branches()
    one = branches.find("target", MAIN, CHAT, NOTHING, hub)
    hub.commit = NEW
    two = branches.find("target", MAIN, CHAT, NOTHING, hub)
    assert (one.manifest.commit, two.manifest.commit, hub.asked) == (OLD, OLD, ["main"])
    assert (
        one.note(CHAT)
        == "acme/m: main is aaaaaaaaaaaa now; invoke pin --deployment chat writes that into its file"
    )
    assert not one.moved


def test_a_branch_that_moved_changes_nothing_that_serves() -> None:
    hub = Hub(NEW)
    found = Branches().find("target", MAIN, CHAT, facts(), hub)
    assert (found.manifest.commit, found.moved, hub.asked) == (OLD, NEW, ["main", OLD])
    assert found.manifest.ref == MAIN, "the file's own words name the folder and the release"
    assert [f.path for f in found.manifest.files] == ["a.safetensors"]
    assert "has moved to bbbbbbbbbbbb" in found.note(CHAT)
    assert f"revision: {OLD} keeps" in found.note(CHAT)


def test_a_commit_in_the_file_is_what_is_meant() -> None:
    hub, pinned = Hub(OLD), ModelRef(repo="acme/m", revision=NEW)
    found = Branches().find("target", pinned, CHAT, facts(), hub)
    assert (found.manifest.commit, found.moved, found.note(CHAT)) == (NEW, "", "")


@pytest.mark.parametrize(
    "seen",
    [NOTHING, facts(label="acme/other"), facts(deployment="code"), facts(commit=None), facts(commit=5),
     HostFacts("h", 0.0, {"eyas": {"current": {"chat": "gone"}, "releases": [{"id": "r1"}]}}),
     HostFacts("h", 0.0, {"eyas": {"current": {"chat": "r1"}, "releases": [{"id": "r1", "weights": 5}]}})],
)  # fmt: skip
def test_only_what_is_served_holds_a_branch(seen: HostFacts) -> None:
    assert served_commit(seen, "chat", "target", "acme/m") is None
    assert Branches().find("target", MAIN, CHAT, seen, Hub(NEW)).manifest.commit == NEW


def member(name: str, revision: str, **words: Any) -> Member:
    deployment = {
        "name": "chat",
        "target": {"repo": "acme/m", "revision": revision},
        "draft": {"method": "none"},
    }
    return Member({"name": name}, deployment, "pending", **{"want": "r", **words})


def test_a_rollout_takes_its_hosts_to_one_commit() -> None:
    away = member("gpu03", "main", want="")
    one_commit([member("gpu01", OLD), member("gpu02", OLD), away])
    with pytest.raises(CheckRefused, match="gpu01: aaaaaaaaaaaa; gpu02: bbbbbbbbbbbb") as e:
        one_commit([member("gpu01", OLD), member("gpu02", NEW), away])
    assert e.value.hint.startswith("invoke pin --deployment chat")
