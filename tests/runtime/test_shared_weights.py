"""Weights are pages of their file: whoever else of this node reads the model shares them, and nothing is copied."""

import mmap
import sys
from pathlib import Path

import pytest

from tilewright.runtime.load import read_weights


def test_weights_are_mapped(model):
    _, weights = read_weights(model)
    for name, array in weights.items():
        while not isinstance(array, mmap.mmap):
            assert array is not None, name
            array = array.obj if isinstance(array, memoryview) else array.base


@pytest.mark.skipif(sys.platform != "linux", reason="/proc tells what a process has mapped")
def test_the_mapping_is_shared(model):
    """Not private to this process, which could not be written back, but would be counted, and copied when touched."""
    weights = read_weights(model)
    maps = [line.split() for line in Path("/proc/self/maps").read_text().splitlines() if "model.safetensors" in line]
    assert weights and maps and all(modes == "r--s" for _, modes, *_ in maps)
