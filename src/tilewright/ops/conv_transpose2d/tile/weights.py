"""Layouts of the weights for the tile kernels: the order of phases, taps (elements of the filter) and channels, and
what is one product."""

from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from tilewright.ops.conv_transpose2d.operands import Axis
from tilewright.ops.conv_transpose2d.tile.forms import GROUP, PIXELS, block_depth, line_depth, rolling_columns, together
from tilewright.ops.core.gpu.tensors import torch_dtype


@dataclass(frozen=True, eq=False)
class Weights:
    """data: (N, taps down, taps across, depth), for float32 two limbs (2, ...). table: int32 (products, 8) on the
    device, one `records.Phase` per row, those with most taps first. form: "phases", "columns", "boxes", "blocks" or
    "rolling", see `pack_phases` and the others. blocks: as data, for blocks of GROUP x GROUP positions, or what
    `_rolling` returns; None for other forms."""

    data: Any
    table: Any
    form: str
    blocks: Any = None

    @property
    def columns(self) -> int:
        """N: channels of the phases that are one product."""
        return self.data.shape[-4]


def _packed(form: str, weights, rows: Axis, columns: Axis, dtype: str) -> Weights:
    """weights (KH, KW, O, C) in one of the forms below."""
    few, wide = together(form, columns, weights.shape[2])
    data = weights.permute(2, 0, 1, 3).float()[None, None]  # (1, 1, O, KH, KW, C)
    data = _by_taps(_by_taps(data, 3, rows, few), 4, columns, wide)
    table = [(*down, *across) for down in _products(rows, few) for across in _products(columns, wide)]
    table = sorted(sorted(table), key=lambda row: -row[2] * row[6])
    blocks = _in_class(_blocks(data), dtype) if form == "blocks" else None
    if form == "rolling":
        blocks = _rolling(weights, columns, dtype)
    entries = torch.tensor(table, dtype=torch.int32).to(weights.device)
    return Weights(_in_class(data.flatten(0, 2), dtype), entries, form, blocks)


pack_phases = partial(_packed, "phases")  # one product for each phase
pack_columns = partial(_packed, "columns")  # one product for all phases
pack_boxes = partial(_packed, "boxes")  # one product for each row of phases if these are narrow; bulk copies load x
pack_blocks = partial(_packed, "blocks")  # one product for all phases of GROUP x GROUP positions; bulk copies load x
pack_rolling = partial(_packed, "rolling")  # as columns; and one product for all rows that a row of x contributes to


def _in_class(data, dtype: str):
    """data (N, taps down, taps across, C) in the class's dtype, the depth whole blocks; limbs for float32."""
    C = data.shape[-1]
    deep = torch.nn.functional.pad(data, (0, -C % block_depth(C, dtype)))
    return _limbs(deep, dtype)


def _limbs(data, dtype: str):
    """data in the class's dtype, contiguous; for float32 its high and its low limbs."""
    if dtype != "float32":
        return data.to(torch_dtype(dtype)).contiguous()
    high = data.bfloat16()
    return torch.stack([high, (data - high.float()).bfloat16()])


def _products(axis: Axis, together: bool) -> list[tuple[int, int, int, int]]:
    """(phase, offset of its first tap, number of taps, index of the first one) of each product along an axis."""
    if together:
        return [(0, *axis.window, 0)]
    found, at = [], 0
    for phase in axis.phases:
        taps = axis.taps(phase)
        found.append((phase, taps[0][0], len(taps), at))
        at += len(taps)
    return found


def _by_taps(data, dim: int, axis: Axis, together: bool):
    """data (1, 1, O, taps down, taps across, C) with its axis `dim`, 3 or 4, in the order of `_products`: phase after
    phase, taps ascending in the input that they meet. together: phases along axis `dim - 3`, each with taps for the
    whole window, zeros where it has none."""
    if not together:
        order = [k for phase in axis.phases for _, k in axis.taps(phase)]
        return data.index_select(dim, torch.tensor(order, device=data.device))
    least, count = axis.window
    shape = list(data.shape)
    shape[dim - 3], shape[dim] = axis.stride, count
    spread = data.new_zeros(shape)
    for phase in axis.phases:
        for d, k in axis.taps(phase):
            spread.select(dim - 3, phase).select(dim - 1, d - least).copy_(data.select(dim - 3, 0).select(dim - 1, k))
    return spread


def _blocks(data):
    """(N, pixels down, pixels across, C) of (s, t, O, taps down, taps across, C): for each position of a block the
    phases' taps at the pixels, among all that the block reads, which this position uses."""
    s, t, O, down, across, C = data.shape
    spread = data.new_zeros(GROUP, s, GROUP, t, O, down + GROUP - 1, across + GROUP - 1, C)
    for j in range(GROUP):
        for k in range(GROUP):
            spread[j, :, k, :, :, j : j + down, k : k + across] = data
    return spread.flatten(0, 4)


def _rolling(weights, columns: Axis, dtype: str):
    """weights (KH, KW, O, C) as (limbs taps N, depth): a matrix (N, depth) for each pixel of a block of GROUP columns
    and each LINE of channels, in the order in which `rolling` multiplies them. Columns are (row of the kernel, position
    of the block, phase across, O), then zeros up to N."""
    (KH, _, O, C), depth = weights.shape, line_depth(dtype)
    data = _by_taps(weights.permute(2, 0, 1, 3).float()[None, None], 4, columns, True)  # (1, t, O, KH, across, C)
    spread = data.new_zeros(KH, GROUP, columns.stride, O, PIXELS, C)
    for k in range(GROUP):
        spread[:, k, :, :, k : k + data.shape[4]] = data[0].permute(2, 0, 1, 3, 4)
    wide = data.new_zeros(rolling_columns(KH, O), PIXELS, C)
    wide[: spread.shape[:4].numel()] = spread.flatten(0, 3)
    shifts = wide.view(len(wide), PIXELS // 2, 2, C // depth, depth)
    return _limbs(shifts.permute(2, 3, 1, 0, 4), dtype).reshape(-1, depth)
