"""CASES B4: headers of one toolkit and NVRTC of another are an error at the start, with both versions and paths."""

from __future__ import annotations

import pathlib

import numpy as np
import pytest

from llmc2py.runtime.cuda import compile_cubin, toolkit
from llmc2py.runtime.source import KernelRequest, KernelSource

SOURCE = """\
#include <cuda_fp16.h>
__global__ void scale(half* x, int n) {
    if ((int)threadIdx.x < n) x[threadIdx.x] = __hmul(x[threadIdx.x], __float2half(2.0f));
}
void run(half* x, int n) { scale<<<1, 32>>>(x, n); }
"""


@pytest.fixture
def headers(tmp_path, monkeypatch):
    """Headers of another major version are all there is, and an NVRTC of CUDA 13.2 compiles."""
    folder = tmp_path / "other" / "include"
    folder.mkdir(parents=True)
    (folder / "cuda_fp16.h").write_text("")
    (folder / "cuda_runtime_api.h").write_text("#define CUDART_VERSION 12040\n")
    nvrtc = toolkit.Nvrtc((13, 2), pathlib.Path("/elsewhere/lib64/libnvrtc.so.13"))
    monkeypatch.setattr(toolkit, "find_nvrtc", lambda: nvrtc)
    monkeypatch.setattr(toolkit, "candidate_folders", lambda *args: [folder])
    toolkit.find_toolkit.cache_clear()
    yield folder
    toolkit.find_toolkit.cache_clear()


def test_compiling_names_both_versions_and_paths(case, headers):
    pytest.importorskip("cupy_backends.cuda.libs.nvrtc", reason="no CuPy")
    built = case({"scale.cu": SOURCE})
    source = KernelSource.beside(built["scale"].__file__, "scale.cu")
    request = KernelRequest(source, "scale", "SLICE_scale", "float32", ("half*", "int"))
    with pytest.raises(toolkit.ToolkitMismatchError) as caught:
        compile_cubin(request, "sm_90")
    said = str(caught.value)
    assert "NVRTC is of CUDA 13.2 (/elsewhere/lib64/libnvrtc.so.13)" in said
    assert f"the CUDA headers are of 12.4 in {headers}" in said
    assert "install nvidia-cuda-runtime of CUDA 13.2, or set CUDA_PATH" in said


@pytest.mark.usefixtures("headers")
def test_the_cpu_does_not_mind(case):
    module = case({"scale.cu": SOURCE})["scale"]
    x = np.array([2, 3, 4], np.float16)
    module.run(x, 3)
    assert x.tolist() == [4.0, 6.0, 8.0]
