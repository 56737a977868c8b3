"""Every kernel of a package compiles; one that does not is a failed row, and a missing tool a skipped one."""

from __future__ import annotations

import shutil

import pytest

from llmc2py.ir.conditions import PRECISIONS
from llmc2py.runtime.errors import ToolMissingError
from llmc2py.verify import compile_check as module
from llmc2py.verify.compile_check import compile_check, kernels_of, precisions_of, slice_text
from llmc2py.verify.compile_worker import CPU, compile_apart
from llmc2py.verify.packages import load_package


@pytest.fixture(scope="module")
def on_the_cpu(made):
    return compile_check(str(made), [])


def test_every_kernel_compiles_for_the_cpu(on_the_cpu):
    assert [row for row in on_the_cpu if not row.ok] == []
    assert {row.target for row in on_the_cpu} == {"cpu"}
    precisions = {row.precision for row in on_the_cpu if row.kernel == "gelu_forward_kernel2" and row.module == "gelu"}
    assert precisions == {"float32", "float16", "bfloat16"}


def test_every_kernel_of_every_module_is_there(made, on_the_cpu):
    loaded = load_package(str(made))
    wanted = {(loaded.name_of(one), kernel.name) for one in loaded.modules() for kernel in kernels_of(one)}
    assert len(wanted) > 20
    assert {(row.module, row.kernel.partition("<")[0]) for row in on_the_cpu} == wanted


def test_templates_are_instantiated_with_the_types_of_each_precision(on_the_cpu):
    names = {row.kernel for row in on_the_cpu if row.kernel.startswith("copy_and_cast_kernel")}
    assert names == {
        "copy_and_cast_kernel<float, float>",
        "copy_and_cast_kernel<half, half>",
        "copy_and_cast_kernel<__nv_bfloat16, __nv_bfloat16>",
    }


def test_half_templates_compile_with_nvrtc_though_their_source_includes_no_header(made):
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no CuPy")
    loaded = load_package(str(made))
    jobs = [
        job
        for job, _ in module._jobs(loaded, "sm_90", "", PRECISIONS, [])
        if job.request.name.startswith("copy_and_cast_kernel")
    ]
    rows = list(compile_apart(jobs))
    if all(row.skipped for row in rows):
        pytest.skip(rows[0].detail)
    assert [row.detail for row in rows if not row.ok] == []
    assert len(rows) == 3


def test_a_kernel_that_does_not_compile_is_a_failed_row_with_its_place(mutate):
    package = mutate("gelu.cu", r"packet\[i\] = \(floatX\)", "packet[i] = oops + (floatX)")
    seen = []
    rows = compile_check(package, [], progress=seen.append)
    failed = [row for row in rows if not row.ok]
    assert seen == rows
    assert {(row.module, row.kernel) for row in failed} == {("gelu", "gelu_forward_kernel2")}
    assert all("oops" in row.detail and "llmc/gelu.cuh:" in row.detail and not row.skipped for row in failed)


def test_without_nvrtc_rows_are_skipped_and_say_so(made, monkeypatch):
    def missing():
        raise ToolMissingError("no NVRTC here; pip install it")

    monkeypatch.setattr(module, "supported_architectures", missing)
    rows = compile_check(str(made), ["sm_90"], cpu=False)
    assert rows
    assert {(row.ok, row.skipped, row.detail) for row in rows} == {(False, True, "no NVRTC here; pip install it")}


def test_an_architecture_that_nvrtc_does_not_know_is_skipped(made, monkeypatch):
    monkeypatch.setattr(module, "supported_architectures", lambda: ("sm_90",))
    rows = compile_check(str(made), ["sm_30"], cpu=False)
    assert {row.detail for row in rows} == {"this NVRTC does not know sm_30"}


def test_a_template_value_that_no_launcher_gives_is_a_skipped_row(mutate):
    pattern = r'template=\[TemplateParam\("Td", "type"\), TemplateParam\("Ts", "type"\)\]'
    package = mutate("llmc/cuda_utils.py", pattern, 'template=[TemplateParam("Td", "type"), TemplateParam("W", "int")]')
    rows = compile_check(package, [])
    skipped = {(row.kernel, row.detail) for row in rows if row.skipped}
    assert skipped == {("copy_and_cast_kernel", "no launcher gives its template arguments")}


def test_a_process_that_dies_is_an_error(made, monkeypatch):
    monkeypatch.setattr("llmc2py.verify.compile_worker.sys.executable", shutil.which("false"))
    monkeypatch.setattr(module, "supported_architectures", lambda: ("sm_90",))
    job, _ = next(iter(module._jobs(load_package(str(made)), CPU, "", PRECISIONS, [])))
    with pytest.raises(RuntimeError, match="ended early, with status 1"):
        list(compile_apart([job]))
    with pytest.raises(RuntimeError, match="ended early"):
        compile_check(str(made), ["sm_90"], cpu=False)


SOURCE = """\
typedef float floatX;
#if defined(SLICE_a) || defined(SLICE_b)
shared
#if __CUDA_ARCH__ >= 800
floatX modern;
#endif
#endif
#if defined(SLICE_b)
only b
#endif
"""


def test_a_slice_keeps_its_lines_and_other_conditionals():
    assert slice_text(SOURCE, "SLICE_b").splitlines() == [
        "typedef float floatX;", "shared", "#if __CUDA_ARCH__ >= 800", "floatX modern;", "#endif", "only b",
    ]  # fmt: skip
    assert "only b" not in slice_text(SOURCE, "SLICE_a")
    assert slice_text(SOURCE, "SLICE_c") == "typedef float floatX;"


def test_a_kernel_of_floats_alone_has_one_precision(made):
    kernels = {
        kernel.name: kernel
        for one in load_package(str(made)).modules()
        if one.__name__.endswith("dev.cuda.layernorm_backward")
        for kernel in kernels_of(one)
    }
    assert precisions_of(kernels["layernorm_backward_kernel1"]) == ("float32",)
    assert len(precisions_of(kernels["layernorm_backward_kernel2"])) == 3
