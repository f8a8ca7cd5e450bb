"""Occupancy, against values of NVIDIA's calculator."""

from types import SimpleNamespace

import pytest

from tilewright.bench.kernels.occupancy import Block, limits, occupancy

H100 = limits(
    SimpleNamespace(major=9, minor=0, max_threads_per_multi_processor=2048, shared_memory_per_multiprocessor=228 << 10)
)


@pytest.mark.parametrize(
    ("block", "share"),
    [
        (Block(1024, 32, 8192), 1.0),
        (Block(256, 33, 0), 0.75),  # 40 registers of each thread are taken: 6 blocks
        (Block(128, 255, 16640), 0.125),  # two blocks by registers
        (Block(64, 200, 0), 0.125),  # two warps per scheduler: a quarter of the registers holds no third one
        (Block(256, 32, 100 << 10), 0.25),  # two blocks by shared memory
        (Block(32, 16, 0), 0.5),  # 32 blocks of one warp
        (Block(1024, 128, 0), 0.0),  # does not start
    ],
)
def test_the_scarcest_resource_decides(block, share):
    assert occupancy(block, H100) == share
