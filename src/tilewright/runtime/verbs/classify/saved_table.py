"""The token table of a TextCNN, saved on disk between runs. It is used only with the same weights, rungs and CPU."""

from __future__ import annotations

import hashlib
import os
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from tilewright.errors import UsageError
from tilewright.formats.mapped import forget
from tilewright.formats.token_table import read_table, write_table
from tilewright.models.textcnn import TextCNN
from tilewright.ops.embedding_conv1d.operands import Prepared
from tilewright.ops.embedding_conv1d.token_table import TokenTable
from tilewright.runtime.jobs.unchanged import AsBegun

BLOCK = 64 << 20  # bytes of a block: threads hash the blocks of the weights in parallel


def fingerprint(prepared: Prepared) -> str:
    """sha256 of everything that a table's bits depend on: embeddings, filters, accuracy class, rungs, kernels, CPU."""
    from tilewright.simd import cache

    arrays = [
        np.ascontiguousarray(array).reshape(-1).view(np.uint8) for array in (prepared.table, *prepared.filters.weights)
    ]
    blocks = [array[i : i + BLOCK] for array in arrays for i in range(0, array.size, BLOCK)]
    with ThreadPoolExecutor(max_workers=2) as pool:
        digests = list(pool.map(lambda block: hashlib.sha256(block).digest(), blocks))
    shapes = [array.shape for array in (prepared.table, *prepared.filters.weights)]
    rungs = sorted({packed.rung for packed in prepared.state.packed})
    head = f"{shapes} {prepared.dtype} {prepared.rung} {rungs} {cache.key()}"
    return hashlib.sha256(head.encode() + b"".join(digests)).hexdigest()


class KeptTable:
    """`kept = KeptTable(model, path)` loads a saved table if its fingerprint matches. `kept.save()` writes new rows.

    began: the identities of the model's files before they were read. If a file has changed since, the rows may not
    belong to the fingerprint's weights, so they are not written. loaded: the number of rows that were loaded. Raises
    InputError for a damaged file, ResourceError if it cannot be written, UsageError for a model without a token table.
    """

    def __init__(self, model: TextCNN, path: str, began: AsBegun | None = None):
        self.prepared, self.path, self._began = model.convolutions, path, began or AsBegun()
        if not isinstance(self.prepared.state, TokenTable):
            raise UsageError(
                f"embedding_conv1d's rung {self.prepared.rung} has no token table to keep",
                remedy="leave out --keep-table, or the --rung that forces it",
            )
        self.fingerprint = fingerprint(self.prepared)
        for array in (self.prepared.table, *self.prepared.filters.weights):
            forget(array)  # hashing has loaded all pages of the mapped model into memory
        table = self.prepared.state
        self.loaded = 0
        if os.path.exists(path):
            self.loaded = read_table(path, self.fingerprint, table.row_of, table.slices) or 0
        if self.loaded:  # the loaded rows have replaced this process's rows
            table.used = self.loaded
        self._built = table.built

    def save(self) -> bool:
        """Write the table if it has rows that the file lacks. True if it was written."""
        table = self.prepared.state
        if table.built == self._built or not self._began.holds():
            return False
        write_table(self.path, self.fingerprint, table.row_of, [one_slice[: table.used] for one_slice in table.slices])
        self._built = table.built
        return True
