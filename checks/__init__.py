"""OBSERVE: the probe, facts, rules, log diagnosis, memory planner, pair gate. Imports inventory only."""
