"""Let a trained GPT-2 write; `python examples/gpt2/sample.py --help` shows how."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from examples.gpt2.checkpoint import load_checkpoint, read_model
from examples.gpt2.model import GPT2
from examples.gpt2.tokenizer import ByteTokenizer, Decoder, TableTokenizer, printable
from llmc2py import nn
from llmc2py.runtime import ToolMissingError, array_module
from llmc2py.runtime.dtypes import PRECISIONS

#: Contexts are padded to a multiple of this, so that few lengths of rows are prepared.
LENGTHS = 32


def generate(
    model: GPT2,
    prompt: npt.ArrayLike,
    count: int,
    random: np.random.Generator,
    temperature: float = 0.8,
    top_k: int | None = None,
) -> npt.NDArray[np.int32]:
    """Return the prompt with ``count`` tokens behind it, each drawn from the model's distribution.

    ``temperature`` 0 takes the likeliest token; ``top_k`` leaves only that many to choose from. Raises ValueError for
    an empty prompt, IndexError for one that is not in the vocabulary.
    """
    ids = [int(token) for token in np.asarray(prompt).reshape(-1)]
    if not ids:
        raise ValueError("a prompt has at least one token")
    with nn.no_grad():
        for _ in range(count):
            ids.append(draw(next_logits(model, ids), random, temperature, top_k))
    return np.array(ids, np.int32)


def next_logits(model: GPT2, ids: list[int]) -> npt.NDArray[np.float64]:
    """Return the logits (vocabulary,) of the token behind ``ids``; of these, as many as the model takes are seen."""
    longest = model.config.max_seq_len
    context = ids[-longest:]
    length = min(longest, -(-len(context) // LENGTHS) * LENGTHS)
    # What is behind the last token is not seen by it: attention is causal.
    tokens = np.zeros((1, length), np.int32)
    tokens[0, : len(context)] = context
    hidden = model.hidden(array_module(model.encoder.wte.data).asarray(tokens)).data
    row = hidden[:, len(context) - 1 : len(context)].copy()
    logits = model.head(row).numpy().astype(np.float64).reshape(-1)
    return logits[: model.config.vocab_size]


def draw(logits: npt.NDArray[np.float64], random: np.random.Generator, temperature: float, top_k: int | None) -> int:
    """Return a token drawn from logits."""
    if temperature == 0:
        return int(logits.argmax())
    scaled = logits / temperature
    if top_k is not None and top_k < scaled.size:
        scaled[scaled < np.partition(scaled, -top_k)[-top_k]] = -np.inf
    weights = np.exp(scaled - scaled.max())
    return int(random.choice(scaled.size, p=weights / weights.sum()))


def load(path: Path, device: str) -> GPT2:
    """Return the model of a checkpoint or of a model file of llm.c, on a device."""
    if path.suffix == ".bin":
        return read_model(path).to(device)
    checkpoint = load_checkpoint(path)
    model = GPT2(checkpoint.config).to(device, dtype=PRECISIONS[checkpoint.dtype])
    model.load_state_dict(checkpoint.model)
    return model


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("model_file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--prompt", default="Mara ", show_default=True, help="Text to begin with; its bytes are the tokens.")
@click.option("--prompt-ids", help="Token ids to begin with, with commas between them, in place of --prompt.")
@click.option("--tokenizer", type=click.Path(exists=True, dir_okay=False, path_type=Path),
              help="A tokenizer file of llm.c (gpt2_tokenizer.bin) that turns ids into text.")  # fmt: skip
@click.option("--tokens", type=click.IntRange(min=1), default=200, show_default=True, help="How many to write.")
@click.option("--temperature", type=click.FloatRange(min=0), default=0.8, show_default=True,
              help="0 always takes the likeliest token.")  # fmt: skip
@click.option("--top-k", type=click.IntRange(min=1), help="Choose among this many tokens.  [default: all]")
@click.option("--seed", type=int, default=0, show_default=True)
@click.option("--device", default="cpu", show_default=True, metavar="cpu|cuda|cuda:N")
def main(model_file: Path, prompt: str, prompt_ids: str | None, tokenizer: Path | None, **options: Any) -> None:
    """Continue a text with the model in MODEL_FILE: a checkpoint (.npz) or a model file of llm.c (.bin)."""
    try:
        model = load(model_file, options["device"])
        decoder: Decoder = ByteTokenizer() if tokenizer is None else TableTokenizer.read(tokenizer)
        ids = starting_ids(model, prompt, prompt_ids, tokenizer)
        random = np.random.default_rng(options["seed"])
        written = generate(model, ids, options["tokens"], random, options["temperature"], options["top_k"])
        click.echo(printable(decoder.decode(written)))
    except (ValueError, TypeError, IndexError, ImportError, ToolMissingError) as error:
        raise click.UsageError(str(error)) from error


def starting_ids(model: GPT2, prompt: str, prompt_ids: str | None, tokenizer: Path | None) -> npt.ArrayLike:
    """Return the ids to begin with. Raises ValueError where a model of other tokens than bytes is given a text."""
    if prompt_ids is not None:
        return [int(part) for part in prompt_ids.split(",")]
    if model.config.vocab_size != ByteTokenizer.size:
        if tokenizer is None:
            raise ValueError("the tokens of this model are no bytes: give --tokenizer, and --prompt-ids to begin with")
        end = TableTokenizer.read(tokenizer).end_of_text
        if end is None:
            raise ValueError("the tokenizer file does not say how a text begins: give --prompt-ids")
        return [end]
    return ByteTokenizer().encode(prompt)


if __name__ == "__main__":
    main()
