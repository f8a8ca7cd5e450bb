"""Made-up measurements of a made-up ladder."""

from collections.abc import Callable

import pytest

from tilewright.bench.results import Row
from tilewright.ops.core.ladder import Ladder, Rung


@pytest.fixture
def row() -> Callable[..., Row]:
    """row(rung, ...) is a plausible measurement; keyword arguments change its fields."""

    def make(rung: str, **changes) -> Row:
        plain = {
            "op": "matmul", "size": "8x8x8-float32", "label": "tiny", "dtype": "float32", "threads": 1, "rows": 8,
            "median_s": 0.5, "low_s": 0.4, "high_s": 0.7, "runs": 11,
            "gflops": 12.5, "gbytes_s": 2.0, "roof_share": 0.25, "roof_gflops": 50.0, "roof_gbytes_s": 10.0,
            "commit": "1a2b3c4", "date": "2026-11-21", "machine": "made-up-2c",
        }  # fmt: skip
        return Row(rung=rung, **{**plain, **changes})

    return make


@pytest.fixture
def ladder() -> Ladder:
    """Three rungs, of which the second is the default."""
    return Ladder(
        "matmul",
        Rung("cpu.slow", idea="one | after the other", kernel="none:none", chosen=True),
        Rung("cpu.fast", after="cpu.slow", idea="all <at> once", kernel="none:none", chosen=True),
        Rung("gpu.absent", after="cpu.fast", idea="elsewhere", kernel="none:none"),
    )
