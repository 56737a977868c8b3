"""Which module each kernel and launcher goes into, what modules import of each other, and whose name counts."""

from __future__ import annotations

import dataclasses
import pathlib
from typing import Any

import pytest

from llmc2py.catalog import builtin_replacements, parse_entry
from llmc2py.emit.render import render_package
from llmc2py.frontend.reader import read_tree
from llmc2py.ir.catalog import Replacement
from llmc2py.ir.plans import ModulePlan, PackagePlan
from llmc2py.lower.homes import module_paths
from llmc2py.lower.modules import lower_library

HEADER = """\
#pragma once
__global__ void fill(float* x, float value, int n) { if (threadIdx.x < n) x[threadIdx.x] = value; }
__global__ void twice(float* out, const float* x, int n) { if (threadIdx.x < n) out[threadIdx.x] = 2 * x[threadIdx.x]; }
inline void fill_all(float* x, float value, int n) { fill<<<1, n>>>(x, value, n); }
inline void run(float* out, const float* x, int n) { twice<<<1, n>>>(out, x, n); }
"""
USER = """\
#include "lib/tools.cuh"
__global__ void once(float* x, int n) { if (threadIdx.x < n) x[threadIdx.x] += 1; }
void both(float* out, float* x, int n) { fill_all(x, 2.0f, n); once<<<1, n>>>(x, n); twice<<<1, n>>>(out, x, n); }
"""
ENTRY = '''\
name = "double_of"
layer = "Twice"
summary = "Twice the input."
source = "lib/tools.cuh"
launchers = ["run"]
[inputs]
inp = { shape = "*", doc = "any shape" }
[outputs]
out = { shape = "*", doc = "the shape of `inp`" }
[forward]
recipe = """
out = empty_like(inp)
run(out, inp, N)
"""
[backward]
gradients = { inp = "dinp" }
recipe = """
dinp = empty_like(dout)
run(dinp, dout, N)
"""
[reference]
forward = "out = 2 * inp"
backward = "dinp = 2 * dout"
'''


@pytest.fixture
def lower(tmp_path: pathlib.Path) -> Any:
    """Return a function that lowers sources with entries and replacements: the plan and what was said."""

    def make(
        sources: dict[str, str], entries: tuple[str, ...] = (), replacements: tuple[Replacement, ...] = ()
    ) -> tuple[PackagePlan, list[str]]:
        for name, text in sources.items():
            (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / name).write_text(text)
        plan, said = lower_library(
            read_tree(tmp_path), [parse_entry(text, "op.toml") for text in entries], replacements
        )
        return plan, [str(one) for one in said]

    return make


def contents(plan: PackagePlan) -> dict[str, tuple[list[str], list[str]]]:
    """Return the kernels and launchers of each module."""
    return {one.path: ([k.name for k in one.kernels], [p.name for p in one.launchers]) for one in plan.modules}


def module(plan: PackagePlan, path: str) -> ModulePlan:
    return next(one for one in plan.modules if one.path == path)


# --- homes and imports


def test_without_a_catalogue_every_file_is_a_module(lower: Any) -> None:
    plan, said = lower({"lib/tools.cuh": HEADER, "user.cu": USER})
    assert said == []
    assert contents(plan) == {
        "lib/tools": (["fill", "twice"], ["fill_all", "run"]),
        "user": (["once"], ["both"]),
    }
    assert module(plan, "user").imports == {"lib/tools": ("fill_all", "twice")}
    assert module(plan, "lib/tools").imports == {}


def test_an_op_takes_what_it_lists_and_what_that_launches(lower: Any) -> None:
    plan, said = lower({"lib/tools.cuh": HEADER, "user.cu": USER}, (ENTRY,))
    assert said == []
    assert contents(plan) == {
        "double_of": (["twice"], ["run"]),
        "lib/tools": (["fill"], ["fill_all"]),
        "user": (["once"], ["both"]),
    }
    assert module(plan, "user").imports == {"double_of": ("twice",), "lib/tools": ("fill_all",)}
    assert [one.path for one in plan.ops] == ["double_of"]


