"""CASES C6: commas in template arguments and configurations, and members of an object that no plan can see."""

from __future__ import annotations

import numpy as np
import pytest

SOURCE = """\
struct Problem { float* d; int n; int bs() const; };
template <typename T, bool Both>
__global__ void k(T* a, int n) {
    int i = (blockIdx.y * gridDim.x + blockIdx.x) * blockDim.x + threadIdx.x;
    if (i < 4 * n) a[i] += Both ? n : 1;
}
void spread(float* a, int n) { k<float, (4 > 2)><<<dim3(n, 2), n > 0 ? n : 1>>>(a, n); }
void of_object(Problem* p, float* a) { k<float, 1><<<(p->n + 255) >> 8, p->bs()>>>(a, p->n); }
void of_pointer(Problem* p) { k<float, 1><<<(p->n + 255) >> 8, p->bs()>>>(p->d, p->n); }
"""


@pytest.fixture
def module(case):
    built = case({"k.cu": SOURCE})
    assert built.diagnostics == []
    return built["k"]


@pytest.mark.parametrize(("n", "block"), [(3, 3), (1, 1)])
def test_the_configuration_is_split_at_top_level_commas(module, n, block):
    (launch,) = module.spread.plan(np.zeros(20, np.float32), n).operations
    assert launch.template == ("float", True)
    assert (launch.grid, launch.block) == ((n, 2, 1), (block, 1, 1))


def test_the_conditional_in_the_configuration_chooses(module):
    assert module.spread.plan(np.zeros(20, np.float32), 0).operations == []
    with pytest.raises(ValueError, match="grid"):
        module.spread.plan(np.zeros(20, np.float32), -1)


def test_the_result_is_that_of_the_arguments(module, xp):
    a = xp.zeros(20, np.float32)
    module.spread(a, 2)
    assert a.tolist() == [2.0] * 8 + [0.0] * 12


def test_members_are_asked_for_with_the_types_that_the_kernel_takes(module):
    parameters = {name: one.annotation for name, one in module.of_pointer.signature.parameters.items()}
    assert parameters == {"p": "Problem*", "p_n": "int", "p_bs": "int", "p_d": "float*"}
    with pytest.raises(TypeError, match="missing a required argument: 'p_bs'"):
        module.of_pointer(None, p_n=3)


def test_what_was_asked_for_is_used(module, xp):
    d = xp.zeros(4, np.float32)
    module.of_pointer(None, p_n=1, p_bs=32, p_d=d)
    assert d.tolist() == [1.0] * 4
    (launch,) = module.of_object.plan(None, d, p_n=300, p_bs=64).operations
    assert (launch.grid, launch.block) == ((2, 1, 1), (64, 1, 1))


def test_an_array_is_no_object(module):
    with pytest.raises(TypeError, match="there are no arrays of Problem"):
        module.of_object(np.zeros(4, np.float32), np.zeros(4, np.float32), 1, 32)
