"""Source trees that move: what changed between two of them, and packages that are made anew from the newer one."""
