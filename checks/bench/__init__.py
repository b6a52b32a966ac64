"""Is speculation paying on this box? Workloads, statistics, draft length and verdict; all pure.

The load itself runs on the host (`systemd/bench.py`); `provision/bench` starts it and puts services back.
"""
