"""The command line of nvidia-smi, as far as anything here asks for it."""

from .nvml import Failed, Nvml
from .query import query, query_apps
from .show import details, listing, table, topology, xml

__all__ = ["main"]


def main(argv: list[str]) -> int:
    options = dict(a.partition("=")[::2] for a in argv if a.startswith("--"))
    fmt = options.get("--format", "").split(",")
    try:
        nvml = Nvml()
        cards = nvml.cards()
        if "-i" in argv:
            wanted = argv[argv.index("-i") + 1 :][:1]
            cards = [c for c in cards if str(c.index) in wanted]
        if not cards:
            print("No devices were found")
            return 6
        if "--query-gpu" in options:
            query(cards, options["--query-gpu"].split(","), fmt)
        elif "--query-compute-apps" in options:
            query_apps(cards, options["--query-compute-apps"].split(","), fmt)
        elif "-L" in argv or "--list-gpus" in options:
            listing(cards)
        elif argv[:1] == ["topo"]:
            topology(cards)
        elif "-x" in argv or "--xml-format" in options:
            xml(nvml, cards)
        elif "-q" in argv or "--query" in options:
            details(nvml, cards)
        elif "--version" in options:
            print(f"NVIDIA-SMI version  : {nvml.words('nvmlSystemGetDriverVersion')}")
        else:
            table(nvml, cards)
    except Failed as e:
        print(e)
        return e.code
    lost = [c.error for c in cards if c.error]
    return lost[0] if lost and len(lost) == len(cards) else 0
