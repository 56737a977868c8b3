"""Kernels that stand under a macro which nobody has defined are found all the same."""

import pathlib

import pytest

from llmc2py.frontend.features import features_of_kernels
from llmc2py.frontend.preprocess import KNOWN_MACROS
from llmc2py.frontend.reader import read_tree

KERNEL = "__global__ void k(float* x) { x[0] = 1; }"


@pytest.mark.parametrize(
    ("text", "features"),
    [
        (f"#ifdef WITH_IT\n{KERNEL}\n#endif", ["WITH_IT"]),
        (f"#if defined(WITH_IT)\n{KERNEL}\n#endif", ["WITH_IT"]),
        (f"#if WITH_IT\n#ifdef AND_THIS\n{KERNEL}\n#endif\n#endif", ["AND_THIS", "WITH_IT"]),
        (f"#ifdef WITH_IT\n{KERNEL}\n#else\n{KERNEL}\n#endif", []),
        (f"#define WITH_IT\n#ifdef WITH_IT\n{KERNEL}\n#endif", []),
        (f"#ifndef GUARD_H\n#define GUARD_H\n{KERNEL}\n#endif", []),
        (f"#ifdef ENABLE_BF16\n{KERNEL}\n#endif", []),
        (f"#ifdef WITH_IT\n// {KERNEL}\n#endif", []),
        (f"#if VERSION > 2\n{KERNEL}\n#endif", []),
        ("#ifdef WITH_IT\nint x;\n#endif", []),
        *(
            (f"#define{rest}\n#ifdef WITH_IT\n{KERNEL}\n#endif", ["WITH_IT"])
            for rest in ("", " (", " ()", " +1", " (x) y")
        ),
    ],
)
def test_features(text: str, features: list[str]) -> None:
    assert features_of_kernels(text, KNOWN_MACROS) == features


def test_the_kernel_is_read(tmp_path: pathlib.Path) -> None:
    (tmp_path / "a.cu").write_text(f"#ifdef WITH_IT\n#include <absent.h>\n{KERNEL}\n#endif\n")
    (kernel,) = read_tree(tmp_path).kernels
    assert (kernel.name, kernel.span.line) == ("k", 3)
