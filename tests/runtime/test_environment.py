"""The findings of ``llmc2py doctor``: what is there, what is missing and what to do about it. It never raises."""

from __future__ import annotations

import importlib.metadata
import pathlib

import pytest

from llmc2py.runtime import environment
from llmc2py.runtime.cuda import toolkit
from llmc2py.runtime.environment import Finding, inspect


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path / "cache"))


def by_name(findings: list[Finding]) -> dict[str, Finding]:
    return {finding.name: finding for finding in findings}


def test_everything_is_looked_at_and_what_is_not_ok_has_a_hint():
    findings = inspect()
    assert {"Python", "NumPy", "ml_dtypes", "CuPy", "NVRTC", "C++ compiler", "cache folder", "PyTorch"} <= set(
        by_name(findings)
    )
    assert [finding for finding in findings if finding.status != "ok" and not finding.hint] == []
    assert by_name(findings)["NumPy"].value == importlib.metadata.version("numpy")


def test_a_probe_that_fails_is_a_finding(monkeypatch):
    def fail():
        raise OSError("the disk is on fire")

    monkeypatch.setattr(environment, "_cache", fail)
    found = by_name(inspect())["cache folder"]
    assert (found.status, found.hint) == ("warning", "OSError: the disk is on fire")


def test_without_cupy_it_says_what_to_install(monkeypatch):
    monkeypatch.setattr(environment, "_installed", lambda name: None)
    found = by_name(inspect())
    assert found["CuPy"].status == "missing"
    assert 'pip install "llmc2py[cuda13]"' in found["CuPy"].hint
    assert found["ml_dtypes"] == Finding("ml_dtypes", "not installed", "missing", "pip install ml_dtypes")


def test_nvmath_is_optional(monkeypatch):
    monkeypatch.setattr(environment, "_installed", {"nvmath-python": "1.0.0"}.get)
    assert environment._nvmath() == [Finding("nvmath-python", "1.0.0")]
    monkeypatch.setattr(environment, "_installed", lambda name: None)
    (found,) = environment._nvmath()
    assert (found.status, found.value) == ("missing", "not installed (optional)")
    assert 'pip install "llmc2py[gemm]"' in found.hint


def test_two_cupys_are_a_warning(monkeypatch):
    monkeypatch.setattr(environment, "_installed", {"cupy-cuda13x": "14.2.0", "cupy-cuda12x": "13.4.0"}.get)
    (found,) = environment._cupy()
    assert found.status == "warning"
    assert found.value == "14.2.0 (cupy-cuda13x), 13.4.0 (cupy-cuda12x)"


def test_headers_that_do_not_fit_are_a_warning_with_both_versions(monkeypatch, tmp_path):
    nvrtc = toolkit.Nvrtc((13, 2), pathlib.Path("/opt/libnvrtc.so.13"))
    (tmp_path / "cuda_fp16.h").write_text("")
    (tmp_path / "cuda.h").write_text("#define CUDA_VERSION 12080\n")
    monkeypatch.setattr(toolkit, "find_nvrtc", lambda: nvrtc)
    monkeypatch.setattr(toolkit, "find_toolkit", lambda: toolkit.choose_headers(nvrtc, [tmp_path]))
    found = by_name(environment._nvrtc_and_headers())
    assert found["NVRTC"].value == "13.2 (/opt/libnvrtc.so.13)"
    assert found["CUDA headers"].status == "warning"
    assert "13.2" in found["CUDA headers"].hint
    assert f"12.8 in {tmp_path}" in found["CUDA headers"].hint


def test_a_device_is_shown_with_its_capability_and_memory():
    raw = {"name": b"NVIDIA H200", "major": 9, "minor": 0, "totalGlobalMem": 140 << 30}
    assert environment._device(0, raw) == Finding("GPU 0", "NVIDIA H200, compute capability 9.0, 140.0 GiB")


def test_without_a_compiler_it_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.delenv("LLMC2PY_CXX", raising=False)
    (found,) = environment._guarded("C++ compiler", environment._compiler)
    assert found.status == "missing"
    assert "g++" in found.hint


def test_the_cache_is_measured(tmp_path):
    folder = tmp_path / "cache" / "cuda"
    folder.mkdir(parents=True)
    (folder / "a.cubin").write_bytes(bytes(3 << 20))
    (found,) = environment._cache()
    assert found == Finding("cache folder", f"{tmp_path / 'cache'} (1 files, 3.0 MiB)")


def test_a_cache_that_cannot_be_a_folder_is_a_warning(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("LLMC2PY_CACHE_DIR", str(tmp_path / "file"))
    (found,) = environment._cache()
    assert found.status == "warning"
    assert "LLMC2PY_CACHE_DIR" in found.hint
