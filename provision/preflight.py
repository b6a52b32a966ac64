"""Before a new release is made: does the head fit the target, and do both fit the cards?

The same functions as `check-pair` and `plan`, from the models' metadata; no weights are read.
"""

from checks.facts import HostFacts
from checks.modelmeta import ModelMeta, load_model_meta
from checks.nodes.traffic import traffic, warn
from checks.outcome import Evidence, Finding, Fix, Severity
from checks.pairgate import PairVerdict, check_pair, want_of
from checks.planner import plan
from checks.planner.advice import advise
from checks.planner.deployment import gpus_of, scenario_of
from checks.planner.shapes import shape_of
from checks.rule import code_of
from inventory.errors import EyasError
from inventory.model import Deployment
from provision.sources import Sources
from provision.want import Want

__all__ = ["preflight"]


def preflight(want: Want, facts: HostFacts, sources: Sources) -> tuple[list[Finding], list[str]]:
    """Findings (errors refuse), and what could not be looked at and why."""
    d = want.deployment
    try:
        target = load_model_meta(d.target, endpoint=sources.endpoint, token=want.hub_token, tokenizer=False)
        draft = None
        if d.draft.model:
            draft = load_model_meta(
                d.draft.model, endpoint=sources.endpoint, token=want.hub_token, tokenizer=False
            )
    except EyasError as e:
        return [], [f"fit of models and cards: {e.message}"]
    resolved = d.model_copy(update={"engine_version": want.engine.version})
    want_pair = want_of(resolved)
    findings = _pair(check_pair(target, draft, want_pair), facts.host) if draft else []
    findings += _network(want, target, facts)
    unseen: list[str] = []
    if d.device == "cuda" and not any(f.severity is Severity.ERROR for f in findings):
        try:
            findings += _memory(resolved, target, draft, facts)
        except EyasError as e:
            unseen.append(f"memory plan: {e.message}")
    return findings, unseen


def _network(want: Want, target: ModelMeta, facts: HostFacts) -> list[Finding]:
    """Of several hosts: what crosses the network, by the speed that was measured or the kernel tells."""
    d, group = want.deployment, want.group
    if not group or group["rank"]:
        return []
    name = group["members"][0]["interface"]
    ports = facts.value("network.interfaces", list) or []
    told = next((i.get("speed_mbit") for i in ports if i.get("name") == name), None)
    mbit = group.get("measured_mbit") or told
    source = "iperf3" if group.get("measured_mbit") else f"network.interfaces {name} speed"
    sizes = {"tp": d.tensor_parallel, "pp": d.pipeline_parallel, "nodes": d.nodes}
    try:
        crossing = traffic(shape_of(target.config), **sizes)
    except EyasError:
        return []
    return list(warn(crossing, **sizes, mbit=mbit, source=source, host=facts.host))


def _pair(verdict: PairVerdict, host: str) -> list[Finding]:
    other = "; ".join(f"{a.get('method')} {a.get('draft') or ''}".strip() for a in verdict.alternatives[:2])
    return [
        Finding(
            code=code_of(r.slug),
            slug=r.slug,
            severity=Severity.ERROR if r.severity == "refuse" else Severity.WARNING,
            title="the draft does not fit the target",
            cause=r.why,
            evidence=(Evidence(r.field, f"target {r.target}, draft {r.draft}"),),
            fix=(Fix(r.instead or other, why=f"the engine would say: {r.error}" if r.error else ""),),
            host=host,
        )
        for r in verdict.reasons
    ]


def _memory(d: Deployment, target: ModelMeta, draft: ModelMeta | None, facts: HostFacts) -> list[Finding]:
    scenario = scenario_of(d, target, draft, gpus_of(facts))
    planned = plan(scenario)
    if planned.verdict == "fits":
        return []
    refused = planned.stop is not None
    slug = (planned.reason or "") if refused else "memory-tight"
    offers = advise(scenario, limit=3) if refused else []
    fixes = tuple(Fix(a.change, a.value, f"{a.change}: {a.value}", a.cost) for a in offers)
    free = f"{(planned.free or 0) / 2**30:.1f} GiB stay free on a card"
    return [
        Finding(
            code=code_of(slug),
            slug=slug,
            severity=Severity.ERROR if refused else Severity.INFO,
            title="the planned memory does not fit" if refused else "little memory stays free",
            cause=planned.stop.text if planned.stop else free,
            fix=fixes,
            confidence="medium",
            host=facts.host,
        )
    ]
