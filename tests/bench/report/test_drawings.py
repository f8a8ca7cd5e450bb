"""Drawings from the options of the kernels: every swept value fits in its picture."""

import importlib
import itertools

import pytest

from tilewright.bench.report.drawings import DRAWN, PICTURES, drawing_of
from tilewright.ops.core.ladder import operations


def ladder_of(op):
    return importlib.import_module(f"tilewright.ops.{op}.ladder").ladder


@pytest.mark.parametrize("op", operations())
def test_every_operation_is_drawn_and_no_name_is_wrong(op):
    rungs = ladder_of(op).rungs
    assert DRAWN[op].keys() - {""} <= rungs.keys()
    assert any(drawing_of(op, rung) for rung in rungs.values())
    assert all(rung in ladder_of(of).rungs for of, rung in PICTURES.values())


@pytest.mark.parametrize(
    "name",
    ["simt.memory", "simt.coalesced", "simt.shared", "simt.unrolled", "simt.strip", "simt.registers", "simt.outer"],
)
def test_every_value_of_a_sweep_fits_in_its_picture(name):
    """Words that leave their box, or lie over others, raise ValueError. Other values give another picture."""
    rung = ladder_of("matmul").rungs[name]
    points = [dict(zip(rung.swept, values, strict=True)) for values in itertools.product(*rung.swept.values())]
    drawn = {drawing_of("matmul", rung.varied(**point)).svg() for point in points}
    assert len(drawn) == len(points) and all(svg.startswith("<svg ") for svg in drawn)
