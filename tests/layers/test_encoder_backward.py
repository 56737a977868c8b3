"""The gradients of both embeddings, by the kernels of llmc/encoder.cuh and the function that sorts tokens for them."""

from __future__ import annotations

import numpy as np
import pytest

from llmc2py.runtime.dtypes import PRECISIONS
from llmc2py.verify.tolerance import half_spacing
from tests.layers.conftest import Package, to_double

ROWS = 11


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize(("B", "T", "C"), [(1, 1, 1), (2, 3, 5), (3, 7, 97), (2, 5, 768), (1, 4, 1601)])
def test_adds_to_the_rows_of_the_tokens(package: Package, xp, precision: str, B: int, T: int, C: int) -> None:
    random = np.random.default_rng(3)
    dtype = PRECISIONS[precision]
    tokens = random.integers(0, ROWS, (B, T)).astype(np.int32)
    dout, dwte, dwpe = (
        xp.asarray(random.standard_normal(shape).astype(dtype)) for shape in ((B, T, C), (ROWS, C), (T, C))
    )
    expected_wte, expected_wpe, terms = to_double(dwte), to_double(dwpe) + to_double(dout).sum(axis=0), to_double(dout)
    np.add.at(expected_wte, tokens.reshape(-1), terms.reshape(-1, C))
    package["llmc.encoder"].encoder_backward(
        dwte, dwpe, None, None, None, dout, xp.asarray(tokens), tokens, B, T, C, 42
    )
    for got, expected in ((dwte, expected_wte), (dwpe, expected_wpe)):
        # Rounded stochastically where 16 bits are stored: to either neighbour.
        allowed = 2 * half_spacing(expected, dtype) + 1e-6 * B * T
        assert np.all(np.abs(to_double(got) - expected) <= allowed)


@pytest.mark.parametrize(("place", "token"), [(0, -1), (5, ROWS), (3, 2**31 - 1)])
def test_a_token_without_a_row_is_an_error_that_names_its_place(package: Package, xp, place: int, token: int) -> None:
    tokens = np.zeros((2, 3), np.int32)
    tokens.reshape(-1)[place] = token
    dwte, dwpe, dout = (xp.asarray(np.ones(shape, np.float32)) for shape in ((ROWS, 4), (3, 4), (2, 3, 4)))
    with pytest.raises(IndexError, match=rf"token {token} at position \({place // 3}, {place % 3}\)"):
        package["llmc.encoder"].encoder_backward(
            dwte, dwpe, None, None, None, dout, xp.asarray(tokens), None, 2, 3, 4, 1
        )
    assert np.all(to_double(dwte) == 1)
    assert np.all(to_double(dwpe) == 1)
