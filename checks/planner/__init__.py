"""The memory planner: what a start takes on each GPU, whether it fits, and what to change when it doesn't.

`plan(Scenario)` gives a `Plan`; `advise(Scenario)` gives the cheapest changes, each planned again.
"""

from checks.planner.plan import plan
from checks.planner.result import Plan, Stop, Term
from checks.planner.scenario import Scenario, load_scenario

__all__ = ["Plan", "Scenario", "Stop", "Term", "load_scenario", "plan"]
