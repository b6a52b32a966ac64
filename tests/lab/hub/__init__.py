"""A stand-in for the model hub, and for a package index, that unmodified clients talk to over real HTTP.

``Hub(root)`` serves each folder ``root/<owner>/<name>`` as a repository (``<name>@<branch>`` as a branch of
it): repo info, paged trees, resolve with LFS redirects to a second address, ETags, ranges, gating, rate
limits. Faults are rules set while it runs, from Python (``hub.faults``) or over HTTP (``/_lab/faults``).
``python -m tests.lab.hub --help`` runs it alone.
"""

from tests.lab.hub.faults import Fault, Faults
from tests.lab.hub.repos import Repos
from tests.lab.hub.server import Access, Hub, Request

__all__ = ["Access", "Fault", "Faults", "Hub", "Repos", "Request"]
