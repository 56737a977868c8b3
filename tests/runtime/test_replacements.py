"""Functions in the place of launchers: the buckets of tokens, and what is launched with what."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from llmc2py.runtime import replacements

tokens_and_groups = st.tuples(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.integers(1, 4))


@given(tokens_and_groups)
def test_each_place_is_in_one_bucket_of_its_token_in_each_group(drawn: tuple[list[int], int]) -> None:
    tokens, groups = drawn
    buckets, places = replacements.token_buckets(np.array(tokens, np.int32), groups)
    assert buckets.dtype == places.dtype == np.int32
    for group in range(groups):
        seen: list[int] = []
        for begin, length, token, _ in buckets[buckets[:, 3] == group]:
            inside = places[begin : begin + length].tolist()
            assert inside == [place for place, one in enumerate(tokens) if one == token]
            seen += inside
        assert sorted(seen) == list(range(len(tokens)))


@given(tokens_and_groups)
def test_long_buckets_come_first(drawn: tuple[list[int], int]) -> None:
    tokens, groups = drawn
    lengths = replacements.token_buckets(np.array(tokens, np.int32), groups)[0][:, 1].tolist()
    assert lengths == sorted(lengths, reverse=True)


class Recorder:
    """A kernel or launcher that notes how it is launched and called."""

    def __init__(self, template: tuple[object, ...] = (), launched: list[tuple[object, ...]] | None = None) -> None:
        self.launched = [] if launched is None else launched
        self.template = template

    def __getitem__(self, configuration: object) -> object:
        return lambda *arguments: self.launched.append((configuration, *arguments))

    def __call__(self, *arguments: object) -> None:
        self.launched.append(arguments)

    def instantiate(self, *template: object) -> Recorder:
        return Recorder(template, self.launched)


@pytest.mark.parametrize(("template", "grids"), [((256,), [(2, 256), (3, 32)]), ((), [(5, 256)])])
def test_tokens_in_few_places_are_left_to_one_warp_where_the_kernel_has_a_choice(
    template: tuple[object, ...], grids: list[object]
) -> None:
    tokens = np.array([7] * 17 + [1] * 16 + [3] * 18 + [0, 2], np.int32)
    dwte, dout = np.zeros((8, 4), np.float32), np.zeros((53, 4), np.float32)
    kernels = [Recorder(), Recorder(template)]
    update = replacements.Replacement(replacements.encoder_backward, kernels, origin="encoder.cuh:1")
    update(dwte, dwte, None, None, None, dout, tokens, None, 1, 53, 4, 5)
    assert [launch[0] for launch in kernels[1].launched] == grids
    buckets = np.concatenate([launch[2] for launch in kernels[1].launched])
    assert buckets[:, 1:3].tolist() == [[18, 3], [17, 7], [16, 1], [1, 0], [1, 2]]


RATES = {"learning_rate": 0.1, "beta1": 0.9, "beta2": 0.99, "eps": 1e-8, "weight_decay": 0.01}


def test_gpt2_update_of_float32_gives_the_corrections_of_its_step() -> None:
    kernel = Recorder()
    update = replacements.Replacement(replacements.gpt2_update_fp32, [kernel], origin="train.cu:1")
    arrays = [np.zeros(1025, np.float32) for _ in range(4)]
    update(*arrays, *RATES.values(), t=2)
    ((configuration, *arguments),) = kernel.launched
    assert configuration == (3, 512)
    assert arguments[:4] == arrays
    assert arguments[4:] == pytest.approx([1025, 0.1, 0.9, 0.99, 1 - 0.81, 1 - 0.9801, 1e-8, 0.01])


@pytest.mark.parametrize("init_master", [False, True])
def test_gpt2_update_fills_master_weights_where_it_is_told(init_master: bool) -> None:
    copies, updates = Recorder(), Recorder()
    update = replacements.Replacement(replacements.gpt2_update, [copies, updates], origin="train.cu:1")
    params, grads, m, v, master = (np.zeros(513, np.float32) for _ in range(5))
    update(params, grads, m, v, master, **RATES, grad_scale=0.5, t=3, seed=7, init_master=init_master)
    expected = [((2, 1), 512), master, params, 513, 0, 0] if init_master else []
    assert [list(one) for one in copies.launched] == ([expected] if init_master else [])
    ((*arguments,),) = updates.launched
    assert arguments[:5] == [params, master, grads, m, v]
    assert arguments[5:] == [513, 513, 513, 513, 1, 0.1, 0.9, 0.99, 3, 1e-8, 0.01, 0.5, 7]


def test_a_replacement_has_the_signature_of_the_launcher() -> None:
    update = replacements.Replacement(replacements.gpt2_update_fp32, [Recorder()], origin="train.cu:1")
    assert repr(update).startswith("<Replacement gpt2_update_fp32(params_memory: Any, grads_memory")
    with pytest.raises(TypeError, match="learning_rate"):
        update(1, 2, 3, 4)


@pytest.mark.gpu
def test_buckets_are_made_where_the_tokens_are() -> None:
    cupy = pytest.importorskip("cupy")
    for below in (1, 9, 70_000):
        tokens = np.random.default_rng(below).integers(0, below, 4000, np.int32)
        made = replacements.token_buckets(cupy.asarray(tokens), 3)
        for found, wanted in zip(made, replacements.token_buckets(tokens, 3), strict=True):
            assert isinstance(found, cupy.ndarray)
            assert np.array_equal(found.get(), wanted)
            assert found.dtype == wanted.dtype
