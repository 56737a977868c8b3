"""Token files as llm.c has them, and batches out of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

#: The first number of a token file, the version with tokens of 16 bits, and the number of int32 before the tokens.
MAGIC = 20240520
VERSION = 1
HEADER = 256

Tokens = npt.NDArray[np.uint16]
Batch = npt.NDArray[np.int32]


def write_tokens(path: str | Path, tokens: npt.ArrayLike) -> None:
    """Write a token file: a header of 256 int32 (magic, version, number of tokens), then the tokens as uint16.

    Raises ValueError for ids that do not fit into 16 bits.
    """
    values = np.asarray(tokens)
    if values.size and not (values.min() >= 0 and values.max() < 2**16):
        raise ValueError(f"token ids are from 0 to {2**16 - 1}; got {values.min()} to {values.max()}")
    header = np.zeros(HEADER, "<i4")
    header[:3] = MAGIC, VERSION, values.size
    Path(path).write_bytes(header.tobytes() + values.astype("<u2").tobytes())


def read_tokens(path: str | Path) -> Tokens:
    """Return the tokens of a token file, mapped into memory. Raises ValueError where it is none, or is cut short."""
    size = Path(path).stat().st_size
    header = np.fromfile(path, "<i4", HEADER)
    if header.size < HEADER or header[0] != MAGIC:
        raise ValueError(f"{path}: no token file (it begins with {MAGIC} in a header of {HEADER * 4} bytes)")
    if header[1] != VERSION:
        raise ValueError(f"{path}: token file of version {header[1]}; version {VERSION} (16 bits a token) is known")
    count = int(header[2])
    if size != HEADER * 4 + 2 * count:
        raise ValueError(f"{path}: {count} tokens take {HEADER * 4 + 2 * count} bytes, the file has {size}")
    if not count:
        return np.empty(0, np.uint16)
    return np.memmap(path, "<u2", "r", HEADER * 4, (count,))


class TokenLoader:
    """Batches of ``B`` rows of ``T`` tokens, in the order of the files, from the beginning again after the last.

    Parameters
    ----------
    shards:
        The tokens of each file. What is left over at the end of a file is not used.
    B, T:
        Rows and tokens of a batch. A batch takes ``B * T + 1`` tokens: the targets are the inputs moved on by one.
    """

    def __init__(self, shards: Sequence[Tokens], B: int, T: int) -> None:
        if B < 1 or T < 1:
            raise ValueError(f"a batch has at least one row of one token, not {B} x {T}")
        self.B, self.T = B, T
        self._shards = [shard for shard in shards if shard.size > B * T]
        if not self._shards:
            longest = max((shard.size for shard in shards), default=0)
            raise ValueError(
                f"a batch of {B} x {T} takes {B * T + 1} tokens, the longest file has {longest}: make batches smaller"
            )
        #: Which file the next batch is from, and which batch of it that is; set it to go on from there.
        self.position = (0, 0)

    @property
    def batches(self) -> int:
        """The number of batches until the first comes again."""
        return sum((shard.size - 1) // (self.B * self.T) for shard in self._shards)

    def next_batch(self) -> tuple[Batch, Batch]:
        """Return inputs and targets, each int32 of (B, T), and move on."""
        shard, index = self.position
        size = self.B * self.T
        tokens = self._shards[shard]
        window = np.array(tokens[index * size : (index + 1) * size + 1], np.int32)
        if (index + 2) * size + 1 <= tokens.size:
            self.position = shard, index + 1
        else:
            self.position = (shard + 1) % len(self._shards), 0
        return window[:-1].reshape(self.B, self.T), window[1:].reshape(self.B, self.T)
