"""What a fleet costs, measured on lab hosts: a small job by several tools, many looks, weights to all."""
