"""Everything else is in pyproject.toml; this says where the data folder systemd/ goes in an installed eyas.

As `systemd` it would hide the module of that name that Linux distributions ship.
"""

from setuptools import find_packages, setup

LAYERS = ["inventory*", "checks*", "provision*", "surface*"]

setup(
    packages=[*find_packages(include=LAYERS), "provision._systemd"],
    package_dir={"provision._systemd": "systemd"},
)
