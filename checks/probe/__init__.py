"""The probe: one script that travels to a host, looks once, and comes back as HostFacts."""
