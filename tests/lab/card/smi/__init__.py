"""A stand-in for nvidia-smi: prints what the NVML library beside it answers, and uses nothing else.

Installed as one zip file, so imports inside are relative and everything is the standard library's.
"""
