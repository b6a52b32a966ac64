"""The catalogue's own laws: no gap, no overlap, nothing unsourced that decides; and what it answers."""

import itertools
from collections import defaultdict
from collections.abc import Hashable, Iterable

import pytest
from packaging.version import Version

from inventory.catalogue import Catalogue, load_catalogue
from inventory.errors import CheckRefused, UsageError
from inventory.hardware import card_named, find_card, load_cards, load_drivers
from inventory.resolve import Resolution, locked_versions, resolve_version

CATALOGUE = load_catalogue()
ENGINES = ("vllm", "sglang")
BASIC = """model revision served_model_name host port tensor_parallel dtype quantization kv_cache_dtype
    max_model_len memory_fraction max_num_seqs max_num_batched_tokens enforce_eager enable_prefix_caching
    trust_remote_code"""
RELEASES = [(e, v) for e in ENGINES for v in CATALOGUE.releases(e)]


@pytest.mark.parametrize("engine", ENGINES)
def test_every_published_version_has_one_stack(engine: str) -> None:
    data = CATALOGUE.engine(engine)
    for version in data.published:
        held = [s.examined for s in data.stack if s.holds(Version(version))]
        assert len(held) == 1, (version, held)


@pytest.mark.parametrize("engine", ENGINES)
def test_every_examined_version_is_published_and_inside_its_own_range(engine: str) -> None:
    data = CATALOGUE.engine(engine)
    for stack in data.stack:
        assert stack.examined in data.published
        assert stack.holds(Version(stack.examined))
    assert list(data.published) == sorted(data.published, key=Version)


def overlaps(engine: str, rows: Iterable[tuple[Hashable, object]]) -> list[tuple[str, Hashable]]:
    by_key = defaultdict(list)
    for key, row in rows:
        by_key[key].append(row)
    versions = [Version(v) for v in CATALOGUE.releases(engine)]
    return [
        (str(v), key)
        for v, (key, group) in itertools.product(versions, by_key.items())
        if sum(r.holds(v) for r in group) > 1  # type: ignore[attr-defined]
    ]


@pytest.mark.parametrize("engine", ENGINES)
def test_one_spelling_per_role_and_one_row_per_name(engine: str) -> None:
    data = CATALOGUE.engine(engine)
    assert overlaps(engine, (((f.role), f) for f in data.flag)) == []
    assert overlaps(engine, (((f.flag, f.key), f) for f in data.flag)) == []
    assert overlaps(engine, ((m.name, m) for m in data.method)) == []
    assert overlaps(engine, ((d.name, d) for d in data.default)) == []
    assert overlaps(engine, ((m.role, m) for m in data.metric)) == []
    assert overlaps(engine, ((p.name, p) for p in data.piece)) == []
    assert overlaps(engine, ((m, row) for row in data.draft_tp for m in row.methods)) == []
    assert overlaps(engine, ((r.flag, r) for r in data.retired)) == []


@pytest.mark.parametrize("engine", ENGINES)
def test_plain_roles_have_no_gap(engine: str) -> None:
    """Every version can say these; a gap is a typing error in the data."""
    always = frozenset(BASIC.split())
    for version in CATALOGUE.releases(engine):
        assert always - set(CATALOGUE.release(engine, version).flags) == set(), version


@pytest.mark.parametrize("engine", ENGINES)
def test_every_method_has_the_flags_to_say_it(engine: str) -> None:
    for version in CATALOGUE.releases(engine):
        release = CATALOGUE.release(engine, version)
        for method in release.methods.values():
            assert method.value is None or "draft_method" in release.flags, (version, method.name)
            assert method.model_value is None or "draft_model" in release.flags, (version, method.name)


@pytest.mark.parametrize("engine", ENGINES)
def test_retired_flags_are_no_roles(engine: str) -> None:
    data = CATALOGUE.engine(engine)
    assert {r.flag for r in data.retired} & {n for f in data.flag for n in (f.flag, *f.aliases)} == set()


