"""A router in front of the fleet: an existing one, installed, kept, drained and restored."""
