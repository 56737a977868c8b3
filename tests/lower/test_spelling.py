"""Expressions as C writes them, in listings and in the messages of failed asserts."""

from __future__ import annotations

import pytest

from llmc2py.pipeline import generate

KERNEL = "template <typename T> __global__ void k(T* o, int n) { o[0] = n; }\n"


@pytest.mark.parametrize(
    ("grid", "spelled"),
    [
        ("(n + b - 1) / b", "(n + b - 1) / b"),
        ("n - (b - 1)", "n - (b - 1)"),
        ("n / (b * 2) * 2", "n / (b * 2) * 2"),
        ("(n * b) / 2", "n * b / 2"),
        ("n > 0 ? n : 1", "n > 0 ? n : 1"),
        ("(n > 0 ? n : 1) + 1", "(n > 0 ? n : 1) + 1"),
        ("(n + 255) >> 8", "n + 255 >> 8"),
        ("dim3(n, 2)", "dim3(n, 2)"),
        ("(int)sizeof(float) * n", "(int)sizeof(float) * n"),
        ("std::min(n, 1024)", "std::min(n, 1024)"),
    ],
)
def test_launch_configurations(tmp_path, grid, spelled):
    (tmp_path / "k.cu").write_text(f"{KERNEL}void go(float* o, int n, int b) {{ k<float><<<{grid}, 32>>>(o, n); }}\n")
    made = generate(tmp_path)
    assert made.plan.not_lowered == ()
    (launcher,) = made.plan.modules[0].launchers
    assert launcher.launches == (f"k<float><<<{spelled}, 32>>>",)


def test_messages_of_asserts_fit_in_a_string(tmp_path):
    (tmp_path / "k.cu").write_text(
        KERNEL + 'void go(float* o, int n) { assert(n % 32 == 0 && "a \\"whole\\" warp"); k<float><<<1, 32>>>(o, n); }'
    )
    text = generate(tmp_path).files["k.py"]
    compile(text, "k.py", "exec")
    assert "n % 32 == 0 (a /'whole/' warp)" in text
