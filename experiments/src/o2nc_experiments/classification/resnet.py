"""ResNet-18 for images of 32 × 32 (He et al. 2016): a 3 × 3 stem and no max-pooling, as is usual for CIFAR-10."""

import torch
from torch import Tensor, nn
from torch.nn.functional import relu


def layout(device: torch.device) -> torch.memory_format:
    """Return the memory format that images and weights have on a device.

    Tensor cores prefer ``channels_last``. On CPUs without AVX-512 it breaks the heap: there torch 2.13 writes the
    weights' gradient of a strided 1 × 1 convolution with fewer than 8 input channels beyond its end.
    """
    return torch.channels_last if device.type == "cuda" else torch.contiguous_format


class Block(nn.Module):
    """Two convolutions and a shortcut around them, relu(x + f(x)), from so many channels to so many."""

    def __init__(self, before: int, after: int, stride: int, norm: type[nn.BatchNorm2d]) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = norm(after)
        self.shortcut: nn.Module = nn.Identity()
        if (before, stride) != (after, 1):  # the shapes differ, so the shortcut has to project
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), norm(after))

    def forward(self, x: Tensor) -> Tensor:
        """Return relu(x + f(x))."""
        y = relu(self.norm1(self.conv1(x)))
        y = self.norm2(self.conv2(y))
        return relu(y + self.shortcut(x))


class ResNet18(nn.Module):
    """A stem of ``width`` channels, four stages of two blocks, each with twice the channels, and a linear layer.

    Example:
        >>> sum(p.numel() for p in ResNet18().parameters())
        11173962
    """

    def __init__(self, classes: int = 10, width: int = 64, norm: type[nn.BatchNorm2d] = nn.BatchNorm2d) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = norm(width)
        blocks, before = [], width
        for stage in range(4):
            after = width * 2**stage
            blocks += [Block(before, after, 1 if stage == 0 else 2, norm), Block(after, after, 1, norm)]
            before = after
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(before, classes)

    def forward(self, x: Tensor) -> Tensor:
        """Return the logits of a batch of images, (n, 3, 32, 32) to (n, classes)."""
        x = relu(self.norm(self.stem(x)))
        return self.head(self.blocks(x).mean(dim=(2, 3)))


def make_resnet(
    width: int,
    seed: int,
    device: torch.device,
    dtype: torch.dtype = torch.float32,
    norm: type[nn.BatchNorm2d] = nn.BatchNorm2d,
) -> ResNet18:
    """Return the network of a seed, the same on every device, in the device's `layout`."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        model = ResNet18(width=width, norm=norm)
    return model.to(device, dtype, memory_format=layout(device))  # type: ignore[call-overload]


def autocast(device: torch.device) -> torch.autocast:
    """Return the context of the forward pass: convolutions in bfloat16 on a GPU, weights and loss stay float32.

    It has no cache, which must not outlive a capture; no weight is used twice, so it would save nothing.
    """
    return torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda", cache_enabled=False)
