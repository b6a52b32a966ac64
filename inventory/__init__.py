"""DESIRE: hosts, deployments, the engine catalogue and wheel locks. Imports nothing else of eyas."""
