"""Fleets that no lab holds: the product's own planning code under a fake fleet and a clock of its own."""
