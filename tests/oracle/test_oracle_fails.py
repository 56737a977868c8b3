"""The oracle sees what it is there for: each change of an emitted plan turns it red, and so does a changed kernel."""

from __future__ import annotations

import importlib
import re

import numpy as np
import pytest

from llmc2py.runtime import host
from llmc2py.verify.launch_oracle import Argument, OracleMismatchError, check_call

NORM = "dev/cuda/layernorm_backward.cu"
ATTENTION = "dev/cuda/attention_forward.cu"


def array(count: int, seed: int = 0) -> np.ndarray:
    made = host.empty((count,), np.float32)
    made[:] = np.random.default_rng(seed).normal(0.5, 1.5, count)
    return made


def replaced_launcher(package_folder, file, name, change, tmp_path, monkeypatch):
    """Import a copy of a generated module in which the function of one launcher is changed, and return the launcher."""
    source = package_folder / file.replace(".cu", ".py")
    text = source.read_text()
    function = re.search(rf"^def {name}\(.*?(?=^@launcher|^def |\Z)", text, re.S | re.M)
    assert function is not None
    changed = change(function[0])
    assert changed != function[0], "the change finds nothing to change"
    stem = f"changed_{abs(hash((str(tmp_path), name, changed)))}"
    (tmp_path / f"{stem}.py").write_text(text.replace(function[0], changed))
    (tmp_path / source.with_suffix(".cu").name).write_text(source.with_suffix(".cu").read_text())
    monkeypatch.syspath_prepend(str(tmp_path))
    return getattr(importlib.import_module(stem), name)


def checked(subjects, key, launcher, lengths, scalars):
    subject = subjects.subject(key, "float32")
    values = [array(count, seed) for seed, count in enumerate(lengths)]
    arguments = [*map(Argument, values), *(Argument(value, "int") for value in scalars)]
    given = [*(value.copy() for value in values), *scalars]
    return check_call(subject.library, subject.entries[()], launcher, arguments, lambda: given, runs=True)


def check_gelu(subjects, launcher, size=5000, block_size=128):
    key = ("dev/cuda/gelu_forward.cu", "gelu_forward1")
    return checked(subjects, key, launcher, [size, size], [size, block_size])


def check_norm(subjects, launcher, b=2, t=3, c=40, block_size=64):
    scratch = 32 + 4 * c * host.properties(0).multiProcessorCount
    lengths = [b * t * c, c, c, scratch, b * t * c, b * t * c, c, b * t, b * t]
    return checked(subjects, (NORM, "layernorm_backward5"), launcher, lengths, [b, t, c, block_size])


def check_attention(subjects, launcher, b=2, t=5, c=12, nh=3):
    lengths = [b * t * c, b * t * c, 3 * b * t * c, b * nh * t * t, b * nh * t * t, 3 * b * t * c]
    return checked(subjects, (ATTENTION, "attention_forward3"), launcher, lengths, [b, t, c, nh, 64])


CHANGES = {
    "grid off by one": (
        "dev/cuda/gelu_forward.cu",
        "gelu_forward1",
        lambda text: re.sub(r"(plan\.launch\(gelu_forward_kernel1, )(.*?), block_size", r"\1\2 + 1, block_size", text),
        check_gelu,
        "operation 0 differs",
    ),
    "other block": (
        "dev/cuda/gelu_forward.cu",
        "gelu_forward1",
        lambda text: text.replace(", block_size, 0,", ", 2 * block_size, 0,"),
        check_gelu,
        "operation 0 differs",
    ),
    "swapped arguments": (
        "dev/cuda/gelu_forward.cu",
        "gelu_forward1",
        lambda text: text.replace("0, out, inp, N)", "0, inp, out, N)"),
        check_gelu,
        "operation 0 differs",
    ),
    "offset of a pointer": (
        "dev/cuda/gelu_forward.cu",
        "gelu_forward1",
        lambda text: text.replace("0, out, inp, N)", "0, out, inp + 1, N)"),
        check_gelu,
        "operation 0 differs",
    ),
    "more is refused": (
        "dev/cuda/gelu_forward.cu",
        "gelu_forward1",
        lambda text: text.replace(
            "    plan.launch(", "    plan.require(N % 512 == 0, 'N % 512 == 0')\n    plan.launch("
        ),
        check_gelu,
        r"C\+\+ accepts, the plan refuses",
    ),
    "dropped memset": (
        NORM,
        "layernorm_backward5",
        lambda text: re.sub(r" *plan\.memset\(.*?\)\n", "", text),
        check_norm,
        "operation 0 differs",
    ),
    "shorter memset": (
        NORM,
        "layernorm_backward5",
        lambda text: re.sub(r"(plan\.memset\(.*)\)\n", r"\1 - 4)\n", text),
        check_norm,
        "operation 0 differs",
    ),
    "no shared memory": (
        NORM,
        "layernorm_backward5",
        lambda text: text.replace("block_size, smem", "block_size, 0").replace("        smem,\n", "        0,\n"),
        check_norm,
        "operation 1 differs",
    ),
    "other factor of a product": (
        ATTENTION,
        "attention_forward3",
        lambda text: text.replace("CUBLAS_OP_T", "CUBLAS_OP_C").replace("one = 1.0", "one = 2.0"),
        check_attention,
        "operation 1 differs",
    ),
}


def unchanged(package_folder, file, name):
    module = ".".join((package_folder.name, *file.removesuffix(".cu").split("/")))
    return getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_plan_is_seen(subjects, package_folder, tmp_path, monkeypatch, change):
    file, name, edit, check, message = CHANGES[change]
    assert check(subjects, unchanged(package_folder, file, name)) == "ran"
    launcher = replaced_launcher(package_folder, file, name, edit, tmp_path, monkeypatch)
    with pytest.raises(OracleMismatchError, match=message):
        check(subjects, launcher)


def test_different_bytes_are_seen(subjects, package_folder, tmp_path, monkeypatch):
    """The same launches of a kernel with another formula: what differs is the arrays."""
    source = (package_folder / "dev/cuda/gelu_forward.cu").read_text()
    launcher = replaced_launcher(
        package_folder,
        "dev/cuda/gelu_forward.cu",
        "gelu_forward1",
        lambda text: text.replace('"""Launch', '"""Do launch'),
        tmp_path,
        monkeypatch,
    )
    kernel = re.search(r"__global__ void gelu_forward_kernel1\(.*?\n}", source, re.S)
    assert kernel is not None
    changed = re.sub(r"(out\[\w+\] = .*?);", r"\1; out[0] = (floatX)1.25f;", kernel[0])
    assert changed != kernel[0]
    path = tmp_path / "gelu_forward.cu"
    path.write_text(source.replace(kernel[0], changed))
    with pytest.raises(OracleMismatchError, match="bytes of `out` differ, first at element 0"):
        check_gelu(subjects, launcher)


def test_refusals_that_differ_are_seen(subjects, package_folder, tmp_path, monkeypatch):
    def accepts_more(text):
        return re.sub(r" *plan\.require\(.*\n", "", text)

    launcher = replaced_launcher(package_folder, NORM, "layernorm_backward5", accepts_more, tmp_path, monkeypatch)
    with pytest.raises(OracleMismatchError, match=r"C\+\+ refuses .assertion failed: block_size .*, the plan accepts"):
        check_norm(subjects, launcher, block_size=33)
