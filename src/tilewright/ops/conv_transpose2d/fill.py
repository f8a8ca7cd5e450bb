"""Outputs on a GPU that no tap reaches: a kernel shorter than the stride leaves some."""

from typing import Any

from tilewright.ops.conv_transpose2d.operands import Epilogue, Packed


def fill_without_taps(out: Any, weights: Packed, epilogue: Epilogue) -> None:
    """Write activation(bias) to all of out (B, OH, OW, O), a torch tensor, if some phase has no taps."""
    rows, columns = weights.rows, weights.columns
    if len(rows.phases) < rows.stride or len(columns.phases) < columns.stride:
        bias: Any = epilogue.bias
        out.copy_(_activated(bias.float(), epilogue.activation).expand(out.shape) if len(bias) else out.new_zeros(()))


def _activated(bias: Any, activation: str | None) -> Any:
    from torch.nn.functional import gelu, relu, tanh

    if activation == "relu":
        return relu(bias)
    if activation == "tanh":
        return tanh(bias)
    return bias if activation is None else gelu(bias, approximate="tanh" if activation == "gelu_tanh" else "none")
