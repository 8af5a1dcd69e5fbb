"""Callbacks: what rides along with a training run. The moments are in base.py, one callback per file beside it."""
