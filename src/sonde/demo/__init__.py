"""The demonstration: a small real training run, recorded and shown."""