@pytest.mark.parametrize(
    ("engine", "version", "torch", "cuda", "driver"),
    [
        ("vllm", "0.6.2", "2.4.0", "12.1", "525.60.13"),
        ("vllm", "0.19.1", "2.10.0", "12.8", "525.60.13"),
        ("vllm", "0.20.2", "2.11.0", "13.0", "580"),
        ("vllm", "0.33.0", "2.14.0", "13.0", "580"),
        ("sglang", "0.5.10.post1", "2.9.1", "12.8", "525.60.13"),
        ("sglang", "0.5.23", "2.14.1", "13.0", "580"),
    ],
)
def test_stack(engine: str, version: str, torch: str, cuda: str, driver: str) -> None:
    stack = CATALOGUE.release(engine, version).stack
    assert (stack.torch, stack.cuda, stack.driver_floor) == (torch, cuda, driver)


def test_a_version_between_examined_ones_says_so() -> None:
    assert "nearest examined 0.20.2" in CATALOGUE.release("vllm", "0.20.0").note
    assert CATALOGUE.release("vllm", "0.33.0").note == ""


def test_local_versions_are_their_public_part() -> None:
    assert CATALOGUE.release("vllm", "0.32.0+cpu").version == "0.32.0"


@pytest.mark.parametrize(
    ("version", "words"),
    [
        ("0.34.0", "newer than this catalogue, which ends at 0.33.0"),
        ("0.5.5", "older than this catalogue, which begins at 0.6.2"),
        ("0.21.0", "without a wheel"),
        ("0.8.9", "never published"),
        ("latest", "not a version"),
        ("", "not a version"),
    ],
)
def test_unknown_versions_name_near_ones(version: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        CATALOGUE.release("vllm", version)
    assert "catalogued" in caught.value.hint


def test_unknown_engine_names_the_known() -> None:
    with pytest.raises(UsageError) as caught:
        CATALOGUE.release("tgi", "1.0")
    assert "vllm, sglang" in caught.value.hint


@pytest.mark.parametrize(
    ("version", "fraction", "subtracted"), [("0.19.1", 0.90, False), ("0.20.2", 0.92, True)]
)
def test_memory_defaults_turn_at_0_20(version: str, fraction: float, subtracted: bool) -> None:
    defaults = CATALOGUE.release("vllm", version).defaults
    assert defaults["gpu_memory_utilization"] == fraction
    assert defaults["cudagraph_memory_subtracted"] is subtracted


@pytest.mark.parametrize(
    ("version", "gib", "card", "sizes"),
    [
        ("0.33.0", 179, "NVIDIA B200", (1024, 16384)),
        ("0.27.1", 179, "NVIDIA B200", (1024, 8192)),
        ("0.33.0", 80, "NVIDIA H100 80GB HBM3", (1024, 8192)),
        ("0.33.0", 80, "NVIDIA A100-SXM4-80GB", (256, 2048)),
        ("0.33.0", 24, "NVIDIA GeForce RTX 4090", (256, 2048)),
    ],
)
def test_batch_defaults_by_card(version: str, gib: float, card: str, sizes: tuple[int, int]) -> None:
    row = CATALOGUE.release("vllm", version).batch_defaults(memory_gib=gib, card=card)
    assert row is not None
    assert (row.max_num_seqs, row.max_num_batched_tokens) == sizes


def test_health_and_proof_find_their_metrics() -> None:
    for engine, version in RELEASES:
        metrics = CATALOGUE.release(engine, version).metrics
        assert {"kv_usage", "requests_running", "requests_waiting", "ttft"} <= set(metrics), version


def resolve(
    wanted: str = "auto",
    *,
    engine: str = "vllm",
    driver: str | None = "580.159.04",
    glibc: str | None = "2.39",
    python: str | None = "3.12",
    cc: str | None = "8.9",
    candidates: tuple[str, ...] | None = ("0.19.1", "0.33.0"),
    catalogue: Catalogue = CATALOGUE,
) -> Resolution:
    return resolve_version(
        catalogue, engine, wanted, driver=driver, glibc=glibc, python=python, compute_capability=cc,
        candidates=candidates,
    )  # fmt: skip


def test_auto_takes_the_cuda_13_line_on_580() -> None:
    assert resolve() == Resolution("0.33.0")


def test_auto_takes_the_cuda_12_line_on_570_and_says_why() -> None:
    found = resolve(driver="570.195.03")
    assert found.version == "0.19.1"
    assert found.reasons == (
        "not 0.33.0: driver 570.195.03 is older than 580, the floor of CUDA 13.0 wheels",
    )


def test_auto_passes_over_what_the_card_can_t_run() -> None:
    assert resolve(cc="7.0").version == "0.19.1"


def test_auto_refuses_when_nothing_fits_and_names_the_way_out() -> None:
    with pytest.raises(CheckRefused, match=r"driver 470.*older than 580") as caught:
        resolve(driver="470.256.02")
    assert "--install-driver" in caught.value.hint


def test_auto_without_locks_says_how_to_make_one() -> None:
    with pytest.raises(CheckRefused) as caught:
        resolve(candidates=())
    assert "invoke lock" in caught.value.hint


def test_a_pinned_version_is_held_to_the_same_floors() -> None:
    assert resolve("0.32.0").version == "0.32.0"
    with pytest.raises(CheckRefused, match=r"driver 550\.1 is older than 580"):
        resolve("0.33.0", driver="550.1")
    with pytest.raises(CheckRefused, match=r"glibc 2\.31"):
        resolve("0.20.2", glibc="2.31")
    with pytest.raises(CheckRefused, match=r"Python 3\.10"):
        resolve("0.33.0", python="3.10")


def test_what_nobody_could_read_is_said_not_passed() -> None:
    assert "driver not known: its floor was not compared" in resolve(driver=None).reasons


def test_cpu_takes_what_has_a_cpu_build() -> None:
    found = resolve_version(
        CATALOGUE, "vllm", "auto", driver=None, glibc="2.36", python="3.11", compute_capability=None,
        device="cpu", candidates=("0.32.0", "0.33.0"),
    )  # fmt: skip
    assert found.version == "0.32.0"
    assert found.reasons == ("not 0.33.0: no CPU build of it is catalogued",)


def test_locks_are_found_by_name(tmp_path: object) -> None:
    from pathlib import Path

    folder = Path(str(tmp_path))
    for name in ("vllm-0.33.0-cu130.txt", "vllm-0.19.1.txt", "vllm-0.32.0-cpu.txt", "sglang-0.5.23.txt", "x"):
        (folder / name).touch()
    assert locked_versions("vllm", folder=folder) == ("0.19.1", "0.33.0")
    assert locked_versions("vllm", "cpu", folder) == ("0.32.0",)
    assert locked_versions("sglang", folder=folder / "nowhere") == ()


@pytest.mark.parametrize(
    ("nvml", "name"),
    [
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA L40S", "L40S"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA A100-SXM4-80GB", "A100 80GB SXM"),
        ("NVIDIA A100 80GB PCIe", "A100 80GB PCIe"),
        ("NVIDIA H100 80GB HBM3", "H100 SXM"),
        ("NVIDIA H100 PCIe", "H100 PCIe"),
        ("NVIDIA H200", "H200"),
        ("Tesla T4", "T4"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "RTX PRO 6000 Blackwell"),
        ("NVIDIA RTX 6000 Ada Generation", "RTX 6000 Ada"),
    ],
)
def test_cards_by_the_name_nvml_gives(nvml: str, name: str) -> None:
    card = find_card(nvml)
    assert card is not None
    assert card.name == name
    assert card_named(name) is card


def test_cards_nobody_catalogued() -> None:
    assert find_card("NVIDIA GeForce GTX 1080") is None
    assert find_card("NVIDIA L400") is None
    assert len({c.name for c in load_cards()}) == len(load_cards())


def test_drivers() -> None:
    drivers = load_drivers()
    assert drivers.floor_for("13.0") == "580"
    assert drivers.shipped_with("12.8") == "570.26"
    assert drivers.newest_cuda("580.159.04") == "13.0"
    assert drivers.newest_cuda("470.1") is None
    assert drivers.default_branch.package(server=True, open_module=True) == "nvidia-driver-580-server-open"
    for engine, version in RELEASES:
        stack = CATALOGUE.release(engine, version).stack
        assert stack.driver_floor == drivers.floor_for(stack.cuda), (engine, version)
