"""PyTorch beside embedding."""

from collections.abc import Callable

from torch.nn.functional import embedding

from tilewright.bench.gpu._rows import in_class, truth_by


def truth(case, tensors: dict):
    """See `tilewright.bench.gpu`."""
    return truth_by("embedding", case, tensors, along=("ids", "positions"), width=case.C)


def peers(case, tensors: dict) -> dict[str, Callable[[], object]]:
    """PyTorch, which adds the positions in a kernel of its own, in the class's dtype."""
    ids, table = tensors["ids"], in_class(case, tensors["table"])
    if not case.positions:
        return {"PyTorch": lambda: embedding(ids, table)}
    positions, more = tensors["positions"], in_class(case, tensors["position_table"])
    return {"PyTorch": lambda: embedding(ids, table).add_(embedding(positions, more))}
