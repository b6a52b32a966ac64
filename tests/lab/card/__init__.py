"""The simulated card: an NVML library, an nvidia-smi, driver packages, and what a kernel would show of it."""
