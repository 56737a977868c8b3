"""The CUDA source beside a generated module, and the request to compile one kernel of it."""

from __future__ import annotations

import functools
import pathlib
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class KernelSource:
    """A ``.cu`` file that holds the slices of one generated module.

    Every kernel's slice is selected by a macro of its own, ``SLICE_<kernel>``: exactly one is defined per compilation.
    """

    path: pathlib.Path

    @classmethod
    def beside(cls, module_file: str, name: str) -> KernelSource:
        """Return the source ``name`` in the folder of the module whose ``__file__`` is given."""
        return cls(pathlib.Path(module_file).with_name(name))

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the path; the text is read where it is needed."""
        return KernelSource, (self.path,)

    @functools.cached_property
    def text(self) -> str:
        """The file's text; read on first use."""
        return self.path.read_text(encoding="utf-8")


@dataclass(frozen=True)
class KernelRequest:
    """One kernel instantiation to be compiled.

    ``name`` is a C++ name expression (``gelu_forward_kernel2``, ``copy_kernel<float, 8>``); ``selector`` the macro that
    selects its slice; ``precision`` one of ``runtime.dtypes.PRECISION_MACROS``; ``parameters`` the canonical C types of
    its parameters, pointers with a trailing ``*``; ``cooperative`` says that all blocks of a launch run at once.
    """

    source: KernelSource
    name: str
    selector: str
    precision: str
    parameters: tuple[str, ...]
    cooperative: bool = False
