"""CONVERGE: shell, operations, releases, rollout. Imports checks and inventory."""
