"""The source of every rung is found, with the kernels that it runs."""

import importlib

import pytest

from tilewright.bench.kernels.source import sources
from tilewright.ops.core.ladder import operations
from tilewright.ops.matmul.ladder import ladder


@pytest.mark.parametrize("op", operations())
def test_every_rung_has_a_source(op):
    for rung in importlib.import_module(f"tilewright.ops.{op}.ladder").ladder.rungs.values():
        found = sources(rung)
        assert found and all(source.text.count("\n") == source.last - source.first for source in found)
        assert all(source.path.startswith("tilewright/ops/") for source in found)


@pytest.mark.parametrize(
    ("name", "kernels"),
    [
        ("cpu.register", ["register"]),
        ("cpu.packed", ["product_kernel"]),
        ("simt.coalesced", ["coalesced"]),
        ("simt.unrolled", ["unrolled"]),
        ("simt.strip", ["strip"]),
        ("simt.outer", ["outer"]),
        ("tile.persistent", ["product", "split"]),
        ("tile.specialized", ["product", "product_of_few", "add_parts", "split"]),
    ],
)
def test_a_rung_shows_the_kernel_of_its_options(name, kernels):
    run, *found = sources(ladder.rungs[name])
    assert run.name.startswith("multiply") and [source.name for source in found] == kernels


def test_only_the_rung_for_hopper_shows_its_kernel():
    paths = {
        name: [source.path for source in sources(ladder.rungs[name])]
        for name in ("tile.persistent", "tile.specialized")
    }
    hopper = "tilewright/ops/gemm/tile/hopper.py"
    assert hopper in paths["tile.specialized"] and hopper not in paths["tile.persistent"]
