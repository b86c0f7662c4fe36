"""The GPT of `o2nc_experiments.gpt`: rotary positions, RMSNorm without gains, no biases, a head of its own.

Every parameter is a matrix, so one parameter group is enough: weight decay acts on all of them. 8 layers of width 512
with 8,192 tokens have 33.6 million parameters.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, rms_norm, scaled_dot_product_attention

SCALE = 0.5  # weights start with standard deviation SCALE/√width: 0.022 at width 512


class Block(nn.Module):
    """Attention, then an MLP of 4 times the width; query, key and value are separate matrices, as Muon wants them."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Return the residual stream after this block."""
        x = x + self.attend(rms_norm(x, x.shape[-1:]), rotation)
        return x + self.down(gelu(self.up(rms_norm(x, x.shape[-1:]))))

    def attend(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Return causal self-attention."""
        batch, length, width = x.shape
        q, k, v = (
            layer(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        mixed = scaled_dot_product_attention(rotate(q, rotation), rotate(k, rotation), v, is_causal=True)
        return self.out(mixed.transpose(1, 2).reshape(batch, length, width))


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Rotate pairs of a head's coordinates by angles that grow with the position."""
    cosine, sine = rotation
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cosine - b * sine, a * sine + b * cosine), dim=-1).to(x.dtype)


class Head(nn.Linear):
    """The last matrix, and the loss."""

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:  # type: ignore[override]
        """Return the mean loss in nats of predicting every token but the first."""
        logits = super().forward(rms_norm(x, x.shape[-1:]))
        return cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())


class GPT(nn.Module):
    """The model; call `init_weights_` before training.

    Args:
        layers: number of blocks.
        width: of the residual stream, a multiple of twice the heads.
        heads: per block.
        context: tokens of a row.
        vocabulary: number of different tokens.
    """

    def __init__(self, layers: int, width: int, heads: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = Head(width, vocabulary, bias=False)
        half = width // heads // 2
        frequencies = 10_000.0 ** -(torch.arange(half, dtype=torch.float64) / half)
        angles = torch.arange(context, dtype=torch.float64)[:, None] * frequencies
        self.register_buffer("rotation", torch.stack((angles.cos(), angles.sin())).float(), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean loss in nats of predicting every token but the first from those before it."""
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = block(x, self.rotation)
        loss: Tensor = self.head(x, tokens)
        return loss

    def compile_parts(self) -> None:
        """Compile blocks and head, not the whole: the blocks are one piece of code, which takes seconds."""
        for part in (*self.blocks, self.head):
            part.compile(dynamic=False)

    @torch.no_grad()
    def init_weights_(self, seed: int) -> None:
        """Draw all weights in place; a seed gives the same weights on every device."""
        generator = torch.Generator().manual_seed(seed)
        residual = 1 / math.sqrt(2 * len(self.blocks))  # keeps the size of the stream independent of the depth
        for name, p in self.named_parameters():
            std = 0.02 if name.startswith("embedding") else SCALE / math.sqrt(p.shape[1])
            std *= residual if name.endswith(("out.weight", "down.weight")) else 1.0
            p.copy_(torch.empty(p.shape).normal_(0.0, std, generator=generator))
