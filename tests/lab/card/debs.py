"""Stand-in driver packages and the apt repository they are in: installing one really installs a driver."""

import hashlib
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from textwrap import dedent
from typing import Any

__all__ = ["Deb", "packages", "write_repository"]

LIBRARIES = "usr/lib/x86_64-linux-gnu"


@dataclass(frozen=True)
class Deb:
    """``files``: path -> content, or a Path to copy. ``kind``: the virtual package only one may provide."""

    name: str
    version: str
    says: str
    kind: str = ""
    depends: tuple[str, ...] = ()
    files: dict[str, str | Path] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    postinst: str = ""
    prerm: str = ""


def packages(driver: dict[str, Any], parts: Path) -> Iterator[Deb]:
    """Every package of one driver branch. ``parts``: folder with the compiled pieces of the branch."""
    branch, version = driver["branch"], driver["version"]
    full = f"{version}-{driver['revision']}"
    for flavour in ("", "-server"):
        yield Deb(
            f"libnvidia-compute-{branch}{flavour}",
            full,
            "NVML library (lab stand-in)",
            kind="libnvidia-compute",
            files={f"{LIBRARIES}/libnvidia-ml.so.{version}": parts / "libnvidia-ml.so"},
            links={f"{LIBRARIES}/libnvidia-ml.so.1": f"libnvidia-ml.so.{version}"},
            postinst="ldconfig",
        )
        yield Deb(
            f"nvidia-utils-{branch}{flavour}",
            full,
            "nvidia-smi (lab stand-in)",
            kind="nvidia-utils",
            depends=(f"libnvidia-compute-{branch}{flavour} (= {full})",),
            files={"usr/bin/nvidia-smi": parts.parent / "nvidia-smi"},
        )
        for module in ("", "-open"):
            yield from _driver(branch, version, full, flavour + module, flavour, parts)
    yield _fabric_manager(branch, version, full)


def _driver(branch: int, version: str, full: str, suffix: str, flavour: str, parts: Path) -> Iterator[Deb]:
    kind = "open" if suffix.endswith("-open") else "proprietary"
    place = "/lib/modules/$(uname -r)/updates/dkms"
    yield Deb(
        f"nvidia-dkms-{branch}{suffix}",
        full,
        f"kernel module, {kind} (lab stand-in)",
        kind="nvidia-dkms-kernel",
        files={f"usr/src/nvidia-{version}/nvidia.ko": parts / f"nvidia-{kind}.ko"},
        postinst=dedent(f"""\
            mkdir -p "{place}"
            cp /usr/src/nvidia-{version}/nvidia.ko "{place}/nvidia.ko"
            touch "/lib/modules/$(uname -r)/modules.order" "/lib/modules/$(uname -r)/modules.builtin"
            depmod
            if [ -d /run/systemd/system ]; then
                touch /run/reboot-required
                echo nvidia-dkms-{branch}{suffix} >> /run/reboot-required.pkgs
            fi"""),
        prerm=f'rm -f "{place}/nvidia.ko"; depmod || true',
    )
    yield Deb(
        f"nvidia-driver-{branch}{suffix}",
        full,
        "NVIDIA driver metapackage (lab stand-in)",
        kind="nvidia-driver-binary",
        depends=(
            f"nvidia-dkms-{branch}{suffix} (= {full})",
            f"libnvidia-compute-{branch}{flavour} (= {full})",
            f"nvidia-utils-{branch}{flavour} (= {full})",
        ),
    )


def _fabric_manager(branch: int, version: str, full: str) -> Deb:
    run = "/run/nvidia-fabricmanager"
    return Deb(
        f"nvidia-fabricmanager-{branch}",
        full,
        "fabric manager (lab stand-in)",
        kind="nvidia-fabricmanager",
        files={
            "usr/bin/nv-fabricmanager": dedent(f"""\
                #!/bin/sh
                driver=$(sed -nE '1s/.*  ([0-9]+(\\.[0-9]+)+)  .*/\\1/p' /proc/driver/nvidia/version)
                if [ "$driver" != {version} ]; then
                    echo "fabric manager NVIDIA GPU driver interface version {version} don't match" \\
                        "with driver version $driver. Please update with matching NVIDIA driver package." >&2
                    exit 1
                fi
                mkdir -p {run}
                echo $$ > {run}/nv-fabricmanager.pid
                echo "Successfully configured all the available NVSwitches to route GPU NVLink traffic."
                exec sleep infinity
                """),
            "lib/systemd/system/nvidia-fabricmanager.service": dedent("""\
                [Unit]
                Description=NVIDIA fabric manager service
                After=network-online.target
                [Service]
                ExecStart=/usr/bin/nv-fabricmanager
                RuntimeDirectory=nvidia-fabricmanager
                [Install]
                WantedBy=multi-user.target
                """),
        },
    )


def write_repository(debs: list[Deb], folder: Path) -> None:
    """Build every package into ``folder`` with the index apt wants."""
    folder.mkdir(parents=True)
    entries = []
    for deb in debs:
        path = folder / f"{deb.name}_{deb.version}_amd64.deb"
        control = _build(deb, path)
        data = path.read_bytes()
        sha = hashlib.sha256(data).hexdigest()
        entries.append(f"{control}Filename: ./{path.name}\nSize: {len(data)}\nSHA256: {sha}\n")
    (folder / "Packages").write_text("\n".join(entries))


def _build(deb: Deb, path: Path) -> str:
    stage = path.with_suffix(".stage")
    control = _control(deb)
    (stage / "DEBIAN").mkdir(parents=True)
    (stage / "DEBIAN/control").write_text(control)
    for name, script in {"postinst": deb.postinst, "prerm": deb.prerm}.items():
        if script:
            _script(stage / "DEBIAN" / name, script)
    for place, content in deb.files.items():
        _file(stage / place, content)
    for place, target in deb.links.items():
        (stage / place).symlink_to(target)
    argv = ["dpkg-deb", "-Znone", "--root-owner-group", "--build", str(stage), str(path)]
    subprocess.run(argv, check=True, capture_output=True)
    shutil.rmtree(stage)
    return control


def _control(deb: Deb) -> str:
    only_one = (
        "".join(f"{word}: {deb.kind}\n" for word in ("Provides", "Conflicts", "Replaces")) if deb.kind else ""
    )
    depends = f"Depends: {', '.join(deb.depends)}\n" if deb.depends else ""
    return (
        f"Package: {deb.name}\nVersion: {deb.version}\nArchitecture: amd64\n"
        f"Maintainer: eyas lab <lab@localhost>\nSection: restricted/misc\nPriority: optional\n"
        f"{depends}{only_one}Description: {deb.says}\n"
    )


def _script(path: Path, body: str) -> None:
    path.write_text(f"#!/bin/sh\nset -e\n{body}\n")
    path.chmod(0o755)


def _file(path: Path, content: str | Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Path):
        shutil.copy(content, path)
    else:
        path.write_text(content)
    path.chmod(0o755 if path.parent.name == "bin" else 0o644)
