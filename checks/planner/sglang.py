"""SGLang: one static pool for weights and KV, the rest for activations and graphs. A wide estimate."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from checks.planner.plan import Plan
    from checks.planner.scenario import Scenario
    from checks.planner.work import Work


def plan(s: "Scenario", w: "Work") -> "Plan":
    raise NotImplementedError
