"""DCGAN in PyTorch: the generator as tilewright computes it, and a critic to train it against."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm


def generator(channels: int) -> nn.Sequential:
    """z (n, 100, 1, 1) -> images (n, 3, 64, 64), as `tilewright convert` reads it."""
    sizes = [4 * channels, 2 * channels, channels * 3 // 2, channels]
    layers: list[nn.Module] = [nn.ConvTranspose2d(100, sizes[0], 4, bias=False)]
    for before, after in zip(sizes, [*sizes[1:], 3], strict=True):
        layers += [nn.BatchNorm2d(before), nn.ReLU(inplace=True)]
        layers.append(nn.ConvTranspose2d(before, after, 5, 2, padding=2, output_padding=1, bias=after == 3))
    net = nn.Sequential(*layers, nn.Tanh())
    for module in net:
        if isinstance(module, nn.ConvTranspose2d):
            nn.init.normal_(module.weight, 0, 0.02)
    return net


class Critic(nn.Module):
    """Images -> how drawn they look: four convolutions that halve the size, one over all that is left."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        sizes = [3, channels, 2 * channels, 4 * channels, 8 * channels]
        self.layers = nn.ModuleList(spectral_norm(nn.Conv2d(a, b, 4, 2, 1)) for a, b in pairwise(sizes))
        self.last = spectral_norm(nn.Conv2d(sizes[-1] + 1, 1, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.leaky_relu(layer(x), 0.1)
        spread = x.float().var(0).add(1e-8).sqrt().mean().to(x.dtype)
        return self.last(torch.cat([x, spread.expand(len(x), 1, *x.shape[2:])], 1)).flatten()
