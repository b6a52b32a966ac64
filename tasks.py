"""The command line: every task, from the rooms of surface/. Each parses, calls one function, prints.

`invoke TASK --help` explains each task; exit codes are in inventory/errors.py.
"""

from invoke import Collection

from surface import bench, box, desire, fleet, models, project
from surface.commandline import run_program

__all__ = ["main", "namespace"]

ROOMS = (project, desire, models, box, fleet, bench)

namespace = Collection()
for room in ROOMS:
    for task in Collection.from_module(room).tasks.values():
        namespace.add_task(task)


def main() -> None:
    """The console script `eyas`: the same tasks under one name."""
    run_program(namespace)


if __name__ == "__main__":
    main()
