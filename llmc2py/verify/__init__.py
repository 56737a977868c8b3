"""Verification of generated packages: references, tolerances, layer checks, and compile checks."""
