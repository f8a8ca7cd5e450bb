"""Trains portraits, a small DCGAN, on faces that `faces.py` draws: python examples/train/portraits.py portraits

The generator is Radford's: noise, a projection to 4 x 4, four transposed convolutions with batch-norm, tanh. What it
learns from is free, and newer: a critic with spectral norms (Miyato et al., 2018) that also sees how much the images of
a batch differ (Karras et al., 2018), hinge losses, and an average of the generator's weights. Writes DIR/config.json,
model.safetensors (float16), README.md, and a grid of images to DIR.png. Minutes on an H200, hours on a CPU.
"""

import argparse
import copy
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from dcgan import Critic, generator
from faces import draw_many, grid
from PIL import Image
from portraits_figures import figures_of
from safetensors.numpy import load_file, save_file
from torch import nn

from tilewright.runtime.convert.models import convert


@dataclass(frozen=True)
class Recipe:
    """Sizes and settings; each is an option of the command."""

    faces: int = 28672  # drawn to learn from
    held_out: int = 8192  # drawn to compare with
    channels: int = 64  # of the generator's last layer but one, 32 x 32 pixels; 1.5, 2 and 4 times as many before
    critic: int = 64  # channels of the critic's first layer
    batch: int = 128
    steps: int = 10000
    rate: float = 2e-4  # of both; in the second half it falls to nothing
    beta: float = 0.5
    average: float = 0.999  # share of the old average a step
    seed: int = 1


