"""Checkpoints: llm.c's model files, read and written, and our own, from which training goes on to the same losses."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

from examples.gpt2.model import GPT2, GPT2Config

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
#: The first number of llm.c's model files, and the number of int32 before the weights.
MAGIC = 20240326
HEADER = 256
#: The dtype of the weights by the version of the file.
VERSIONS = {3: np.dtype(np.float32), 5: BFLOAT16}
#: The version of our own checkpoints.
FORMAT = 1
_META = "meta"

Array = np.ndarray[Any, Any]


def write_model(path: str | Path, model: GPT2) -> None:
    """Write a model file of llm.c: version 3 for a float32 model, 5 for a bfloat16 one.

    Raises TypeError for a model in another precision.
    """
    config = model.config
    dtype = model.encoder.wte.dtype
    version = next((number for number, known in VERSIONS.items() if known == dtype), None)
    if version is None:
        raise TypeError(f"a model file holds float32 or bfloat16, not {dtype}; convert the model with .to(dtype=)")
    header = np.zeros(HEADER, "<i4")
    header[:8] = (
        MAGIC,
        version,
        config.max_seq_len,
        config.vocab_size,
        config.num_layers,
        config.num_heads,
        config.channels,
        config.padded_vocab_size,
    )
    with _replaced(Path(path)) as file:
        file.write(header.tobytes())
        for _, parameters in model.llmc_tensors():
            for parameter in parameters:
                file.write(parameter.numpy().tobytes())


def read_config(path: str | Path) -> tuple[GPT2Config, np.dtype[Any]]:
    """Return the sizes in the header of a model file, and the dtype of its weights.

    Raises ValueError where it is none, or its version is not known.
    """
    header = np.fromfile(path, "<i4", HEADER)
    if header.size < HEADER or header[0] != MAGIC:
        raise ValueError(f"{path}: no model file of llm.c (it begins with {MAGIC} in a header of {HEADER * 4} bytes)")
    version, T, V, layers, heads, channels, padded = (int(value) for value in header[1:8])
    if version not in VERSIONS:
        raise ValueError(f"{path}: model file of version {version}; 3 (float32) and 5 (bfloat16) are known")
    config = GPT2Config(T, V, layers, heads, channels)
    if config.padded_vocab_size != padded:
        raise ValueError(
            f"{path}: a vocabulary of {V} is padded to {padded}; {config.padded_vocab_size} is what is expected"
        )
    return config, VERSIONS[version]


def read_model(path: str | Path, **options: Any) -> GPT2:
    """Return the model of a model file of llm.c, on the CPU; ``options`` are those of `GPT2`.

    Raises ValueError where the file is none, or its length is not that of its weights.
    """
    config, dtype = read_config(path)
    model = GPT2(config, **options).to(dtype=dtype)
    expected = HEADER * 4 + config.num_parameters * dtype.itemsize
    size = Path(path).stat().st_size
    if size != expected:
        raise ValueError(f"{path}: the weights take {expected} bytes with the header, the file has {size}")
    with open(path, "rb") as file:
        file.seek(HEADER * 4)
        for _, parameters in model.llmc_tensors():
            for parameter in parameters:
                content = file.read(parameter.data.size * dtype.itemsize)
                parameter.data[...] = np.frombuffer(content, dtype).reshape(parameter.shape)
    return model


class Checkpoint(NamedTuple):
    """What training goes on from: what the run was made with, and where it was."""

    config: GPT2Config
    #: The precision of the parameters.
    dtype: str
    model: dict[str, Array]
    optimizer: dict[str, Array]
    #: Anything that JSON holds: the position in the data, random numbers, the losses so far, options.
    progress: dict[str, Any]


def save_checkpoint(path: str | Path, model: GPT2, optimizer: Any, progress: Mapping[str, Any]) -> None:
    """Write a checkpoint (``.npz``); a file that is there is replaced once the new one is complete."""
    arrays = {f"model/{name}": array for name, array in model.state_dict().items()}
    arrays |= {f"optimizer/{name}": array for name, array in optimizer.state_dict().items()}
    meta = {
        "format": FORMAT,
        "config": vars(model.config),
        "dtype": model.encoder.wte.dtype.name,
        "progress": dict(progress),
    }
    # The file format knows no bfloat16: such arrays are stored by their bits.
    stored = {name: array.view(np.uint16) if array.dtype == BFLOAT16 else array for name, array in arrays.items()}
    stored[_META] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    with _replaced(Path(path)) as file:
        np.savez(file, **stored)


def load_checkpoint(path: str | Path) -> Checkpoint:
    """Read a checkpoint. Raises ValueError where the file is none."""
    try:
        with open(path, "rb") as content, np.load(content, allow_pickle=False) as file:
            arrays = dict(file)
        meta = json.loads(arrays.pop(_META).tobytes())
    except FileNotFoundError:
        raise
    except (OSError, ValueError, TypeError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"{path}: no checkpoint of this example ({error})") from error
    if meta["format"] != FORMAT:
        raise ValueError(f"{path}: checkpoint of format {meta['format']}; format {FORMAT} is known")
    model = _below("model/", arrays)
    if meta["dtype"] == BFLOAT16.name:
        model = {name: array.view(BFLOAT16) for name, array in model.items()}
    config = GPT2Config(**meta["config"])
    return Checkpoint(config, meta["dtype"], model, _below("optimizer/", arrays), meta["progress"])


def _below(prefix: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    return {name.removeprefix(prefix): array for name, array in arrays.items() if name.startswith(prefix)}


@contextlib.contextmanager
def _replaced(path: Path) -> Iterator[BinaryIO]:
    """Open a new file beside ``path`` for writing; it takes the place of ``path`` when all went well."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with open(draft, "wb") as file:
            yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)
