"""PyTorch for pool: the mean of segments, and what sentence-transformers does, a masked sum of padded texts."""

import torch

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import in_class, tensor, truth_by

CHECKED = 64  # texts


def truth(case, tensors: dict):
    """See `tilewright.bench.peers`."""
    count = min(case.texts, CHECKED)
    some = {name: tensors[name][:count] for name in ("begin", "end")}
    some["x"] = tensors["x"][: int(some["end"].max())]
    return truth_by("pool", case, some, along=("begin", "end"), width=case.C)


def cpu(case, inputs: dict) -> dict[str, Call]:
    """PyTorch, if the texts follow each other without gaps."""
    if case.gap:
        return {}
    return _calls(tensor(inputs["x"], "float32"), *(torch.from_numpy(inputs[name]) for name in ("begin", "end")))


def gpu(case, tensors: dict) -> dict[str, Call]:
    """The same on a GPU, in the class's dtype."""
    return _calls(in_class(case, tensors["x"]), tensors["begin"], tensors["end"])


def _calls(x, begin, end) -> dict[str, Call]:
    counts = end - begin
    n, longest = len(counts), int(counts.max())
    mask = (torch.arange(longest, device=x.device) < counts[:, None])[:, :, None]
    padded = torch.zeros((n, longest, x.shape[1]), dtype=x.dtype, device=x.device)
    padded[mask[:, :, 0]] = x
    weights = mask.to(x.dtype)
    return {
        "PyTorch, segments": lambda: torch.segment_reduce(x, "mean", lengths=counts, unsafe=True),
        "PyTorch, padded": lambda: (padded * weights).sum(dim=1) / weights.sum(dim=1),
    }
