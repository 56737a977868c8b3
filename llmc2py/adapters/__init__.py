"""What generated layers for other frameworks import: one module for each framework, which it needs installed."""
