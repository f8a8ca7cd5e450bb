"""How near generated faces are to drawn ones: as sets, and one by one."""

import torch
import torch.nn.functional as F


def features(images: torch.Tensor) -> torch.Tensor:
    """float32 (n, 1024) of images uint8 (n, 64, 64, 3): what a fixed network of random weights makes of them.

    Untrained convolutions tell colours, edges and where they lie apart, and need no data of anybody's.
    """
    generator, x = torch.Generator().manual_seed(0), images.permute(0, 3, 1, 2)
    weights, before = [], 3
    for channels in (64, 128, 256):
        scale = (2 / (25 * before)) ** 0.5
        weights.append(scale * torch.randn(channels, before, 5, 5, generator=generator).to(images.device))
        before = channels
    made = []
    for block in x.split(256):
        y = block.float() / 127.5 - 1
        for weight in weights:
            y = F.relu(F.conv2d(y, weight, stride=2, padding=2))
        made.append(F.adaptive_avg_pool2d(y, 2).flatten(1))
    return torch.cat(made)


def energy_distance(x: torch.Tensor, y: torch.Tensor) -> float:
    """2 E|x - y| - E|x - x'| - E|y - y'| of rows, without bias: 0 for equal distributions (Szekely and Rizzo, 2013)."""

    def within(a: torch.Tensor) -> torch.Tensor:
        return torch.cdist(a, a).sum() / (len(a) * (len(a) - 1))

    return (2 * torch.cdist(x, y).mean() - within(x) - within(y)).item()


def distances(images: torch.Tensor, others: torch.Tensor) -> torch.Tensor:
    """float32 (n,): root mean square over the pixels, 0 to 255, to the nearest of the others."""
    flat, found = others.flatten(1), []
    for block in images.flatten(1).float().split(64):
        nearest = [torch.cdist(block, part.float()).amin(1) for part in flat.split(4096)]
        found.append(torch.stack(nearest).amin(0))
    return torch.cat(found) / flat.shape[1] ** 0.5


def figures_of(made: torch.Tensor, learned: torch.Tensor, held_out: torch.Tensor) -> dict:
    """The card's figures, of uint8 images (n, 64, 64, 3): energy distances of sets, and distances to the nearest."""
    half = len(held_out) // 2
    one, other, third = (features(part) for part in (held_out[:half], held_out[half:], made[:half]))
    middle, spread = one.mean(0), one.std(0) + 1e-6
    one, other, third = ((part - middle) / spread for part in (one, other, third))
    near, known = distances(made[:512], learned), distances(held_out[:512], learned)
    return {
        "energy": energy_distance(third, one),
        "energy_floor": energy_distance(other, one),
        "nearest": near.median().item(),
        "nearest_least": near.amin().item(),
        "nearest_drawn": known.median().item(),
        "nearest_drawn_least": known.amin().item(),
    }
