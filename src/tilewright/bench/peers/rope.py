"""PyTorch for rope, written as in transformers: a copy with its halves exchanged, two products and a sum."""

import dataclasses

import torch

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import tensor, truth_by


def truth(case, tensors: dict):
    """See `tilewright.bench.peers`."""
    rows = min(case.rows, 256)
    some = {name: x if name == "frequencies" else x[:rows] for name, x in tensors.items()}
    return truth_by("rope", dataclasses.replace(case, rows=rows), some, along=("x", "positions"))


def cpu(case, inputs: dict) -> dict[str, Call]:
    """PyTorch, with cosines and sines from a table."""
    x, positions = tensor(inputs["x"], case.dtype), torch.from_numpy(inputs["positions"])
    return _calls(case, x, positions, torch.from_numpy(inputs["frequencies"]))


def gpu(case, tensors: dict) -> dict[str, Call]:
    """The same on a GPU, in the class's dtype."""
    return _calls(case, tensors["x"], tensors["positions"], tensors["frequencies"])


def _calls(case, x, positions, frequencies) -> dict[str, Call]:
    angles = torch.arange(case.length, device=x.device)[:, None].float() * frequencies
    both = torch.cat((angles, angles), dim=-1)
    cos, sin, R = both.cos().to(x.dtype), both.sin().to(x.dtype), 2 * case.pairs

    def call():
        heads = x.view(case.rows, case.heads, case.D)
        rotated, rest = heads[..., :R], heads[..., R:]
        turned = torch.cat((-rotated[..., R // 2 :], rotated[..., : R // 2]), dim=-1)
        found = rotated * cos[positions][:, None] + turned * sin[positions][:, None]
        return torch.cat((found, rest), dim=-1).view(case.rows, -1)

    return {"PyTorch": call}
