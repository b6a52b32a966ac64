"""What the lab serves: tiny models, the CPU engine's wheels. Built once, kept under the user's cache."""
