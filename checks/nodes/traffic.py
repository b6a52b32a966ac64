"""What crosses the network for each token, when the ranks of one model are on several hosts.

Tensor parallel: two all-reduces a layer, each of one hidden state; in a ring over n ranks every rank sends
2 (n-1)/n of it, and a host's link carries that once each way. Pipeline parallel: one hidden state (and the
residual beside it) a stage that is on another host. Ranks are laid out with tensor parallel innermost.
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass

from checks.outcome import Evidence, Finding, Fix, Severity
from checks.planner.shapes import Shape
from checks.rule import code_of

__all__ = ["Traffic", "speed", "traffic", "warn"]

#: Of a link's rate what small messages get at best; a bound to reason with, not a measurement.
EFFICIENCY = 0.8
USUAL_MBIT = (10_000, 25_000, 100_000)


@dataclass(frozen=True)
class Traffic:
    """Bytes a token over one host's link, the number of collectives, and which kind they are."""

    bytes_per_token: int
    messages: int
    tensor_parallel_crosses: bool

    def ms_per_token(self, mbit: float) -> float:
        """On the wire alone, without any latency, for one sequence."""
        return self.bytes_per_token * 8 / (mbit * 1e6 * EFFICIENCY) * 1000

    def to_json(self) -> dict[str, object]:
        rates = {f"{m / 1000:g}": round(self.ms_per_token(m), 3) for m in USUAL_MBIT}
        return {**asdict(self), "ms_per_token_at_gbit": rates}

    def crossing(self, tp: int, nodes: int) -> str:
        size = f"{self.bytes_per_token / 1024:,.0f} KiB in {self.messages} all-reduces a token"
        return f"tensor_parallel {tp} over {nodes} hosts sends {size}"

    def sentence(self, tp: int, nodes: int) -> str:
        """For a plan, which knows no link: at the usual speeds."""
        many = "s" if self.messages > 1 else ""
        stages = (
            f"{self.bytes_per_token / 1024:,.0f} KiB a token in {self.messages} message{many} between stages"
        )
        what = self.crossing(tp, nodes) if self.tensor_parallel_crosses else stages
        wire = ", ".join(f"{self.ms_per_token(m):.2f} ms at {speed(m)}" for m in USUAL_MBIT)
        return f"network: {what}; on the wire alone, without latency: {wire}"


def speed(mbit: float) -> str:
    return f"{mbit / 1000:.3g} Gbit/s" if mbit >= 1000 else f"{mbit:.0f} Mbit/s"


def traffic(shape: Shape, *, tp: int, pp: int, nodes: int) -> Traffic:
    """For one token of one sequence through the target."""
    state = shape.hidden * shape.dtype_bytes
    here = tp * pp // nodes
    if tp > here or here % tp:
        layers = -(-shape.layers // pp)
        return Traffic(
            round(2 * layers * 2 * (tp - 1) / tp * state), 2 * layers, tensor_parallel_crosses=True
        )
    return Traffic((nodes - 1) * 2 * state, nodes - 1, tensor_parallel_crosses=False)


def warn(
    t: Traffic, *, tp: int, pp: int, nodes: int, mbit: float | None, source: str, host: str
) -> Iterator[Finding]:
    """A warning where tensor parallel crosses the network; layers split into stages are as it should be."""
    if not t.tensor_parallel_crosses:
        return
    wire = f": {t.ms_per_token(mbit):.2f} ms a token on the wire at {speed(mbit)}" if mbit else ""
    unknown = "" if mbit else "; the link's speed is not known"
    yield Finding(
        code=code_of("tp-over-network"),
        slug="tp-over-network",
        severity=Severity.WARNING,
        title="tensor parallel crosses the network",
        cause=f"{t.crossing(tp, nodes)}{wire}{unknown}",
        evidence=(Evidence(source, f"{mbit:.0f} Mbit/s" if mbit else "unknown"),),
        fix=_instead(tp, pp, nodes),
        host=host,
    )


def _instead(tp: int, pp: int, nodes: int) -> tuple[Fix, ...]:
    world = tp * pp
    inside = world // nodes
    why = "each stage stays inside one host; only one hidden state a token crosses"
    return (Fix("tensor_parallel and pipeline_parallel", f"{inside} and {nodes}", why=why),)
