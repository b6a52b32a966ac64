"""Does this draft fit this target, in this engine version."""
