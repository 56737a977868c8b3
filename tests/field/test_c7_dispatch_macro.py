"""CASES C7: a macro that launches in the cases of a switch: one instantiation for each, and no other number."""

from __future__ import annotations

import re

import numpy as np
import pytest

SOURCE = """\
template <int Size>
__global__ void k(float* x, int by) { for (int i = 0; i < Size; i++) x[i] = by + Size; }
#define L(K) k<(K)><<<g, b>>>(x, (K));
void dispatch(int n, float* x, int g, int b) {
    switch (n) { case 64: L(64) break; case 128: L(128) break; }
}
void dispatch_or_exit(int n, float* x, int g, int b) {
    switch (n) {
        case 64: L(64) break;
        case 128: L(128) break;
        default: printf("no such size\\n"); exit(1);
    }
}
"""


@pytest.fixture
def module(case):
    built = case({"k.cu": SOURCE})
    assert built.diagnostics == []
    return built["k"]


@pytest.mark.parametrize("launcher", ["dispatch", "dispatch_or_exit"])
@pytest.mark.parametrize("n", [64, 128])
def test_each_case_is_an_instantiation(module, xp, launcher, n):
    x = xp.zeros(200, np.float32)
    run = getattr(module, launcher)
    (launch,) = run.plan(n, x, 1, 1).operations
    assert (launch.template, launch.args[1]) == ((n,), n)
    run(n, x, 1, 1)
    assert x.tolist() == [2.0 * n] * n + [0.0] * (200 - n)


def test_another_number_is_a_value_error(module, xp):
    x = xp.zeros(200, np.float32)
    with pytest.raises(ValueError, match=re.escape("dispatch_or_exit needs n is one of 64, 128, but n = 96")):
        module.dispatch_or_exit(96, x, 1, 1)
    assert not x.any()


def test_a_switch_that_launches_nothing_is_no_silent_success(module):
    with pytest.raises(ValueError, match=re.escape("dispatch needs n is one of 64, 128, but n = 96")):
        module.dispatch(96, np.zeros(200, np.float32), 1, 1)
