"""Which way of serving fits a model, cards and use: from the planner, the pair catalogue and measured curves.

`advise(Question, load)` gives an `Answer` whose every line says whether it is measured, planned, estimated or
assumed, and by what.
"""

from checks.advise.decide import advise
from checks.advise.question import Answer, Line, Question, parse_gpus

__all__ = ["Answer", "Line", "Question", "advise", "parse_gpus"]
