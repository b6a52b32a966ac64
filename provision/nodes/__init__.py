"""One deployment over several hosts, provisioned, switched and rolled back as one thing."""