def test_what_an_op_uses_of_another_file_stays_there_and_is_imported(lower: Any) -> None:
    entry = ENTRY.replace('["run"]', '["run"]\nuses = ["user.cu:once", "fill_all"]')
    plan, said = lower({"lib/tools.cuh": HEADER, "user.cu": USER}, (entry,))
    assert said == []
    assert contents(plan)["user"] == (["once"], ["both"])
    assert module(plan, "double_of").imports == {"lib/tools": ("fill_all",), "user": ("once",)}


def test_a_kernel_goes_to_the_op_that_lists_it_not_to_one_that_launches_it(lower: Any) -> None:
    other = ENTRY.replace('"double_of"', '"again"').replace('"Twice"', '"Again"')
    other = other.replace('["run"]', '[]\nkernels = ["twice"]').replace("run(", "twice[1, 32](")
    plan, said = lower({"lib/tools.cuh": HEADER}, (ENTRY, other))
    assert said == []
    assert contents(plan) == {
        "again": (["twice"], []), "double_of": ([], ["run"]), "lib/tools": (["fill"], ["fill_all"]),
    }  # fmt: skip
    assert module(plan, "double_of").imports == {"again": ("twice",)}


def test_an_entry_that_does_not_fit_leaves_everything_to_its_file(lower: Any) -> None:
    plan, said = lower({"lib/tools.cuh": HEADER}, (ENTRY.replace('["run"]', '["ran"]'),))
    expected = (
        "op.toml:5:14: error: double_of: lib/tools.cuh has no launcher or kernel ran; the layer Twice is left out"
    )
    assert said == [expected]
    assert contents(plan) == {"lib/tools": (["fill", "twice"], ["fill_all", "run"])}


def test_an_entry_for_a_file_that_is_not_there_is_told(lower: Any) -> None:
    plan, said = lower({"lib/tool.cuh": HEADER}, (ENTRY,))
    assert said == [
        "op.toml:4:1: error: double_of: the tree has no source file lib/tools.cuh; did you mean lib/tool.cuh?; "
        "the layer Twice is left out"
    ]
    assert list(contents(plan)) == ["lib/tool"]


def test_a_built_in_entry_for_a_file_that_is_not_there_is_passed_over(tmp_path: pathlib.Path) -> None:
    (tmp_path / "user.cu").write_text(HEADER)
    entry = dataclasses.replace(parse_entry(ENTRY, "catalog/op.toml"), is_builtin=True)
    plan, said = lower_library(read_tree(tmp_path), [entry])
    assert said == []
    assert list(contents(plan)) == ["user"]


def test_a_missing_launcher_is_explained_where_it_was_not_lowered(lower: Any) -> None:
    header = HEADER.replace("{ twice<<<1, n>>>(out, x, n); }", "{ goto end; end: twice<<<1, n>>>(out, x, n); }")
    plan, (said,) = lower({"lib/tools.cuh": header}, (ENTRY,))
    assert "has no launcher or kernel run (lib/tools.cuh:5:54: 'goto end;': goto statement is not supported)" in said
    assert [one.launcher.name for one in plan.not_lowered] == ["run"]


# --- names


def test_launchers_stand_after_those_that_they_call(lower: Any) -> None:
    text = HEADER + "void c(float* x);\nvoid a(float* x) { b_(x); }\nvoid b_(float* x) { c(x); }\n"
    text = text.replace("void a(", "void b_(float* x);\nvoid a(") + "void c(float* x) { fill_all(x, 1.0f, 2); }\n"
    plan, _ = lower({"some.cu": text})
    assert contents(plan)["some"][1] == ["fill_all", "run", "c", "b_", "a"]


