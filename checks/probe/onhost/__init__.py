"""What runs on the host, sent as text: standard library only, raw values only, no interpretation.

Every file here must parse with the grammar of Python 3.6, so that a wrong operating system is described
rather than crashed on. Nothing here is imported by the operator's side.
"""
