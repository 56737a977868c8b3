"""From the IR to plans: launchers become Python functions, catalogue entries become layers."""
