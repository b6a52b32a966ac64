"""The doctor: from log lines, facts, unit and metrics to the one cause, its evidence and a computed fix.

``diagnose(Inputs(...)) -> Report`` is pure. Reading files lives in `sources`, text output in `report`.
"""

from checks.doctor.catalogue import Catalogue, Code, catalogue
from checks.doctor.diagnose import diagnose
from checks.doctor.model import Inputs, Report

__all__ = ["Catalogue", "Code", "Inputs", "Report", "catalogue", "diagnose"]
