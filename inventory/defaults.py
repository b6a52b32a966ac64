"""Values that a task's help shows too, apart from the modules that use them: importing this is free."""

__all__ = ["FORKS", "PLATFORM", "PYTHON"]

#: Hosts at once.
FORKS = 20

#: Ubuntu 24.04: Python 3.12, glibc 2.39.
PYTHON = "3.12"
PLATFORM = "x86_64-manylinux_2_39"
