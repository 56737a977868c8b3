"""Token files, batches, tokenizers."""

from __future__ import annotations

import struct
from pathlib import Path

import numpy as np
import pytest

from examples.gpt2.data import TokenLoader, read_tokens, write_tokens
from examples.gpt2.tokenizer import ByteTokenizer, TableTokenizer, printable


def header(*numbers: int) -> bytes:
    return struct.pack("<256i", *numbers, *[0] * (256 - len(numbers)))


def test_a_token_file_has_the_layout_of_llm_c(tmp_path: Path) -> None:
    write_tokens(tmp_path / "a.bin", [1, 50256, 65535])
    assert (tmp_path / "a.bin").read_bytes() == header(20240520, 1, 3) + struct.pack("<3H", 1, 50256, 65535)
    tokens = read_tokens(tmp_path / "a.bin")
    assert tokens.dtype == np.uint16
    assert tokens.tolist() == [1, 50256, 65535]


def test_a_token_file_may_be_empty(tmp_path: Path) -> None:
    write_tokens(tmp_path / "a.bin", [])
    assert read_tokens(tmp_path / "a.bin").size == 0


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "no token file"),
        (header(20240326, 1, 0), "no token file"),
        (header(20240520, 2, 0), "version 2; version 1"),
        (header(20240520, 1, 5) + b"12", "5 tokens take 1034 bytes, the file has 1026"),
    ],
)
def test_what_is_no_token_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "a.bin").write_bytes(content)
    with pytest.raises(ValueError, match=rf"a\.bin: .*{message}"):
        read_tokens(tmp_path / "a.bin")


@pytest.mark.parametrize("ids", [[-1], [65536]])
def test_ids_that_do_not_fit_are_refused(tmp_path: Path, ids: list[int]) -> None:
    with pytest.raises(ValueError, match="from 0 to 65535"):
        write_tokens(tmp_path / "a.bin", ids)
    assert not (tmp_path / "a.bin").exists()


def test_batches_follow_each_other_through_all_files() -> None:
    loader = TokenLoader([np.arange(14, dtype=np.uint16), np.arange(100, 107, dtype=np.uint16)], 2, 3)
    starts = []
    for _ in range(4):
        tokens, targets = loader.next_batch()
        assert tokens.dtype == targets.dtype == np.int32
        assert tokens.shape == (2, 3)
        np.testing.assert_array_equal(targets, tokens + 1)
        starts.append(int(tokens[0, 0]))
    assert starts == [0, 6, 100, 0]
    assert loader.batches == 3


def test_a_loader_goes_on_from_a_position() -> None:
    loader, other = (TokenLoader([np.arange(50, dtype=np.uint16)], 2, 3) for _ in range(2))
    for _ in range(5):
        loader.next_batch()
    other.position = loader.position
    for _ in range(9):
        np.testing.assert_array_equal(other.next_batch()[0], loader.next_batch()[0])


def test_a_file_of_exactly_one_batch_is_enough_and_one_token_less_is_not() -> None:
    loader = TokenLoader([np.arange(7, dtype=np.uint16)], 2, 3)
    assert [loader.next_batch()[1][-1, -1] for _ in range(2)] == [6, 6]
    with pytest.raises(ValueError, match="takes 7 tokens, the longest file has 6"):
        TokenLoader([np.arange(6, dtype=np.uint16)], 2, 3)
    with pytest.raises(ValueError, match="at least one row of one token, not 0 x 3"):
        TokenLoader([np.arange(6, dtype=np.uint16)], 0, 3)


def test_bytes_go_through_the_tokenizer_and_back() -> None:
    tokenizer = ByteTokenizer()
    text = "Møre, 3 €\n"
    ids = tokenizer.encode(text)
    assert ids.max() < tokenizer.size
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([0xFF, 65]) == "\N{REPLACEMENT CHARACTER}A"
    with pytest.raises(ValueError, match="below 256; got 65 to 256"):
        tokenizer.decode([65, 256])


def test_what_steers_a_terminal_is_not_printed() -> None:
    assert printable("a\x1b[2J\tø\n\x00") == "a\ufffd[2J\ufffdø\n\ufffd"


def test_a_tokenizer_file_decodes(tmp_path: Path) -> None:
    tokens = [b"a", b" the", "ø".encode()[:1], "ø".encode()[1:], b""]
    table = b"".join(bytes([len(token)]) + token for token in tokens)
    (tmp_path / "t.bin").write_bytes(header(20240328, 2, len(tokens), 4) + table)
    tokenizer = TableTokenizer.read(tmp_path / "t.bin")
    assert (tokenizer.size, tokenizer.end_of_text) == (5, 4)
    assert tokenizer.decode([0, 1, 2, 3, 4]) == "a theø"
    with pytest.raises(ValueError, match="has 5 tokens; got ids 5 to 5"):
        tokenizer.decode([5])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"abc", "no tokenizer file"),
        (header(20240520, 1, 0), "no tokenizer file"),
        (header(20240328, 9, 0), "version 9"),
        (header(20240328, 1, 2) + b"\x01a\x05bc", "cut short at token 1 of 2"),
        (header(20240328, 1, 2) + b"\x01a", "cut short at token 1 of 2"),
    ],
)
def test_what_is_no_tokenizer_file_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "t.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        TableTokenizer.read(tmp_path / "t.bin")
