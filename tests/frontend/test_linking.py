"""Functions that call launchers of which their file has declarations alone."""

import pathlib

from llmc2py.pipeline import generate

FILES = {
    "api.h": "void fill(float* a, int n);\nvoid plain(int n);\nvoid twice(float* a, int n);\n",
    "k.cu": '#include "api.h"\n__global__ void k(float* a, int n) { if (threadIdx.x < n) a[threadIdx.x] = 1; }\n'
    "void fill(float* a, int n) { k<<<1, 32>>>(a, n); }\n",
    "plain.cu": '#include "api.h"\nvoid plain(int n) { n++; }\n',
    "twice.cu": '#include "api.h"\nvoid twice(float* a, int n) { plain(n); fill(a, n); fill(a, n); }\n',
    "main.cu": '#include "api.h"\nvoid inner(float* a, int n) { twice(a, n); }\n'
    "void outer(float* a, int n) { inner(a, n); }\n"
    "void other(int n) { plain(n); }\n",
}


def test_they_are_told(tmp_path: pathlib.Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    plan = generate(tmp_path).plan
    found = {one.launcher.name: (one.launcher.span.origin, one.reason) for one in plan.not_lowered}
    fill = "'fill()': is defined at k.cu:3, which is not included here; call it from Python"
    twice = "'twice()': is defined at twice.cu:2, which is not included here; call it from Python"
    assert found == {"twice": ("twice.cu:2", fill), "inner": ("main.cu:2", twice), "outer": ("main.cu:3", twice)}
    assert [one.name for module in plan.modules for one in module.launchers] == ["fill"]


def test_they_come_and_go_with_what_they_call(tmp_path: pathlib.Path) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    generate(tmp_path)
    (tmp_path / "k.cu").write_text(FILES["k.cu"].replace("k<<<1, 32>>>(a, n);", ""))
    assert not generate(tmp_path).plan.not_lowered
