"""Outputs on a GPU that no tap (one element of the filter) reaches: a kernel shorter than the stride leaves some."""

from typing import Any

from tilewright.ops.conv_transpose2d.operands import Epilogue, Packed


def fill_without_taps(out: Any, weights: Packed, epilogue: Epilogue) -> None:
    """Write activation(bias) to all of out (B, OH, OW, O), or to its limbs (B, OH, OW, 2, O), a torch tensor, if some
    phase has no taps."""
    if all(len(axis.phases) == axis.stride for axis in (weights.rows, weights.columns)):
        return
    import torch

    y, name = epilogue.bias.float() if len(epilogue.bias) else out.new_zeros(1), epilogue.activation
    if name in ("gelu", "gelu_tanh"):
        y = torch.nn.functional.gelu(y, approximate="tanh" if name == "gelu_tanh" else "none")
    elif name is not None:
        y = torch.relu(y) if name == "relu" else torch.tanh(y)
    if out.ndim == 5:
        y = torch.stack([y.bfloat16(), (y - y.bfloat16().float()).bfloat16()])
    out.copy_(y.expand(out.shape))
