"""Headers that fit NVRTC are preferred, and those that do not are an error that names both versions and paths."""

from __future__ import annotations

import pathlib
import sys

import pytest

from llmc2py.runtime.cuda import toolkit
from llmc2py.runtime.cuda.toolkit import Headers, Nvrtc, ToolkitMismatchError
from llmc2py.runtime.errors import ToolMissingError

NVRTC = Nvrtc((13, 2), pathlib.Path("/opt/nvrtc/lib/libnvrtc.so.13"))


@pytest.fixture
def include(tmp_path):
    """Return a function that lays out an include folder of a CUDA version."""

    def make(version: str, file: str = "cuda_runtime_api.h") -> pathlib.Path:
        major, minor = version.split(".")
        folder = tmp_path / version / "include"
        folder.mkdir(parents=True)
        macro = {"cuda_runtime_api.h": "CUDART_VERSION", "cuda.h": "CUDA_VERSION"}[file]
        (folder / file).write_text(f"#pragma once\n#define {macro}  {int(major) * 1000 + int(minor) * 10}\n")
        (folder / "cuda_fp16.h").write_text("")
        return folder

    return make


@pytest.mark.parametrize("file", ["cuda_runtime_api.h", "cuda.h"])
def test_the_version_is_read_from_the_headers(include, file):
    assert toolkit.header_version(include("12.8", file)) == (12, 8)


def test_a_folder_without_cuda_headers_has_no_version(tmp_path):
    (tmp_path / "cuda_runtime_api.h").write_text("#define CUDART_VERSION 13000\n")
    assert toolkit.header_version(tmp_path) is None
    assert toolkit.header_version(tmp_path / "nowhere") is None


def test_headers_of_the_version_of_nvrtc_come_first(include):
    older, same, other = include("13.0"), include("13.2"), include("12.9")
    assert toolkit.choose_headers(NVRTC, [other, older, same]) == Headers((13, 2), same)
    assert toolkit.choose_headers(NVRTC, [other, older]) == Headers((13, 0), older)


@pytest.mark.parametrize("version", ["12.9", "14.0", "13.3"])
def test_headers_that_do_not_fit_are_an_error_with_versions_and_paths(include, version):
    folder = include(version)
    with pytest.raises(ToolkitMismatchError) as caught:
        toolkit.choose_headers(NVRTC, [folder])
    message = str(caught.value)
    assert "CUDA 13.2 (/opt/nvrtc/lib/libnvrtc.so.13)" in message
    assert f"{version} in {folder}" in message
    assert "CUDA_PATH" in message


def test_no_headers_at_all_is_no_error(tmp_path):
    assert toolkit.choose_headers(NVRTC, [tmp_path, tmp_path / "nowhere"]) is None


def test_pip_packages_come_before_the_environment_and_the_system(tmp_path):
    folders = list(toolkit.candidate_folders(NVRTC, {"CUDA_PATH": "/elsewhere", "CONDA_PREFIX": ""}, [str(tmp_path)]))
    wanted = [
        pathlib.Path("/opt/nvrtc/include"),
        tmp_path / "nvidia" / "cu13" / "include",
        tmp_path / "nvidia" / "cuda_runtime" / "include",
        pathlib.Path("/elsewhere/include"),
        pathlib.Path("/usr/local/cuda-13.2/include"),
        pathlib.Path("/usr/local/cuda/include"),
    ]
    assert folders == wanted


def test_cccl_is_the_toolkits_or_else_the_one_that_cupy_brings(include, tmp_path, monkeypatch):
    headers = Headers((13, 0), include("13.0"))
    bundled = tmp_path / "site" / "cupy" / "_core" / "include" / "cupy" / "_cccl"
    bundled.mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "site")])
    assert toolkit.find_cccl(headers) == (bundled / "libcudacxx", bundled / "cub", bundled / "thrust")
    version = headers.path / "cccl" / "cuda" / "std" / "__cccl" / "version.h"
    version.parent.mkdir(parents=True)
    version.write_text("#define CCCL_VERSION 3001002\n")
    assert toolkit.find_cccl(headers) == (headers.path / "cccl",)
    tools = toolkit.Toolkit(NVRTC, headers, toolkit.find_cccl(headers))
    assert toolkit.cccl_version(tools) == "3001002"
    assert tools.include_folders == (headers.path, headers.path / "cccl")


def test_without_cupy_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "cupy_backends.cuda.libs.nvrtc", None)
    with pytest.raises(ToolMissingError, match=r'pip install "llmc2py\[cuda13\]"'):
        toolkit.nvrtc_library()


@pytest.mark.usefixtures("nvrtc")
def test_what_is_installed_here_fits_together():
    tools = toolkit.find_toolkit()
    assert tools.nvrtc.version >= (12, 0)
    if sys.platform == "linux":
        assert tools.nvrtc.path is not None
        assert tools.nvrtc.path.is_file()
    if tools.headers is not None:
        assert tools.headers.version[0] == tools.nvrtc.version[0]
        assert (tools.headers.path / "cuda_bf16.h").is_file()


@pytest.mark.usefixtures("nvrtc")
def test_a_kernel_that_needs_headers_where_there_are_none_says_what_to_install(make_request, monkeypatch):
    from llmc2py.runtime.cuda import compile_cubin

    bare = toolkit.Toolkit(toolkit.find_nvrtc(), None, ())
    monkeypatch.setattr(toolkit, "find_toolkit", lambda: bare)
    assert compile_cubin(make_request("__global__ void k(float* o) { *o = INFINITY; }"), "sm_90").cubin
    with pytest.raises(ToolMissingError, match=r"includes <cuda_bf16.h>.*llmc2py\[cuda13\]"):
        compile_cubin(make_request("#include <cuda_bf16.h>\n__global__ void k(float* o) {}"), "sm_90")
