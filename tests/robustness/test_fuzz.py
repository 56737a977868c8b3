"""Sources with tokens and lines deleted, doubled and swapped: what is left of them is read, and all of the rest.

Five hundred inputs of what ``benchmarks/fuzz.py`` checks by the ten thousand.
"""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from benchmarks import fuzz

#: Files that are read quickly and hold all that there is: templates, packets, shared memory, cooperative launches.
NAMES = (
    "dev/cuda/crossentropy_softmax_backward.cu",
    "dev/cuda/encoder_backward.cu",
    "dev/cuda/gelu_backward.cu",
    "dev/cuda/matmul_backward.cu",
    "llmc/adamw.cuh",
    "llmc/encoder.cuh",
    "llmc/fused_classifier.cuh",
    "llmc/gelu.cuh",
    "llmc/global_norm.cuh",
    "dev/cuda/residual_forward.cu",
)
SHARES = st.floats(0, 1, exclude_max=True)
MUTATIONS = st.builds(
    fuzz.Mutation, st.sampled_from(("delete", "duplicate", "swap")), st.sampled_from(("token", "line")), SHARES, SHARES
)


@pytest.mark.parametrize("part", range(5))
def test_mutated_sources(part):
    @settings(
        max_examples=100,
        deadline=None,
        database=None,
        derandomize=True,
        phases=[Phase.generate, Phase.shrink],
        suppress_health_check=list(HealthCheck),
    )
    @given(st.sampled_from(NAMES[part::5]), st.lists(MUTATIONS, min_size=1, max_size=6), st.integers(0, 3))
    def check(name, mutations, with_includes):
        # Most of the time goes into what is included: one in four has that.
        text = fuzz.original(name) if with_includes == 3 else fuzz.without_includes(fuzz.original(name))
        fuzz.check_text(name, fuzz.mutate(text, mutations))

    check()


def test_mutations_do_what_they_say():
    text = "a b\nc d\n"
    assert fuzz.Mutation("delete", "line", 0.0, 0.0).apply(text) == "c d\n"
    assert fuzz.Mutation("duplicate", "line", 0.0, 0.9).apply(text) == "a b\na b\nc d\n"
    assert fuzz.Mutation("swap", "line", 0.0, 0.9).apply(text) == "c d\na b\n"
    assert fuzz.Mutation("delete", "token", 0.0, 0.0).apply(text) == " b\nc d\n"
    assert fuzz.Mutation("swap", "token", 0.0, 0.99).apply(text) == "\n b\nc da"
    assert fuzz.Mutation("delete", "token", 0.5, 0.5).apply("") == ""
    assert fuzz.mutated(7) == fuzz.mutated(7)
    assert all(fuzz.original(name) for name in NAMES)


def test_the_check_fails_where_it_should(monkeypatch):
    name = "llmc/gelu.cuh"
    text = fuzz.original(name)
    fuzz.check_text(name, text)
    with monkeypatch.context() as patched:
        patched.setattr(fuzz, "LIMIT", 0.01)
        with pytest.raises(fuzz.TooSlowError):
            fuzz.check_text(name, text)
    with monkeypatch.context() as patched:
        patched.setattr(fuzz, "_emitted", lambda library: {"permute.py": ""})
        with pytest.raises(AssertionError, match="an untouched kernel is gone"):
            fuzz.check_text(name, text)
    real = fuzz._emitted
    with monkeypatch.context() as patched:
        patched.setattr(fuzz, "_emitted", lambda library: real(library) | {"x.py": "def ("})
        with pytest.raises(SyntaxError):
            fuzz.check_text(name, text)
    with monkeypatch.context() as patched:
        patched.setattr(fuzz, "_read", lambda *_: fuzz._untouched())
        with pytest.raises(AssertionError, match=r"vanished without a diagnostic: \['gelu_backward_inplace_kernel"):
            fuzz.check_text(name, text)
