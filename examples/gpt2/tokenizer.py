"""Text to token ids and back: bytes as they are, or the table of a tokenizer file for ids that come from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt

#: The first number of llm.c's tokenizer files, and the number of int32 before the table.
TOKENIZER_MAGIC = 20240328
HEADER = 256


def printable(text: str) -> str:
    """Return a text without characters that could steer a terminal: a model that knows little writes any bytes."""
    return "".join(c if c.isprintable() or c == "\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


class Decoder(Protocol):
    """What turns token ids into text."""

    def decode(self, ids: npt.ArrayLike) -> str:
        """Return the text of token ids; bytes that are no UTF-8 show as the replacement character."""


class ByteTokenizer:
    """Every byte of the UTF-8 text is a token."""

    size = 256

    def encode(self, text: str) -> npt.NDArray[np.uint16]:
        """Return the token ids of a text."""
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.uint16)

    def decode(self, ids: npt.ArrayLike) -> str:
        """Return the text of token ids. Raises ValueError for an id that is no byte."""
        values = np.asarray(ids, np.int64).reshape(-1)
        if values.size and not (values.min() >= 0 and values.max() < self.size):
            raise ValueError(f"token ids of bytes are below {self.size}; got {values.min()} to {values.max()}")
        return values.astype(np.uint8).tobytes().decode("utf-8", errors="replace")


class TableTokenizer:
    """The tokens of a llm.c tokenizer file (``gpt2_tokenizer.bin``). It decodes only: merges are not in the file."""

    def __init__(self, tokens: list[bytes], end_of_text: int | None = None) -> None:
        self.tokens = tokens
        self.size = len(tokens)
        self.end_of_text = end_of_text

    @classmethod
    def read(cls, path: str | Path) -> TableTokenizer:
        """Read a tokenizer file. Raises ValueError where it is none, or is cut short."""
        content = Path(path).read_bytes()
        header = np.frombuffer(content[: HEADER * 4], np.int32) if len(content) >= HEADER * 4 else np.zeros(1, np.int32)
        if header[0] != TOKENIZER_MAGIC:
            raise ValueError(f"{path}: no tokenizer file (it begins with {TOKENIZER_MAGIC})")
        version, count, end = (int(value) for value in header[1:4])
        if version not in (1, 2):
            raise ValueError(f"{path}: tokenizer version {version}; 1 and 2 are known")
        tokens, place = [], HEADER * 4
        for number in range(count):
            if place >= len(content) or place + 1 + content[place] > len(content):
                raise ValueError(f"{path}: cut short at token {number} of {count}")
            length = content[place]
            tokens.append(content[place + 1 : place + 1 + length])
            place += 1 + length
        return cls(tokens, end if version == 2 else None)

    def decode(self, ids: npt.ArrayLike) -> str:
        """Return the text of token ids. Raises ValueError for an id that is not in the table."""
        values = np.asarray(ids, np.int64).reshape(-1)
        if values.size and not (values.min() >= 0 and values.max() < self.size):
            raise ValueError(f"the table has {self.size} tokens; got ids {values.min()} to {values.max()}")
        return b"".join(self.tokens[value] for value in values).decode("utf-8", errors="replace")
