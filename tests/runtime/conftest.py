"""A small model on disk, and sentences for it."""

import numpy as np
import pytest

from tilewright.formats.files import InputFile
from tilewright.runtime.convert.models import init_textcnn

SIZES = {
    "vocab_size": 50,
    "sequence_length": 6,
    "hidden_size": 8,
    "num_filters": 5,
    "num_labels": 2,
    "kernel_sizes": (2, 3),
    "hidden_sizes": (7,),
}


@pytest.fixture
def model(tmp_path):
    init_textcnn(str(tmp_path / "model"), 3, **SIZES)
    return str(tmp_path / "model")


@pytest.fixture
def sentences(tmp_path, rng):
    """int32 (40, 6), also in `in.bin`."""
    tokens = rng.integers(0, SIZES["vocab_size"], (40, SIZES["sequence_length"]), np.int32)
    tokens.tofile(tmp_path / "in.bin")
    return tokens


@pytest.fixture
def bytes_read(monkeypatch):
    """bytes_read(path): how many of a file this process has read by position."""
    found = {}
    read = InputFile.read_into

    def counted(self, target, offset):
        found[str(self.path)] = found.get(str(self.path), 0) + memoryview(target).nbytes
        return read(self, target, offset)

    monkeypatch.setattr(InputFile, "read_into", counted)
    return lambda path: found.get(str(path), 0)
