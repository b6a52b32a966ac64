"""Each way in which weights do not come, its own next step, and the run after it that finishes."""

import json
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from inventory.model import ModelRef
from provision import converge, layout
from provision.change import Change
from provision.converge import plan_changes
from provision.drift import drift
from provision.run import Flags
from provision.weights import NEXT_STEP
from tests.lab.conftest import MakeLab
from tests.lab.provision.stage import Caller, Stage, eventually, write_model

pytestmark = pytest.mark.lab
TOKEN = "good-token"


@pytest.fixture(scope="module")
def small(make_lab: MakeLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """A host that serves something, which every failure must leave alone."""
    lab = make_lab(["gpu01"], profile="rtx4090x1")
    try:
        with Stage.open(lab, tmp_path_factory.mktemp("small")) as opened:
            opened.hub.access.tokens = {TOKEN: "me"}
            report = opened.run(opened.deployment(None))
            assert report.exit_code == 0, report.error
            yield opened
    finally:
        lab.down()


@pytest.fixture
def stage(small: Stage) -> Iterator[Stage]:
    """And it serves after each test all that it served before."""
    before = small.current()
    yield small
    small.hub.faults.clear()
    assert small.current() == before
    assert small.answers()


def gated(stage: Stage) -> None:
    stage.hub.access.gated["eyas-lab/head"] = []


def private(stage: Stage) -> None:
    stage.hub.access.private["eyas-lab/head"] = ["me"]


Set = Callable[[Stage], object]
BAD: dict[str, tuple[Set, str | None, str]] = {
    "gated, no token": (gated, None, "gated-no-token"),
    "gated, not granted": (gated, TOKEN, "gated-no-access"),
    "bad token": (lambda _: None, "wrong-token", "bad-token"),
    "private, no token": (private, None, "repo-missing"),
    "fine-grained token": (lambda s: s.hub.faults.add("resolve", status=403), TOKEN, "forbidden"),
    "rate limit": (lambda s: s.hub.faults.rate_limited("", seconds=1, times=None), None, "rate-limited"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_the_hub_refuses_is_refused_before_anything_is_touched(
    stage: Stage, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    arrange, token, kind = BAD[case]
    monkeypatch.setenv("LAB_TOKEN", token or "-")
    arrange(stage)
    try:
        report = stage.run(stage.deployment(hub_token="env:LAB_TOKEN" if token else None))
    finally:
        stage.hub.access.gated, stage.hub.access.private = {}, {}
    assert (report.exit_code, report.status, report.hint) == (4, "refused", NEXT_STEP[kind]), report.error
    assert report.changes == []


@pytest.mark.parametrize(
    ("ref", "kind"),
    [
        (ModelRef(repo="eyas-lab/no-such"), "repo-missing"),
        (ModelRef(repo="eyas-lab/head", revision="no-such-branch"), "revision-missing"),
        (ModelRef(repo="eyas-lab/head", revision="0" * 40), "revision-missing"),
    ],
)
def test_what_is_not_there(stage: Stage, ref: ModelRef, kind: str) -> None:
    draft = stage.deployment().draft.model_copy(update={"model": ref})
    report = stage.run(stage.deployment(draft=draft))
    assert (report.exit_code, report.hint) == (4, NEXT_STEP[kind]), report.error


def test_a_hub_that_is_not_there(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stage.hub, "url", "http://127.0.0.1:9")
    report = stage.run(stage.deployment())
    assert (report.exit_code, report.hint) == (4, NEXT_STEP["network"]), report.error


@pytest.fixture
def moved(stage: Stage) -> Iterator[None]:
    """The target's main has another commit than is served; the served one is still there, as history is."""
    main = stage.hub.repos.root / "eyas-lab" / "target"
    before = Path(shutil.copytree(main, main.with_name("target@before")))
    write_model(main, size=3 << 20, fill=b"new")
    yield
    shutil.rmtree(main)
    before.rename(main)


@pytest.mark.usefixtures("moved")
def test_a_branch_that_moved_changes_nothing_until_it_is_pinned(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    d = stage.deployment(None)
    report = stage.run(d)
    assert (report.status, report.changes) == ("ok", []), report.error
    [note] = [n for n in report.notes if "has moved to" in n]
    assert "invoke pin --deployment chat" in note
    monkeypatch.setenv("HF_ENDPOINT", stage.hub.url)
    drift([stage.host()], str(stage.write(d)), Flags(as_json=True))
    [host] = json.loads(capsys.readouterr().out)["hosts"]
    assert (host["moved"], host["pending"], host["differences"]) == ([note], [], [])
    snapshot = stage.hub.repos.snapshot("eyas-lab/target", "main")
    assert snapshot
    report = stage.run(stage.deployment(None, target=stage.model("target", snapshot.commit)), check=True)
    assert report.changes[0]["title"].startswith(f"download eyas-lab/target@{snapshot.commit[:12]}")


LFS = "GET /lfs/.*head"
ON_THE_WAY: dict[str, tuple[Set, str]] = {
    "the CDN refuses": (lambda s: s.hub.faults.add(LFS, status=403), "forbidden"),
    "the file is gone": (lambda s: s.hub.faults.add(LFS, status=404), "missing"),
    "rate limit": (lambda s: s.hub.faults.rate_limited(LFS, seconds=1, times=None), "rate-limited"),
    "flipped byte": (lambda s: s.hub.faults.add(LFS, flip_at=9000), "corrupt"),
    "short file": (lambda s: s.hub.faults.add(LFS, truncate=5000), "corrupt"),
}


@pytest.mark.parametrize("case", ON_THE_WAY)
def test_what_fails_on_the_way_has_its_own_next_step(stage: Stage, case: str) -> None:
    arrange, kind = ON_THE_WAY[case]
    stage.sh("rm -rf /var/lib/eyas/weights/eyas-lab--head-*")
    arrange(stage)
    with Caller(stage) as caller:
        report = stage.run(stage.deployment())
        caller.answered()
    assert (report.exit_code, report.status) == (5, "failed"), report.error
    assert report.hint == NEXT_STEP[kind], report.error
    assert not stage.sh("ls -d /var/lib/eyas/weights/eyas-lab--head-*/*[0-9a-f] 2>/dev/null || true")
    assert not stage.sh(
        "find /var/lib/eyas/weights -name '*.incomplete' -o -name '*.safetensors' -path '*partial*'"
    )


@pytest.fixture
def unserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything up to the switch: weights and release are made, what serves stays."""
    monkeypatch.setattr(converge, "plan_changes", lambda *words: _before_the_switch(plan_changes(*words)))


def _before_the_switch(changes: list[Change]) -> list[Change]:
    return [c for c in changes if not c.title.startswith(("serve release", "proof"))]


@pytest.mark.usefixtures("unserved")
@pytest.mark.parametrize("fault", [{"cut_at": 20000}, {"flip_at": 9000}, {"status": 503}], ids=str)
def test_what_fails_once_is_fetched_again(stage: Stage, fault: dict[str, int]) -> None:
    stage.sh("rm -rf /var/lib/eyas/weights/eyas-lab--head-*")
    stage.hub.faults.add(LFS, times=1, **fault)
    before = len(stage.hub.requests(LFS))
    report = stage.run(stage.deployment())
    assert (report.exit_code, report.status) == (0, "changed"), report.error
    assert len(stage.hub.requests(LFS)) > before + 1
    whole = stage.sh("stat -c %s /var/lib/eyas/weights/eyas-lab--head-*/*/model.safetensors")
    assert int(whole) > 1 << 16


def test_a_repository_that_was_uploaded_broken_is_named(stage: Stage) -> None:
    """Hash and size are as the hub says; the content is a pointer, or was cut before it was uploaded."""
    for name, data, kind in (
        ("pointer-head", b"version https://git-lfs.github.com/spec/v1\n" + b"oid " * 9, "pointer"),
        ("cut-head", None, "truncated"),
    ):
        folder = write_model(stage.hub.repos.root / "eyas-lab" / name)
        file = folder / "model.safetensors"
        file.write_bytes(data or file.read_bytes()[:-10])
        report = stage.run(stage.deployment(name))
        assert (report.exit_code, report.hint) == (5, NEXT_STEP[kind]), report.error


def test_a_local_folder_of_pointers_is_refused(stage: Stage) -> None:
    folder = write_model(stage.folder / "pointers" / "head")
    (folder / "model.safetensors").write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 65000\n"
    )
    draft = stage.deployment().draft.model_copy(update={"model": ModelRef(path=str(folder))})
    report = stage.run(stage.deployment(draft=draft))
    assert (report.exit_code, report.status) == (2, "failed"), report.error
    assert "git lfs pull" in report.hint


def test_a_local_folder_with_a_cut_shard_is_refused(stage: Stage) -> None:
    folder = write_model(stage.folder / "cut" / "head")
    data = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(data[:-100])
    draft = stage.deployment().draft.model_copy(update={"model": ModelRef(path=str(folder))})
    report = stage.run(stage.deployment(draft=draft))
    assert report.exit_code == 2, report.error
    assert "model.safetensors" in report.error


@pytest.mark.usefixtures("unserved")
def test_a_killed_download_is_cleaned_up_and_finished(stage: Stage) -> None:
    big = stage.hub.repos.root / "eyas-lab" / "big-head"
    write_model(big, size=2 << 20, num_hidden_layers=1)
    stage.hub.faults.add("/lfs/.*big-head", rate=200_000)
    d = stage.deployment("big-head")
    operator = stage.start(d)
    operator.says("download eyas-lab/big-head")
    eventually(
        lambda: stage.sh("find /var/lib/eyas/weights -name '*.incomplete'"), within=20, what="a partial file"
    )
    operator.kill(signal.SIGKILL)
    operator.finish()
    stage.hub.faults.clear()
    report = stage.run(d)
    assert report.exit_code == 0, report.error
    assert not stage.sh(
        "find /var/lib/eyas/weights/eyas-lab--big-head-* "
        "-name '*.incomplete' -o -name '*.partial' -o -name .cache"
    )
    mark = json.loads(stage.sh("cat /var/lib/eyas/weights/eyas-lab--big-head-*/*/.eyas-verified.json"))
    assert mark["repo"] == "eyas-lab/big-head"


@pytest.mark.parametrize("size", ["32k", "76k"], ids=["too small at once", "full on the way"])
def test_a_disk_that_fills_up(stage: Stage, size: str) -> None:
    """A file system of this size where the head goes: the look before only knows the disk of /var/lib."""
    stage.sh("rm -rf /var/lib/eyas/weights/eyas-lab--head-*")
    stage.run(stage.deployment(), check=True)
    folder = layout.weights_dir("eyas-lab/head", "0" * 40).rpartition("/")[0]
    stage.sh(f"mkdir -p {folder} && mount -t tmpfs -o size={size} full {folder}")
    try:
        report = stage.run(stage.deployment())
        assert (report.exit_code, report.hint) == (5, NEXT_STEP["disk-full"]), report.error
    finally:
        stage.sh(f"umount {folder}")
