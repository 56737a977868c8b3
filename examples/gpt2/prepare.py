"""From command line options to a trainer: the model on its device, the data, the schedule."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from examples.gpt2.checkpoint import Checkpoint, load_checkpoint, read_model
from examples.gpt2.data import TokenLoader, Tokens, read_tokens
from examples.gpt2.model import GPT2, GPT2_124M, TINY, GPT2Config
from examples.gpt2.tokenizer import ByteTokenizer
from examples.gpt2.training import Schedule, Trainer
from llmc2py.runtime.dtypes import PRECISIONS

TEXT = Path(__file__).resolve().parent / "text" / "harbour.txt"
NAMED = {"tiny": TINY, "124M": GPT2_124M}
DTYPES = {"fp32": "float32", "bf16": "bfloat16"}
#: The options that replace sizes of a named model.
SIZES = {"layers": "num_layers", "heads": "num_heads", "channels": "channels", "context": "max_seq_len"}
#: The part of a text file that is kept back to validate on.
VALIDATION = 0.1


def prepare(context: click.Context, options: dict[str, Any]) -> tuple[Trainer, TokenLoader | None]:
    """Return what the options ask for. Raises ValueError, TypeError or ImportError that say what is wrong."""
    checkpoint = load_checkpoint(options["resume"]) if options["resume"] else None
    schedule = schedule_of(context, options, checkpoint)
    model = model_of(context, options, schedule, checkpoint)
    if schedule.sequence > model.config.max_seq_len:
        hint = f"; --context {schedule.sequence} makes one that does" if is_new(options) else ""
        raise ValueError(
            f"--sequence {schedule.sequence}: the model takes up to {model.config.max_seq_len} tokens{hint}"
        )
    train_tokens, val_tokens = load_tokens(options["data"], options["val_data"])
    check_vocabulary([*train_tokens, *val_tokens], model.config)
    loader = TokenLoader(train_tokens, schedule.batch, schedule.sequence)
    enough = any(tokens.size > schedule.batch * schedule.sequence for tokens in val_tokens)
    val_loader = TokenLoader(val_tokens, schedule.batch, schedule.sequence) if enough else None
    if options["graph"] and on_cpu(options["device"]):
        raise ValueError("--graph needs --device cuda")
    trainer = Trainer(model, loader, schedule, graph=options["graph"])
    if checkpoint is not None:
        trainer.resume(checkpoint)
        if len(trainer.losses) >= schedule.steps:
            raise ValueError(
                f"--steps {schedule.steps}: the checkpoint was written after {len(trainer.losses)} already"
            )
    return trainer, val_loader


def schedule_of(context: click.Context, options: dict[str, Any], checkpoint: Checkpoint | None) -> Schedule:
    """Return the schedule: that of the checkpoint, with what is given on the command line in its place."""
    names = [field.name for field in dataclasses.fields(Schedule)]
    if checkpoint is None:
        return Schedule(**{name: options[name] for name in names})
    given = [name for name in names if is_given(context, name)]
    return Schedule(**(checkpoint.progress["schedule"] | {name: options[name] for name in given}))


def model_of(
    context: click.Context, options: dict[str, Any], schedule: Schedule, checkpoint: Checkpoint | None
) -> GPT2:
    """Return the model on its device; its weights are still to be loaded where a checkpoint is given."""
    dtype = DTYPES[options["dtype"]] if checkpoint is None else checkpoint.dtype
    if options["attention"] == "cudnn" and (on_cpu(options["device"]) or dtype == "float32"):
        raise ValueError("--attention cudnn needs --device cuda and --dtype bf16")
    details = {
        "implementation": options["attention"],
        "recompute": options["recompute"],
        "accumulation": schedule.accumulation,
    }
    if checkpoint is not None:
        for name in ("model_name", "dtype", *SIZES):
            if is_given(context, name):
                raise ValueError(f"--{name.removesuffix('_name')} and --resume: the checkpoint says which it is")
        model = GPT2(checkpoint.config, **details)
    elif is_new(options):
        model = GPT2(config_of(options), seed=schedule.seed, **details)
    elif Path(options["model_name"]).is_file():
        for name in SIZES:
            if is_given(context, name):
                raise ValueError(f"--{name} and --model {options['model_name']}: the file says which it is")
        model = read_model(options["model_name"], **details)
    else:
        raise ValueError(f"--model {options['model_name']}: neither tiny nor 124M, nor a file")
    return model.to(device_of(options["device"]), dtype=PRECISIONS[dtype])


def on_cpu(device: str) -> bool:
    """Whether the name of a device is one of the CPU."""
    return device.partition(":")[0] == "cpu"


def is_new(options: dict[str, Any]) -> bool:
    """Whether the options ask for a model with new weights."""
    return options["resume"] is None and options["model_name"] in NAMED


def config_of(options: dict[str, Any]) -> GPT2Config:
    """Return the sizes of a new model: the named ones, and what is given in their place.

    Raises ValueError where channels cannot be split into heads.
    """
    given = {field: options[name] for name, field in SIZES.items() if options[name] is not None}
    return dataclasses.replace(NAMED[options["model_name"]], **given)


def device_of(name: str) -> str:
    """Return the name of a device that is there. Raises ValueError for any other."""
    kind, _, number = name.partition(":")
    if kind not in ("cpu", "cuda") or (number and not number.isdecimal()):
        raise ValueError(f"--device {name}: it is cpu, cuda or cuda:N")
    if kind == "cuda":
        try:
            import cupy

            count = cupy.cuda.runtime.getDeviceCount()
        except (ImportError, RuntimeError) as error:
            raise ValueError(f"--device {name}: no CUDA device ({error})") from error
        if int(number or 0) >= count:
            raise ValueError(f"--device {name}: there are {count} CUDA devices, from cuda:0")
    return name


def is_given(context: click.Context, name: str) -> bool:
    """Whether an option is on the command line."""
    return context.get_parameter_source(name) is ParameterSource.COMMANDLINE


def load_tokens(data: tuple[Path, ...], val_data: tuple[Path, ...]) -> tuple[list[Tokens], list[Tokens]]:
    """Return the tokens of each file to learn and to validate on; of texts, the last tenth is validated on."""
    validation = [read_file(path) for path in val_data]
    training = []
    for path in data or (TEXT,):
        tokens = read_file(path)
        if path.suffix != ".bin" and not val_data:
            kept = int(tokens.size * (1 - VALIDATION))
            validation.append(tokens[kept:])
            tokens = tokens[:kept]
        training.append(tokens)
    return training, validation


def read_file(path: Path) -> Tokens:
    """Return the tokens of a token file (.bin) or of a text."""
    return read_tokens(path) if path.suffix == ".bin" else ByteTokenizer().encode(path.read_text(encoding="utf-8"))


def check_vocabulary(files: list[Tokens], config: GPT2Config) -> None:
    """Raise ValueError for tokens that the model does not know."""
    highest = max((int(tokens.max()) for tokens in files if tokens.size), default=0)
    if highest >= config.vocab_size:
        raise ValueError(
            f"the data has token {highest}, the model's vocabulary has {config.vocab_size}: "
            f"choose a --model for this data, such as 124M for GPT-2's tokens"
        )
