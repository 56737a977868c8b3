"""Every line of a preprocessed file knows the place that it came from."""

from __future__ import annotations

import pathlib
import tempfile

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from llmc2py.frontend.preprocess import PreprocessedText, preprocess

FILLERS = (
    "",
    "// comment",
    "/* two\nlines */",
    "#define UNUSED(x) \\\n    x",
    "#if 0\nint gone;\n#endif",
    "#undef NOTHING",
)


def trees() -> st.SearchStrategy[list[tuple[bool, list[int | str]]]]:
    """Files, each with a guard or not, made of includes of later files, fillers and marked lines."""
    part = st.one_of(st.integers(1, 3), st.sampled_from(FILLERS), st.just("mark"), st.just("macro"))
    return st.lists(st.tuples(st.booleans(), st.lists(part, max_size=9)), min_size=1, max_size=5)


def write(root: pathlib.Path, files: list[tuple[bool, list[int | str]]]) -> dict[str, tuple[str, int]]:
    """Write the files; return the place of every mark."""
    places = {}
    for number, (is_guarded, parts) in enumerate(files):
        name = f"f{number}.{'cu' if number == 0 else 'cuh'}"
        lines = ["#pragma once"] if is_guarded else []
        for part in parts:
            if isinstance(part, int):
                lines += [f'#include "f{number + part}.cuh"'] if number + part < len(files) else []
            elif part in ("mark", "macro"):
                mark = f"mark_{number}_{len(lines)}"
                lines.append(f"int {mark};" if part == "mark" else f"#define ID(x) x\nint ID({mark});")
                lines = "\n".join(lines).split("\n")
                places[mark] = (name, len(lines))
            else:
                lines += part.split("\n")
        (root / name).write_text("\n".join(lines) + "\n")
    return places


def read(root: pathlib.Path, name: str = "f0.cu") -> PreprocessedText:
    return preprocess(root.resolve() / name, root.resolve(), {}, {})


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(trees())
def test_lines_keep_their_places(files: list[tuple[bool, list[int | str]]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        places = write(root, files)
        found = read(root)
    assert found.diagnostics == ()
    seen = set()
    for row, line in enumerate(found.text.split("\n")):
        if "mark_" in line:
            mark = line.split()[1].rstrip(";")
            place = found.span(row)
            assert (place.file, place.line) == places[mark], (mark, files)
            seen.add(mark)
    assert {mark for mark, (name, _) in places.items() if name == "f0.cu"} <= seen


def test_conditions_that_only_the_compiler_knows_stay(tmp_path):
    text = "#if defined(ENABLE_BF16) && __CUDA_ARCH__ >= 800\nint a;\n#else\nint b;\n#endif\n#if 1\nint c;\n#endif\n"
    text += "#ifdef LLMC2PY_CPU\nint d;\n#else\nint e;\n#endif\n"
    (tmp_path / "f0.cu").write_text(text)
    kept = read(tmp_path).text
    assert "ENABLE_BF16" in kept
    assert "LLMC2PY_CPU" in kept
    assert all(f"int {name};" in kept for name in "abcde")
    assert "#if 1" not in kept


def test_the_caller_chooses_the_precision(tmp_path):
    (tmp_path / "f0.cu").write_text("#define ENABLE_BF16\n#ifdef ENABLE_BF16\nint a;\n#endif\n")
    kept = read(tmp_path).text
    assert "#define" not in kept
    assert "ifdef ENABLE_BF16" in kept


def test_includes_that_cannot_be_followed_are_told_by_place(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "outside.h").write_text("int secret;\n")
    text = '\n#include "gone.h"\n#include "../outside.h"\n#define NOTHING\n#include NOTHING\n#include "cuda_fp16.h"\n'
    (tmp_path / "src" / "f0.cu").write_text(text)
    found = read(tmp_path / "src")
    assert list(dict.fromkeys(str(one).partition(": ")[0] for one in found.diagnostics)) == [
        "f0.cu:2:1",
        "f0.cu:3:1",
        "f0.cu:5:1",
    ]
    assert "secret" not in found.text
    assert str(tmp_path) not in "".join(map(str, found.diagnostics))


def test_hints_to_unroll_stay_where_their_count_needs_no_macro(tmp_path: pathlib.Path) -> None:
    hints = ["unroll", "unroll 4", "unroll (2)", "unroll FOUR", "omp parallel for", "unroll COUNT"]
    lines = ["#define FOUR 4", *(f"#pragma {hint}" for hint in hints), "int after = FOUR;", ""]
    (tmp_path / "f0.cu").write_text("\n".join(lines))
    found = read(tmp_path)
    assert [line for line in found.text.splitlines() if "pragma" in line] == [
        f"#pragma {hint}" for hint in ("unroll", "unroll 4", "unroll (2)", "unroll COUNT")
    ]
    assert "int after = 4;" in found.text
