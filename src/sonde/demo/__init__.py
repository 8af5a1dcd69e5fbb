"""The demo: a small real training run, recorded and explained."""
