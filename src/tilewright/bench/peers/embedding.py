"""PyTorch for embedding."""

import torch
from torch.nn.functional import embedding

from tilewright.bench.measure import Call
from tilewright.bench.peers._shared import in_class, tensor, truth_by


def truth(case, tensors: dict):
    """See `tilewright.bench.peers`."""
    return truth_by("embedding", case, tensors, along=("ids", "positions"), width=case.C)


def cpu(case, inputs: dict) -> dict[str, Call]:
    """PyTorch, without positions: the kernel of its embedding, which writes to memory that is allocated, as
    tilewright's does. Otherwise most of the time would be page faults in a new result."""
    ids, table = torch.from_numpy(inputs["ids"]), tensor(inputs["table"], "float32")
    rows, out = ids.reshape(-1), torch.empty(ids.numel(), table.shape[1])
    return {"PyTorch": lambda: torch.index_select(table, 0, rows, out=out)}


def gpu(case, tensors: dict) -> dict[str, Call]:
    """PyTorch in the class's dtype; it adds the positions in a separate kernel."""
    ids, table = tensors["ids"], in_class(case, tensors["table"])
    if not case.positions:
        return {"PyTorch": lambda: embedding(ids, table)}
    positions, more = tensors["positions"], in_class(case, tensors["position_table"])
    return {"PyTorch": lambda: embedding(ids, table).add_(embedding(positions, more))}
