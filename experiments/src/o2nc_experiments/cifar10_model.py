"""ResNet-18 for images of 32 × 32 (He et al. 2016): a 3 × 3 stem and no max-pooling, as is usual for CIFAR-10."""

import torch
from torch import Tensor, nn
from torch.nn.functional import relu


class Block(nn.Module):
    """Two convolutions and a shortcut around them, relu(x + f(x)), from so many channels to so many."""

    def __init__(self, before: int, after: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if (before, stride) != (after, 1):  # the shapes differ, so the shortcut has to project
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(x + f(x))."""
        y = relu(self.norm1(self.conv1(x)))
        return relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """A stem of ``width`` channels, four stages of two blocks, each with twice the channels, and a linear layer.

    Example:
        >>> sum(p.numel() for p in ResNet18().parameters())
        11173962
    """

    def __init__(self, width: int = 64, classes: int = 10) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(width)
        blocks, before = [], width
        for stage in range(4):
            after = width * 2**stage
            blocks += [Block(before, after, 1 if stage == 0 else 2), Block(after, after, 1)]
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images, (n, 3, 32, 32) to (n, classes)."""
        x = relu(self.norm(self.stem(x)))
        return self.head(self.blocks(x).mean(dim=(2, 3)))


def make_model(width: int, seed: int, device: torch.device, memory_format: torch.memory_format) -> ResNet18:
    """Return the network of a seed, the same on every device."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = ResNet18(width)
    return model.to(device, memory_format=memory_format)  # type: ignore[call-overload]
