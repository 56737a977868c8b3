"""GPT-2 out of generated layers, in the order in which llm.c runs its kernels."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

import generated.layers
from llmc2py import nn

#: The padded vocabulary is a multiple of this, so that the rows of the logits are aligned.
VOCABULARY_MULTIPLE = 128


@dataclasses.dataclass(frozen=True)
class GPT2Config:
    """Sizes of a GPT-2; the defaults are those of the 124M model. Raises ValueError for sizes that do not fit."""

    max_seq_len: int = 1024
    vocab_size: int = 50257
    num_layers: int = 12
    num_heads: int = 12
    channels: int = 768

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            if getattr(self, field.name) < 1:
                raise ValueError(f"{field.name} is at least 1, not {getattr(self, field.name)}")
        if self.channels % self.num_heads:
            raise ValueError(f"{self.channels} channels cannot be split into {self.num_heads} heads of one size")

    @property
    def padded_vocab_size(self) -> int:
        """The vocabulary with rows added that no token uses."""
        return -(-self.vocab_size // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @property
    def num_parameters(self) -> int:
        """The number of parameters, those of the padding included."""
        per_block = 12 * self.channels**2 + 13 * self.channels
        embeddings = (self.padded_vocab_size + self.max_seq_len) * self.channels
        return embeddings + self.num_layers * per_block + 2 * self.channels

    def flops_per_token(self, T: int) -> int:
        """Return the floating point operations of a training step per token, for rows of ``T`` tokens.

        Two for each parameter forward and four backward, and the same for the two products of attention, of which a
        causal mask leaves half.
        """
        return 6 * self.num_parameters + 6 * self.num_layers * self.channels * T


#: Two layers of 64 channels over bytes: it learns on the CPU.
TINY = GPT2Config(max_seq_len=32, vocab_size=256, num_layers=2, num_heads=2, channels=64)
GPT2_124M = GPT2Config()


class Block(nn.Module):
    """One transformer block behind its first normalisation.

    The second normalisation takes in the residual sum of attention. The sum of the MLP is left to whoever comes next:
    the first normalisation of the block behind it, or the last of the model.
    """

    def __init__(self, config: GPT2Config, layers: Any, implementation: str, recompute: bool) -> None:
        super().__init__()
        C = config.channels
        self.qkv = layers.Linear(C, 3 * C)
        self.attention = layers.Attention(config.num_heads, implementation=implementation)
        self.attproj = layers.Linear(C, C)
        self.ln2 = layers.FusedResidualLayerNorm(C)
        self.mlp = layers.MLP(C, 4 * C, recompute=recompute)

    def forward(self, residual: Any, normed: Any) -> tuple[nn.Tensor, nn.Tensor]:
        """Return the residual stream behind attention, and what the MLP adds to it."""
        attended = self.attproj(self.attention(self.qkv(normed)))
        residual, normed = self.ln2(residual, attended)
        return residual, self.mlp(normed)


class GPT2(nn.Module):
    """GPT-2 with the token embedding shared between its two ends.

    Parameters
    ----------
    config:
        The sizes.
    layers:
        The module of generated layers, by default this project's own.
    implementation:
        ``"llmc"`` or ``"cudnn"`` attention.
    recompute:
        Whether GELU's output is computed again in the backward pass instead of kept.
    accumulation:
        How many losses are added up for one step; each is divided by it.
    seed:
        Of the initial values.
    """

    def __init__(
        self,
        config: GPT2Config,
        *,
        layers: Any = generated.layers,
        implementation: str = "llmc",
        recompute: bool = False,
        accumulation: int = 1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.config = config
        self.accumulation = accumulation
        V, C = config.padded_vocab_size, config.channels
        self.encoder = layers.Encoder(V, C, config.max_seq_len)
        self.blocks = nn.ModuleList(Block(config, layers, implementation, recompute) for _ in range(config.num_layers))
        # Each but the first takes in the sum of the block before it; the one behind the last is the model's own.
        self.ln1 = layers.LayerNorm(C)
        self.norms = nn.ModuleList(layers.FusedResidualLayerNorm(C) for _ in range(config.num_layers))
        self.head = layers.Linear(C, V, bias=False)
        self.head.weight = self.encoder.wte
        self.classifier = layers.FusedClassifier(config.vocab_size, accumulation=accumulation, inplace=True)
        self._initialise(np.random.default_rng(seed))

    def forward(self, tokens: Any, targets: Any = None) -> nn.Tensor:
        """Return the mean loss (), or without targets the logits (B, T, padded vocabulary).

        ``tokens`` and ``targets`` are int32 arrays of (B, T). Raises IndexError for ids that are not in the
        vocabulary, ValueError for rows that are longer than ``max_seq_len``.
        """
        logits: nn.Tensor = self.head(self.hidden(tokens))
        if targets is None:
            return logits
        loss: nn.Tensor = self.classifier(logits, targets)
        return loss

    def hidden(self, tokens: Any) -> nn.Tensor:
        """Return what the head is given: (B, T, channels)."""
        residual = self.encoder(tokens)
        normed = self.ln1(residual)
        for block, norm in zip(self.blocks, self.norms, strict=True):
            residual, added = block(residual, normed)
            residual, normed = norm(residual, added)
        return normed

    def decay_groups(self, weight_decay: float) -> list[dict[str, Any]]:
        """Return the parameters in groups for AdamW: matrices with weight decay, vectors without."""
        parameters = self.parameters()
        return [
            {"params": [p for p in parameters if len(p.shape) > 1], "weight_decay": weight_decay},
            {"params": [p for p in parameters if len(p.shape) == 1], "weight_decay": 0.0},
        ]

    def llmc_tensors(self) -> list[tuple[str, list[nn.Parameter]]]:
        """Return llm.c's tensors in the order of its checkpoints: a name, and a parameter for each layer."""
        blocks = list(self.blocks)
        first = [self.ln1, *list(self.norms)[:-1]]
        last = self.norms[-1]
        return [
            ("wte", [self.encoder.wte]),
            ("wpe", [self.encoder.wpe]),
            ("ln1w", [norm.weight for norm in first]),
            ("ln1b", [norm.bias for norm in first]),
            ("qkvw", [block.qkv.weight for block in blocks]),
            ("qkvb", [block.qkv.bias for block in blocks]),
            ("attprojw", [block.attproj.weight for block in blocks]),
            ("attprojb", [block.attproj.bias for block in blocks]),
            ("ln2w", [block.ln2.weight for block in blocks]),
            ("ln2b", [block.ln2.bias for block in blocks]),
            ("fcw", [block.mlp.fcw for block in blocks]),
            ("fcb", [block.mlp.fcb for block in blocks]),
            ("fcprojw", [block.mlp.fcprojw for block in blocks]),
            ("fcprojb", [block.mlp.fcprojb for block in blocks]),
            ("lnfw", [last.weight]),
            ("lnfb", [last.bias]),
        ]

    def _initialise(self, random: np.random.Generator) -> None:
        residual = nn.residual_std(self.config.num_layers)
        for name, parameters in self.llmc_tensors():
            for parameter in parameters:
                if name.startswith("ln") and name.endswith("w"):
                    nn.fill(parameter, 1.0)
                elif len(parameter.shape) == 1:
                    nn.fill(parameter, 0.0)
                else:
                    nn.normal(parameter, random, residual if name in ("attprojw", "fcprojw") else nn.GPT2_STD)