class Trainer:
    """One step of both networks; on a GPU a CUDA graph: its thousand small kernels are launched as one."""

    def __init__(self, recipe: Recipe, drawn: torch.Tensor) -> None:
        torch.manual_seed(recipe.seed)
        self.recipe, self.drawn, self.device = recipe, drawn, drawn.device.type
        self.net = generator(recipe.channels).to(drawn.device, memory_format=torch.channels_last)
        self.critic = Critic(recipe.critic).to(drawn.device, memory_format=torch.channels_last)
        self.average = copy.deepcopy(self.net).requires_grad_(False)
        self.rate = torch.tensor(recipe.rate, device=drawn.device)
        options = {"betas": (recipe.beta, 0.99), "capturable": self.device == "cuda", "foreach": self.device == "cuda"}
        self.optimizers = [torch.optim.Adam(n.parameters(), self.rate, **options) for n in (self.net, self.critic)]

    def noise(self, n: int) -> torch.Tensor:
        return torch.randn(n, 100, 1, 1, device=self.drawn.device)

    def step(self) -> None:
        batch = self.recipe.batch
        chosen = self.drawn[torch.randint(len(self.drawn), (batch,), device=self.drawn.device)]
        real = chosen.permute(0, 3, 1, 2).float() / 127.5 - 1
        with torch.autocast(self.device, torch.bfloat16, cache_enabled=False):
            fake = self.net(self.noise(batch))
            loss = F.relu(1 - self.critic(real).float()).mean() + F.relu(1 + self.critic(fake.detach()).float()).mean()
        self.descend(self.optimizers[1], loss)
        with torch.autocast(self.device, torch.bfloat16, cache_enabled=False):
            loss = -self.critic(self.net(self.noise(batch))).float().mean()
        self.descend(self.optimizers[0], loss)
        with torch.no_grad():
            torch._foreach_lerp_(list(self.average.parameters()), list(self.net.parameters()), 1 - self.recipe.average)

    def descend(self, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
        for each in self.optimizers:  # the critic's gradients of the generator's step are nobody's
            each.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()

    def captured(self):
        """The step as a function: on a GPU the replay of what was captured of one."""
        if self.device != "cuda":
            return self.step
        side = torch.cuda.Stream()
        with torch.cuda.stream(side):
            for _ in range(5):
                self.step()
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.step()
        return graph.replay

    def run(self) -> None:
        step, steps, begin = self.captured(), self.recipe.steps, time.monotonic()
        for i in range(steps):
            self.rate.fill_(self.recipe.rate * min(1, 2 - 2 * i / steps))
            step()
            if (i + 1) % max(steps // 10, 1) == 0:
                if self.device == "cuda":
                    torch.cuda.synchronize()
                print(f"step {i + 1:,} of {steps:,}, {time.monotonic() - begin:.0f} s", flush=True)

    def result(self) -> nn.Sequential:
        """The averaged generator as it is written, float16 numbers, with batch-norm statistics of its own."""
        norms = [module for module in self.average if isinstance(module, nn.BatchNorm2d)]
        for norm in norms:
            norm.reset_running_stats()
            norm.momentum = None  # the mean over all that follow
        with torch.no_grad():
            for _ in range(64):
                self.average.train()(self.noise(2 * self.recipe.batch))
        for name, value in self.average.state_dict().items():
            if not name.endswith("num_batches_tracked"):
                value.copy_(value.half())
        return self.average.eval()


def trained(recipe: Recipe, drawn: torch.Tensor) -> tuple[nn.Module, torch.Tensor]:
    """The generator, and uint8 images (n, 64, 64, 3) that it makes, half as many as are held out."""
    trainer = Trainer(recipe, drawn)
    trainer.run()
    net = trainer.result()
    with torch.no_grad():
        images = torch.cat([net(trainer.noise(64)) for _ in range(recipe.held_out // 128 or 1)])
    return net, ((images.permute(0, 2, 3, 1) + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)


def write(folder: Path, net: nn.Module) -> None:
    """The model directory: as `tilewright convert` makes it, its numbers in two bytes."""
    with tempfile.TemporaryDirectory() as work:
        state = {name: value.float().cpu().numpy().copy() for name, value in net.state_dict().items()}
        save_file({name: value for name, value in state.items() if value.ndim}, f"{work}/net.safetensors")
        convert(f"{work}/net.safetensors", str(folder), force=True)
    weights = load_file(folder / "model.safetensors")
    save_file({name: value.astype(np.float16) for name, value in weights.items()}, folder / "model.safetensors")


def main() -> None:
    """Reads the command line, trains, writes."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the model directory to write")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--again", type=int, default=0, help="train with so many seeds more, for the figures' spread")
    parser.add_argument("--drawn", type=Path, help="keep the faces in this .npy, or take them from it")
    for field in fields(Recipe):
        parser.add_argument("--" + field.name.replace("_", "-"), type=type(field.default), default=field.default)
    given = vars(parser.parse_args())
    folder, device, again, kept = (given.pop(name) for name in ("folder", "device", "again", "drawn"))
    recipe, begin = Recipe(**given), time.monotonic()
    if kept and kept.exists():
        drawn = np.load(kept)
    else:
        drawn = draw_many(1, 0, recipe.faces + recipe.held_out, os.cpu_count() or 1)
        if kept:
            np.save(kept, drawn)
    print(f"{len(drawn):,} faces, {time.monotonic() - begin:.0f} s", flush=True)
    learned, held_out = torch.tensor(drawn, device=device).split([recipe.faces, recipe.held_out])
    net, pixels = trained(recipe, learned)
    write(folder, net)
    Image.fromarray(grid(pixels[:192].cpu().numpy(), 16)).save(folder.with_suffix(".png"))
    figures = figures_of(pixels, learned, held_out) | {"minutes": (time.monotonic() - begin) / 60}
    seeds = range(recipe.seed, recipe.seed + again + 1)
    others = [figures_of(trained(replace(recipe, seed=s), learned)[1], learned, held_out) for s in seeds[1:]]
    figures["seeds"] = ", ".join(map(str, seeds))
    figures["energies"] = ", ".join(f"{each['energy']:.3f}" for each in (figures, *others))
    figures["parameters"] = sum(p.numel() for p in net.parameters())
    figures["device"] = torch.cuda.get_device_name() if device == "cuda" else "a CPU"
    card = (Path(__file__).parent / "portraits.md").read_text()
    (folder / "README.md").write_text(card.format(**asdict(recipe), **figures))
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
