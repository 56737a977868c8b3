"""Model files of llm.c, and our own checkpoints."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from examples.gpt2.checkpoint import load_checkpoint, read_config, read_model, save_checkpoint, write_model
from examples.gpt2.model import GPT2, TINY, GPT2Config
from tests.gpt2.conftest import ODD, stacked

ORDER = [
    "wte", "wpe", "ln1w", "ln1b", "qkvw", "qkvb", "attprojw", "attprojb",
    "ln2w", "ln2b", "fcw", "fcb", "fcprojw", "fcprojb", "lnfw", "lnfb",
]  # fmt: skip


@pytest.fixture
def odd() -> GPT2:
    """A model in which every number is another, so that no two can change places unseen."""
    model = GPT2(ODD)
    start = 0
    for parameter in model.parameters():
        count = parameter.data.size
        parameter.data[...] = np.arange(start, start + count, dtype=np.float32).reshape(parameter.shape)
        start += count
    return model


@pytest.mark.parametrize(("precision", "version", "size"), [("float32", 3, 4), ("bfloat16", 5, 2)])
def test_a_model_file_has_the_layout_of_llm_c(
    tmp_path: Path, odd: GPT2, precision: str, version: int, size: int
) -> None:
    odd.to(dtype=precision)
    write_model(tmp_path / "m.bin", odd)
    content = (tmp_path / "m.bin").read_bytes()
    assert struct.unpack("<8i", content[:32]) == (20240326, version, 12, 77, 2, 3, 48, 128)
    assert content[32:1024] == bytes(992)
    assert len(content) == 1024 + size * ODD.num_parameters
    values = np.frombuffer(content[1024:], np.float32 if size == 4 else ml_dtypes.bfloat16).astype(np.float64)
    weights = stacked(odd)
    np.testing.assert_array_equal(values, np.concatenate([weights[name].reshape(-1) for name in ORDER]))


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_model_file_is_read_as_it_was_written(tmp_path: Path, odd: GPT2, precision: str) -> None:
    odd.to(dtype=precision)
    write_model(tmp_path / "m.bin", odd)
    config, dtype = read_config(tmp_path / "m.bin")
    assert (config, dtype.name) == (ODD, precision)
    model = read_model(tmp_path / "m.bin", recompute=True)
    assert model.head.weight is model.encoder.wte
    for name, values in model.state_dict().items():
        assert values.dtype == odd.encoder.wte.dtype
        np.testing.assert_array_equal(values, odd.state_dict()[name])
    assert not list(tmp_path.glob(".*")), "a draft is left"


def test_a_model_in_half_precision_has_no_file(tmp_path: Path, odd: GPT2) -> None:
    with pytest.raises(TypeError, match="float32 or bfloat16, not float16"):
        write_model(tmp_path / "m.bin", odd.to(dtype="float16"))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:100], "no model file"),
        (lambda content: struct.pack("<i", 20240520) + content[4:], "no model file"),
        (lambda content: content[:4] + struct.pack("<i", 1) + content[8:], r"version 1; 3 \(float32\) and 5"),
        (lambda content: content[:28] + struct.pack("<i", 77) + content[32:], "padded to 77; 128 is what is expected"),
        (lambda content: content[:20] + struct.pack("<i", 5) + content[24:], "48 channels cannot be split into 5"),
        (lambda content: content[:-4], r"the weights take \d+ bytes with the header, the file has \d+"),
    ],
)
def test_what_is_no_model_file_is_refused(tmp_path: Path, odd: GPT2, change: Any, message: str) -> None:
    write_model(tmp_path / "m.bin", odd)
    content = (tmp_path / "m.bin").read_bytes()
    (tmp_path / "m.bin").write_bytes(change(content))
    with pytest.raises(ValueError, match=message):
        read_model(tmp_path / "m.bin")


class State:
    """Stands for an optimiser."""

    def __init__(self, state: dict[str, Any]) -> None:
        self._state = state

    def state_dict(self) -> dict[str, Any]:
        return self._state


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_checkpoint_is_read_as_it_was_written(tmp_path: Path, odd: GPT2, precision: str) -> None:
    odd.to(dtype=precision)
    state = {"steps": np.array(7), "0.m": np.arange(6, dtype=np.float32).reshape(2, 3), "0.dtype": np.array("float32")}
    progress = {"losses": [0.1, 1 / 3], "position": [0, 2], "random": {"state": {"state": 2**127 + 1}}}
    save_checkpoint(tmp_path / "new" / "c.npz", odd, State(state), progress)
    found = load_checkpoint(tmp_path / "new" / "c.npz")
    assert (found.config, found.dtype, found.progress) == (ODD, precision, progress)
    assert list(found.model) == list(odd.state_dict())
    for name, values in odd.state_dict().items():
        assert found.model[name].dtype == values.dtype
        np.testing.assert_array_equal(found.model[name], values)
    assert found.optimizer.keys() == state.keys()
    for name, values in state.items():
        np.testing.assert_array_equal(found.optimizer[name], values)


def test_a_checkpoint_that_fails_leaves_the_one_before(tmp_path: Path, odd: GPT2) -> None:
    path = tmp_path / "c.npz"
    save_checkpoint(path, odd, State({}), {"losses": [1.0]})
    with pytest.raises(TypeError, match="not JSON serializable"):
        save_checkpoint(path, odd, State({}), {"losses": object()})
    assert load_checkpoint(path).progress == {"losses": [1.0]}
    assert [file.name for file in tmp_path.iterdir()] == ["c.npz"]


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04 and then nothing", struct.pack("<256i", 20240326, *[0] * 255)])
def test_what_is_no_checkpoint_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c.npz").write_bytes(content)
    with pytest.raises(ValueError, match=r"c\.npz: no checkpoint of this example"):
        load_checkpoint(tmp_path / "c.npz")


def test_another_archive_is_no_checkpoint(tmp_path: Path) -> None:
    np.savez(tmp_path / "c.npz", a=np.zeros(3))
    with pytest.raises(ValueError, match="no checkpoint of this example"):
        load_checkpoint(tmp_path / "c.npz")


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ({"channels": 50, "num_heads": 12}, "50 channels cannot be split into 12 heads"),
        ({"num_layers": 0}, "num_layers is at least 1, not 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(sizes: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        GPT2Config(**sizes)


def test_the_sizes_of_the_124m_model() -> None:
    config = GPT2Config()
    assert (config.padded_vocab_size, config.num_parameters) == (50304, 124475904)
    assert TINY.num_parameters == sum(parameter.data.size for parameter in GPT2(TINY).parameters())
