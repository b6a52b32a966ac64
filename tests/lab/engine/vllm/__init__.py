"""A stand-in for vLLM: its command, flags, endpoints, metrics, log lines and ways to fail. No model runs.

It is for fleets and faults and proves nothing about the engine: its text comes from a hash of the prompt,
its speed and acceptance are settings. Nothing but the standard library, about 10 MB a process.
"""

from importlib import resources

__all__ = ["__version__"]

__version__ = (resources.files(__name__) / "VERSION").read_text(encoding="utf-8").strip()