def test_a_kernel_with_the_name_of_a_launcher_or_of_the_module_itself_is_renamed(lower: Any) -> None:
    text = "__global__ void act(float* x) { x[0] = 1; }\nvoid act(float* x, int n) { act<<<1, n>>>(x); }\n"
    text += "__global__ void Param(float* x) { x[0] = 1; }\n__global__ void copy(float* x) { x[0] = 1; }\n"
    plan, said = lower({"act.cu": text})
    assert said == []
    assert module(plan, "act").symbols == {"act": "act_kernel", "Param": "Param_kernel", "copy": "copy"}


@pytest.mark.parametrize("name", ["range", "launcher", "plan", "lambda", "DTYPES"])
def test_a_launcher_with_a_name_that_python_needs_gets_another(lower: Any, name: str) -> None:
    plan, _ = lower({"k.cu": HEADER.replace("void fill_all(", f"void {name}(")})
    assert plan.not_lowered == ()
    kernels, launchers = contents(plan)["k"]
    assert (kernels, sorted(launchers)) == (["fill", "twice"], sorted([f"{name}_launcher", "run"]))


@pytest.mark.parametrize("name", ["range", "plan"])
def test_one_that_only_calls_launchers_is_refused(lower: Any, name: str) -> None:
    plan, _ = lower({"k.cu": f"{HEADER}\nvoid {name}(float* out, int n) {{ fill_all(out, n); }}\n"})
    assert [(one.launcher.name, one.reason) for one in plan.not_lowered] == [
        (name, f"has the name {name}, which Python or the generated module needs")
    ]


def test_kernels_of_one_name_in_two_files_stay_apart(lower: Any) -> None:
    other = HEADER.replace("2 *", "3 *")
    plan, said = lower({"a.cu": HEADER, "b.cu": other})
    assert said == []
    assert contents(plan)["a"] == contents(plan)["b"] == (["fill", "twice"], ["fill_all", "run"])
    assert module(plan, "a").imports == module(plan, "b").imports == {}


@pytest.mark.parametrize(
    ("files", "ops", "expected"),
    [
        (["a.cu", "b/c.cuh"], [], {"a.cu": "a", "b/c.cuh": "b/c"}),
        (["a.cu", "a.cuh"], [], {"a.cu": "a_cu", "a.cuh": "a_cuh"}),
        (["gelu.cuh"], ["gelu"], {"gelu.cuh": "gelu_cuh"}),
        (["sub/gelu.cuh"], ["gelu"], {"sub/gelu.cuh": "sub/gelu"}),
        (["layers.cu", "references.cu", "__init__.cu"], [],
         {"layers.cu": "layers_cu", "references.cu": "references_cu", "__init__.cu": "__init___cu"}),
        # A folder and a module of one name cannot both be imported.
        (["a.cu", "a/b.cu"], [], {"a.cu": "a_cu", "a/b.cu": "a/b"}),
        (["a.cu", "a/b.cu", "a_cu.cu"], [], {"a.cu": "a_cu", "a/b.cu": "a/b", "a_cu.cu": "a_cu_cu"}),
        (["class.cu", "2d.cu", "my-file.v2.cu", "dev-tools/x y.cu"], [],
         {"class.cu": "_class", "2d.cu": "_2d", "my-file.v2.cu": "my_file_v2", "dev-tools/x y.cu": "dev_tools/x_y"}),
        (["my-file.cu", "my_file.cu"], [], {"my-file.cu": "my_file_cu", "my_file.cu": "my_file_cu_"}),
    ],
)  # fmt: skip
def test_module_paths(files: list[str], ops: list[str], expected: dict[str, str]) -> None:
    found = module_paths(files, ops)
    assert found == expected
    assert len(set(found.values())) == len(files)


# --- functions in the place of launchers

REFUSED = """\
#include "lib/tools.cuh"
__global__ void scatter(float* out, const int* where, int n) { if (threadIdx.x < n) out[where[threadIdx.x]] = 1; }
void sorted(float* out, const int* where, int n) {
    int host[4];
    cudaMemcpy(host, where, sizeof(host), cudaMemcpyDeviceToHost);
    scatter<<<1, host[0]>>>(out, where, n);
}
"""
SORTED = Replacement(
    "sorted", "sort.cu", "encoder_backward", ("scatter", "lib/tools.cuh:fill_all", "lib/tools.cuh:fill")
)


