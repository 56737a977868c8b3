"""Functions in the place of launchers: the buckets of tokens, and what is launched with what."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from generated.llmc.encoder import encoder_backward
from llmc2py.runtime import replacements
from llmc2py.runtime.arrays import backend_named

#: A bucket is of the first class whose number of places it exceeds.
CLASSES = np.array([4096, 1024, 256, 64, 16, 4, 0])
LENGTHS = st.sampled_from([1, 2, 4, 5, 16, 17, 63, 64, 65, 256, 257, 1025, 4096, 4097])


@st.composite
def tokens_of_rows(draw: Any) -> tuple[np.ndarray, int]:
    """Draw tokens in places at random, most in few places, and how many rows there are for them."""
    rows = draw(st.sampled_from([1, 3, 130, 5000, 70_000]))
    lengths = draw(st.dictionaries(st.integers(0, rows - 1), LENGTHS, min_size=1, max_size=12))
    tokens = np.repeat(np.array(list(lengths), np.int32), list(lengths.values()))
    return np.random.default_rng(draw(st.integers(0, 9))).permutation(tokens), rows


def expected_buckets(tokens: np.ndarray, groups: int) -> np.ndarray:
    """Return all buckets, formulated with NumPy."""
    present, begins, lengths = np.unique(np.sort(tokens), return_index=True, return_counts=True)
    order = np.argmax(lengths[:, None] > CLASSES, axis=1).argsort(kind="stable")
    of_tokens = np.stack([begins, lengths, present], axis=1)[order].repeat(groups, axis=0)
    return np.column_stack([of_tokens, np.tile(np.arange(groups), len(present))])


def to_numpy(array: Any) -> np.ndarray:
    return array if isinstance(array, np.ndarray) else array.get()


# The fixture is a module, which no example changes. The first example compiles kernels.
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(drawn=tokens_of_rows(), groups=st.integers(1, 4))
def test_buckets_are_made_where_the_tokens_are(xp: Any, drawn: tuple[np.ndarray, int], groups: int) -> None:
    tokens, rows = drawn
    made = replacements.token_buckets(xp.asarray(tokens), rows, groups)
    assert isinstance(made.buckets, xp.ndarray)
    assert isinstance(made.places, xp.ndarray)
    assert made.buckets.dtype == made.places.dtype == np.int32
    wanted = expected_buckets(tokens, groups)
    assert made.valid
    assert made.total == len(wanted)
    assert made.long == np.count_nonzero(wanted[:, 1] > 16)
    assert np.array_equal(to_numpy(made.buckets)[: made.total], wanted)
    assert np.array_equal(to_numpy(made.places), tokens.argsort(kind="stable"))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    tokens=st.lists(st.integers(0, 9), max_size=40),
    rows=st.sampled_from([0, 10, 70_000]),
    wrong=st.sampled_from([-1, -(2**31), -(2**16), 10 - 2**16, 2**16 + 70_000, 2**31 - 1]),
    at=st.integers(0, 40),
)
def test_a_token_without_a_row_is_noted(xp: Any, tokens: list[int], rows: int, wrong: int, at: int) -> None:
    tokens.insert(at, wrong)
    assert not replacements.token_buckets(xp.asarray(np.array(tokens, np.int32)), rows, 2).valid


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(drawn=tokens_of_rows(), B=st.sampled_from([1, 3]), C=st.sampled_from([8, 264]), seed=st.integers(0, 9))
def test_a_graph_adds_the_same_with_as_many_buckets_as_there_are_at_most(
    xp: Any, drawn: tuple[np.ndarray, int], B: int, C: int, seed: int
) -> None:
    tokens, rows = drawn
    B = min(B, len(tokens))
    T, rows = min(500, len(tokens)) // B, min(rows, 5000)
    tokens = np.minimum(tokens[: B * T], rows - 1)
    random = np.random.default_rng(seed)
    dout = xp.asarray(random.standard_normal((B, T, C)).astype(np.float32))
    found = []
    for most in (False, True):
        dwte, dwpe = xp.ones((rows, C), np.float32), xp.zeros((T, C), np.float32)
        with pytest.MonkeyPatch.context() as patch:
            backend = backend_named("cpu" if xp is np else "cuda")
            patch.setattr(backend, "is_capturing", lambda most=most: most)
            encoder_backward(dwte, dwpe, None, None, None, dout, xp.asarray(tokens), None, B, T, C, seed)
        found.append((to_numpy(dwte), to_numpy(dwpe)))
    for usual, captured in zip(*found, strict=True):
        assert np.allclose(captured, usual, rtol=1e-5, atol=1e-5)
    wanted = np.ones((rows, C))
    np.add.at(wanted, tokens, to_numpy(dout).reshape(-1, C).astype(np.float64))
    assert np.allclose(found[1][0], wanted, rtol=1e-5, atol=1e-4)


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


FEW, MANY = [1] * 16 + [0, 2], [7] * 17 + [3] * 18


@pytest.mark.parametrize(
    ("template", "tokens", "grids"),
    [
        ((256,), MANY + FEW, [(2, 256), (3, 32)]),
        ((256,), FEW, [(1, 256), (2, 32)]),
        ((256,), MANY, [(2, 256), (1, 32)]),
        ((256,), [5], [(1, 256), (1, 32)]),
        ((), MANY + FEW, [(5, 256)]),
    ],
)
def test_tokens_in_few_places_are_left_to_one_warp_where_the_kernel_has_a_choice(
    template: tuple[object, ...], tokens: list[int], grids: list[tuple[int, int]]
) -> None:
    dwte, dout = np.zeros((8, 4), np.float32), np.zeros((len(tokens), 4), np.float32)
    kernels = [Recorder(), Recorder(template)]
    update = replacements.Replacement(replacements.encoder_backward, kernels, origin="encoder.cuh:1")
    update(dwte, dwte, None, None, None, dout, np.array(tokens, np.int32), None, 1, len(tokens), 4, 5)
    assert [launch[0] for launch in kernels[1].launched] == grids
    buckets = np.concatenate([launch[2][: grid[0]] for launch, grid in zip(kernels[1].launched, grids, strict=True)])
    lengths = {token: tokens.count(token) for token in tokens}
    assert [(token, count) for _, count, token, group in buckets if group == 0] == sorted(
        lengths.items(), key=lambda item: (-(item[1] > 4) - (item[1] > 16), item[0])
    )
    assert sum(group == 1 for group in buckets[:, 3]) == sum(grid[0] for grid in grids) - len(lengths)


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
