"""Many hosts as safely as one: plan, prepare everywhere, switch canary first, gate, roll back, resume."""
