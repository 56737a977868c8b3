"""Errors of the runtime that have no better name in Python."""

from __future__ import annotations


class CompileError(RuntimeError):
    """A kernel could not be compiled; the message holds the kernel, the place and the compiler's own words."""


class ToolMissingError(RuntimeError):
    """A compiler, library or header is not there; the message says what to install."""


class PrecisionError(TypeError):
    """A kernel is wanted in a precision that its source does not have it in."""


class LaunchError(ValueError):
    """A launch configuration that this kernel cannot run with on this device."""