def test_a_refused_launcher_is_replaced_and_its_function_given_what_it_uses(lower: Any) -> None:
    plan, said = lower({"lib/tools.cuh": HEADER, "sort.cu": REFUSED}, (), (SORTED,))
    assert said == []
    assert plan.not_lowered == ()
    (one,) = plan.replaced
    assert (one.launcher.name, one.function) == ("sorted", "encoder_backward")
    assert one.symbols == ("scatter", "fill_all", "fill")
    assert one.reason == "copies between host and device cannot be part of a plan"
    home = module(plan, "sort")
    assert home.replaced == (one,)
    assert home.imports == {"lib/tools": ("fill", "fill_all")}


def test_a_replaced_launcher_has_its_files_module_although_nothing_else_is_there(lower: Any) -> None:
    text = "\n".join(line for line in REFUSED.splitlines() if "__global__" not in line)
    header = HEADER + REFUSED.splitlines()[1] + "\n"
    moved = Replacement("sorted", "sort.cu", "encoder_backward", ("lib/tools.cuh:scatter",))
    plan, _ = lower({"lib/tools.cuh": header, "sort.cu": text}, (), (moved,))
    assert contents(plan)["sort"] == ([], [])
    assert module(plan, "sort").imports == {"lib/tools": ("scatter",)}
    assert module(plan, "sort").origin == "sort.cu:2"
    text = render_package(plan)["sort.py"]
    compile(text, "sort.py", "exec")
    flat = " ".join(text.split()).replace("( ", "(")
    assert "sorted = replacements.Replacement(replacements.encoder_backward, [scatter]" in flat


@pytest.mark.parametrize("missing", ["gather", "lib/tools.cuh:scatter", "gone.cu:scatter"])
def test_without_a_kernel_that_the_function_needs_the_launcher_stays_refused(lower: Any, missing: str) -> None:
    unfit = Replacement("sorted", "sort.cu", "encoder_backward", ("scatter", missing))
    plan, _ = lower({"lib/tools.cuh": HEADER, "sort.cu": REFUSED}, (), (unfit,))
    assert plan.replaced == []
    (one,) = plan.not_lowered
    assert (one.launcher.name, str(one.span)) == ("sorted", "sort.cu:5:5")


@pytest.mark.parametrize("source", ["lib/tools.cuh", "other.cu"])
def test_a_launcher_of_another_file_is_not_meant(lower: Any, source: str) -> None:
    other = Replacement("sorted", source, "encoder_backward", ())
    plan, _ = lower({"lib/tools.cuh": HEADER, "sort.cu": REFUSED}, (), (other,))
    assert plan.replaced == []
    assert [one.launcher.name for one in plan.not_lowered] == ["sorted"]


def test_a_launcher_that_can_be_lowered_is_not_replaced(lower: Any) -> None:
    plan, _ = lower(
        {"lib/tools.cuh": HEADER}, (), (Replacement("run", "lib/tools.cuh", "encoder_backward", ("twice",)),)
    )
    assert plan.replaced == []
    assert "run" in contents(plan)["lib/tools"][1]


def test_who_calls_a_replaced_launcher_is_not_lowered_and_says_so(lower: Any) -> None:
    text = REFUSED + "void outer(float* out, const int* where, int n) { sorted(out, where, n); }\n"
    plan, _ = lower({"lib/tools.cuh": HEADER, "sort.cu": text}, (), (SORTED,))
    (one,) = plan.not_lowered
    assert (one.launcher.name, one.reason) == ("outer", "calls sorted, which is not lowered")


def test_the_built_in_replacements_name_functions_that_exist() -> None:
    from llmc2py.runtime import replacements

    found = builtin_replacements()
    assert {one.launcher for one in found} >= {"encoder_backward", "gpt2_update"}
    for one in found:
        assert callable(getattr(replacements, one.function))
        assert one.uses
