"""A package that was generated is generated again only where something that it is made of has changed."""

from __future__ import annotations

import pathlib

import pytest

from llmc2py import pipeline, results
from llmc2py.diagnostics import UsageError
from llmc2py.results import Request, generate

KERNEL = '#include "size.h"\n__global__ void fill(float* out) { out[threadIdx.x] = SIZE; }\n'


@pytest.fixture
def tree(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr(results, "_WORTH_KEEPING", -1.0)
    folder = tmp_path / "tree"
    folder.mkdir()
    (folder / "fill.cu").write_text(KERNEL)
    (folder / "size.h").write_text("#define SIZE 3\n")
    return folder


@pytest.fixture
def runs(monkeypatch):
    """The sources that were generated from, the cache apart."""
    seen = []
    make = pipeline.generate

    def recording(source, *rest):
        seen.append(source)
        return make(source, *rest)

    monkeypatch.setattr(pipeline, "generate", recording)
    return seen


def check(request, runs, expected):
    """The cache gives what the pipeline gives, in so many runs of it."""
    runs.clear()
    made = generate(request)
    assert len(runs) == expected
    whole = made.generated
    assert len(runs) == expected
    fresh = pipeline.generate(request.source, request.catalogs, request.only, request.targets, request.commit)
    assert (made.files, made.diagnostics) == (fresh.files, fresh.diagnostics)
    assert (whole.files, whole.plan, whole.library, whole.diagnostics) == (
        fresh.files, fresh.plan, fresh.library, fresh.diagnostics,
    )  # fmt: skip


def test_the_same_is_made_once(tree, runs):
    check(Request(tree), runs, 1)
    check(Request(tree), runs, 0)


@pytest.mark.parametrize(
    ("file", "text"),
    [
        ("size.h", "#define SIZE 4\n"),
        ("fill.cu", KERNEL.replace("fill", "other")),
        ("more.cu", KERNEL.replace("fill", "more")),
        ("note.toml", "title = 'of another tool'\n"),
    ],
)
def test_a_change_is_seen_and_taken_back(tree, runs, file, text):
    check(Request(tree), runs, 1)
    before = (tree / file).read_text() if (tree / file).exists() else None
    (tree / file).write_text(text)
    check(Request(tree), runs, 1)
    check(Request(tree), runs, 0)
    (tree / file).unlink() if before is None else (tree / file).write_text(before)
    check(Request(tree), runs, 0)


def test_options_and_catalogues_count(tree, runs, tmp_path):
    entry = tmp_path / "other.toml"
    entry.write_text(next(pathlib.Path(pipeline.__file__).parent.glob("catalog/*.toml")).read_text())
    check(Request(tree), runs, 1)
    check(Request(tree, only=("fill",)), runs, 1)
    check(Request(tree, targets=("torch",)), runs, 1)
    check(Request(tree, catalogs=(entry,)), runs, 1)
    entry.write_text(entry.read_text() + "# changed\n")
    check(Request(tree, catalogs=(entry,)), runs, 1)


def test_the_commit_of_the_source_counts(tree, runs):
    check(Request(tree), runs, 1)
    check(Request(tree, commit="abc"), runs, 1)
    check(Request(tree, commit="abd"), runs, 1)
    check(Request(tree, commit="abc"), runs, 0)


def test_another_program_makes_it_again(tree, runs, monkeypatch):
    check(Request(tree), runs, 1)
    monkeypatch.setattr(results, "program_key", lambda: "changed")
    check(Request(tree), runs, 1)


def test_an_include_that_a_macro_names_is_not_taken_on_trust(tree, runs):
    (tree / "fill.cu").write_text("#define NAME <size.h>\n" + KERNEL.replace('"size.h"', "NAME"))
    check(Request(tree), runs, 1)
    (tree / "size.h").write_text("#define SIZE 9\n")
    check(Request(tree), runs, 1)


def test_what_went_from_the_cache_is_made_again(tree, runs):
    assert generate(Request(tree)).generated.library.kernels
    (entry,) = results.RESULTS.folder.glob("*-whole.pickle")
    entry.unlink()
    runs.clear()
    assert generate(Request(tree)).generated.library.kernels[0].name == "fill"
    assert len(runs) == 1


def test_errors_are_those_of_the_pipeline(tree, tmp_path):
    with pytest.raises(UsageError, match="has such a name"):
        generate(Request(tree, only=("nothing",)))
    with pytest.raises(UsageError, match="no such folder"):
        generate(Request(tmp_path / "missing"))
    with pytest.raises(UsageError, match="cannot be read"):
        generate(Request(tree, catalogs=(tmp_path / "missing.toml",)))
