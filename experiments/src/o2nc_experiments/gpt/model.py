"""A GPT of the usual kind: rotary positions, RMSNorm without gains, no biases, head apart from the embedding.

Every parameter is a matrix, so there is one parameter group: weight decay acts on all of them. 8 layers of width 512
with 8,192 tokens are 33.6 million parameters.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, rms_norm, scaled_dot_product_attention

SCALE = 0.5  # a weight of standard deviation SCALE/√width: 0.022 at width 512


class Block(nn.Module):
    """Attention, then two layers of 4 times the width; both read the normalised stream and add to it.

    Queries, keys and values are matrices of their own: Muon treats each as one.
    """

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width, bias=False) for _ in range(4))
        self.up = nn.Linear(width, 4 * width, bias=False)
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Return the stream after this block."""
        x = x + self.attend(rms_norm(x, x.shape[-1:]), rotation)
        return x + self.down(gelu(self.up(rms_norm(x, x.shape[-1:]))))

    def attend(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Return what the positions take from those before them."""
        batch, length, width = x.shape
        q, k, v = (
            layer(x).view(batch, length, self.heads, -1).transpose(1, 2)
            for layer in (self.query, self.key, self.value)
        )
        taken = scaled_dot_product_attention(rotate(q, rotation), rotate(k, rotation), v, is_causal=True)
        return self.out(taken.transpose(1, 2).reshape(batch, length, width))


def rotate(x: Tensor, rotation: Tensor) -> Tensor:
    """Turn the first half of a head's coordinates against the second, by angles that grow with the position."""
    cosine, sine = rotation
    a, b = x.float().chunk(2, dim=-1)
    return torch.cat((a * cosine - b * sine, a * sine + b * cosine), dim=-1).to(x.dtype)


def rotations(context: int, head: int) -> Tensor:
    """Return cosines and sines of position × frequency, of shape (2, context, head/2)."""
    frequencies = 10_000.0 ** -(torch.arange(head // 2, dtype=torch.float64) * 2 / head)
    angles = torch.arange(context, dtype=torch.float64)[:, None] * frequencies
    return torch.stack((angles.cos(), angles.sin())).float()


class GPT(nn.Module):
    """The model; `begin_` gives it its weights.

    Args:
        layers: number of blocks.
        width: of the stream, a multiple of twice the heads.
        heads: per block.
        context: tokens that it reads at once.
        vocabulary: number of different tokens.
    """

    def __init__(self, layers: int, width: int, heads: int, context: int, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)
        self.register_buffer("rotation", rotations(context, width // heads), persistent=False)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the mean loss in nats of every token but the first, given those before it."""
        x = self.embedding(tokens[:, :-1])
        for block in self.blocks:
            x = block(x, self.rotation)
        logits = self.head(rms_norm(x, x.shape[-1:]))
        return cross_entropy(logits.float().flatten(0, 1), tokens[:, 1:].flatten())

    @torch.no_grad()
    def begin_(self, seed: int) -> None:
        """Draw all weights anew, in place, the same on every device."""
        generator = torch.Generator().manual_seed(seed)
        deeper = 1 / math.sqrt(2 * len(self.blocks))  # what adds to the stream: all of it together keeps its size
        for name, p in self.named_parameters():
            deviation = 0.02 if name.startswith("embedding") else SCALE / math.sqrt(p.shape[1])
            deviation *= deeper if name.endswith(("out.weight", "down.weight")) else 1.0
            p.copy_(torch.empty(p.shape).normal_(0.0, deviation, generator=generator))

    def hidden(self) -> list[nn.Parameter]:
        """Return the matrices of the blocks, those that Muon takes."""
        return list(self.blocks.parameters())

    def flops(self, context: int) -> int:
        """Return the floating point operations of training on one token, by the usual count.

        6 per weight of a matrix product, and 12 per layer, width and position for attention, the whole square.
        """
        products = sum(p.numel() for p in self.parameters()) - self.embedding.weight.numel()
        return 6 * products + 12 * len(self.blocks) * self.head.in_features * context
