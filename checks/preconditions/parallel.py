"""More than one card: how many there are, whether they are alike, whether they can talk."""

from collections.abc import Iterator

from checks.facts import HostFacts
from checks.outcome import Severity
from checks.preconditions.common import cards, do, each, gib, seen
from checks.preconditions.want import Want
from checks.rule import Found, NotApplicable, known, need, rule

__all__ = ["RULES"]

#: Shared memory the ranks' message queues and NCCL need.
SHM_LEAST, SHM_GOOD = 256 << 20, 1 << 30
#: Bits of the ACS control register that send peer traffic through the root: request, completion, upstream.
ACS_REDIRECT = 0x1C


def _several(want: Want) -> None:
    if want.cards_here < 2:
        raise NotApplicable("one card")


@rule("tp-world-size-exceeds-gpus", needs_cards=True)
def enough_cards(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The deployment asks for more cards than the host has."""
    listed = need(facts, "gpus")
    well = [g["index"] for g in listed if not g.get("error")]
    asked = want.cards_here
    if want.cards is not None:
        well = [i for i in well if i in want.cards]
    if asked > len(well):
        lost = len(listed) - len([g for g in listed if not g.get("error")])
        yield Found(
            f"{asked} cards are asked for (tensor {want.tensor_parallel} x pipeline {want.pipeline_parallel}"
            + (f" over {want.nodes} nodes" if want.nodes > 1 else "")
            + f"), {len(well)} answer"
            + (f", {lost} are lost" if lost else ""),
            seen("gpus", ", ".join(str(g.get("name", g.get("error"))) for g in listed) or "none"),
            do("lower tensor_parallel, or take a larger host", value=f"tensor_parallel: {max(1, len(well))}"),
        )


@rule("mig-no-tensor-parallel", needs_cards=True)
def mig(facts: HostFacts, want: Want) -> Iterator[Found]:
    """A card is cut into MIG slices, which can't be joined by tensor parallelism."""
    for card, on in each(facts, want, "mig"):
        if not on:
            continue
        several = want.cards_here > 1
        yield Found(
            f"card {card['index']} is in MIG mode, {want.cards_here} whole card(s) are asked for",
            seen(f"gpus.{card['index']}.mig", "on"),
            do("turn MIG off", f"sudo nvidia-smi -i {card['index']} -mig 0"),
            Severity.ERROR if several else Severity.WARNING,
            "" if several else "mig-visible-devices",
        )


@rule("tp-unbalanced-gpus", severity=Severity.WARNING, needs_cards=True)
def alike(facts: HostFacts, want: Want) -> Iterator[Found]:
    """The cards of one group differ: the smallest and slowest sets the pace."""
    _several(want)
    names = {card["index"]: name for card, name in each(facts, want, "name")}
    sizes = {card["index"]: size for card, size in each(facts, want, "memory_total")}
    if len(set(names.values())) > 1 or max(sizes.values()) - min(sizes.values()) > 1 << 30:
        told = ", ".join(f"{i}: {names.get(i)} {gib(sizes[i])}" for i in sizes)
        yield Found(
            f"the cards differ ({told}); each rank gets what fits the smallest",
            seen("gpus", told),
            do("choose cards of one kind", value="env: {CUDA_VISIBLE_DEVICES: ...}"),
        )


@rule("shm-too-small", needs_cards=False)
def shared_memory(facts: HostFacts, want: Want) -> Iterator[Found]:
    """/dev/shm is too small for the ranks' message queues."""
    _several(want)
    free, total = need(facts, "shm.free"), need(facts, "shm.total")
    if free >= SHM_GOOD:
        return
    yield Found(
        f"/dev/shm has {gib(free)} free of {gib(total)}, {want.cards_here} ranks want {gib(SHM_GOOD)}",
        seen("shm.free", free),
        do("enlarge it, or remove what a dead engine left there", "sudo mount -o remount,size=8G /dev/shm"),
        Severity.ERROR if free < SHM_LEAST else Severity.WARNING,
    )


@rule("tp-p2p-hang-iommu-acs", severity=Severity.WARNING, needs_cards=True)
def peer_access(facts: HostFacts, want: Want) -> Iterator[Found]:
    """PCI bridges redirect traffic between the cards: collectives can hang or crawl."""
    _several(want)
    pairs = need(facts, "p2p")
    chosen = [g["index"] for g in cards(facts, want)]
    direct = [(a, b) for a in chosen for b in chosen if a != b and pairs[a][b] == "ok"]
    if not direct or all(known(facts, f"gpus.{i}.nvlinks_active", 0) for i in chosen):
        return
    redirecting = [b["pci"] for b in need(facts, "driver.acs") if b["control"] & ACS_REDIRECT]
    if redirecting:
        yield Found(
            f"cards reach each other over PCIe, and ACS redirects on {len(redirecting)} bridges "
            f"({', '.join(redirecting[:4])})",
            seen("driver.acs", redirecting),
            do(
                "turn ACS off in the firmware, or keep NCCL off peer access",
                value="env: {NCCL_P2P_DISABLE: '1'}",
            ),
        )


RULES = (enough_cards, mig, alike, shared_memory, peer_access)
