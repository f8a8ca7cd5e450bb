"""Compares tilewright's images with PyTorch's: python examples/train/check_portraits.py DIR

Both draw from the same noise with portraits' weights. Ends with 1 if a value from -1 to 1 differs by more than 1e-4.
Needs torch.
"""

import argparse
import sys
from pathlib import Path

import numpy as np
import torch
from dcgan import generator
from safetensors.numpy import load_file

import tilewright as tw

TOLERANCE = 1e-4  # of the course's reference; the orders of summing differ
NORM = ("weight", "bias", "running_mean", "running_var")


def torch_net(folder: Path) -> torch.nn.Module:
    """PyTorch's generator with the weights of a directory."""
    weights = {name: torch.tensor(value, dtype=torch.float32) for name, value in arrays_of(folder).items()}
    state = {"0.weight": weights["proj.weight"].reshape(100, 4, 4, -1).permute(0, 3, 1, 2)}
    for i in range(4):
        state |= {f"{3 * i + 1}.{own}": weights[f"norms.{i}.{own}"] for own in NORM}
        state[f"{3 * i + 3}.weight"] = weights[f"convs.{i}.weight"].permute(3, 2, 0, 1)
    state["12.bias"] = weights["convs.3.bias"]
    net = generator(weights["convs.3.weight"].shape[3])
    missing = net.load_state_dict(state, strict=False).missing_keys
    assert all(name.endswith("num_batches_tracked") for name in missing), missing
    return net.eval()


def arrays_of(folder: Path) -> dict[str, np.ndarray]:
    """float32 arrays by name."""
    return {name: value.astype(np.float32) for name, value in load_file(folder / "model.safetensors").items()}


def main() -> int:
    """Reads the command line and compares."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="the model directory")
    parser.add_argument("--device", default="cpu", help="of tilewright; PyTorch computes on the CPU")
    parser.add_argument("--count", type=int, default=256)
    options = parser.parse_args()
    z = np.random.default_rng(1).standard_normal((options.count, 100), dtype=np.float32)
    with torch.no_grad():
        theirs = torch_net(options.folder)(torch.tensor(z)[..., None, None]).permute(0, 2, 3, 1).numpy()
    error = np.abs(tw.load(str(options.folder), device=options.device).generate(z) - theirs).max()
    print(f"{options.count} images, values from -1 to 1: the largest difference is {error:.1e}")
    return int(not error <= TOLERANCE)


if __name__ == "__main__":
    sys.exit(main())
