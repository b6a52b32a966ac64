"""The fleet's report: saved or live documents to one JSON tree, and that tree to one HTML page.

`collect` reads a folder of documents, `assemble` makes the tree, `render` the page.
"""

from checks.report.assemble import assemble
from checks.report.collected import Collected
from checks.report.page import render
from checks.report.saved import collect

__all__ = ["Collected", "assemble", "collect", "render"]
