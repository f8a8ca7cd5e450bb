"""The token table on a GPU: each token that has occurred has a slot, which holds its rows for all taps.

The idea is that of `token_table`. Here a token's rows are computed together, in one product by the weights of all taps
(elements of the filter) side by side. That is 19 % more rows than occur in the course's sentences, but one product
instead of 24, and each product ends with idle multiprocessors. A slot is reused for another token without moving rows.
The host alone knows which token has which slot: it turns ids into slots, and kernels read slots.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from tilewright.errors import ResourceError
from tilewright.ops.core.gpu.tensors import torch_dtype
from tilewright.ops.embedding_conv1d.memory import row_width
from tilewright.ops.embedding_conv1d.operands import Filters
from tilewright.ops.matmul import matmul, prepare

PRODUCT_TOKENS = 4096  # tokens of a product: 400 MB at the course's size; multiprocessors idle for 1 % of its time
RESERVE = 4 << 30  # bytes of a GPU's memory left for products and batches, or half of what is free


class Batch(NamedTuple):
    """Sentences first to end, whose rows all exist, and their slots int32 (end - first, L)."""

    first: int
    end: int
    slots: np.ndarray


class DeviceTable:
    """Rows of O values for each token and group; a group is one tap of one branch.

    table: (V, C) on the device. filters: the branches, tensors on it. length: tokens per sentence. memory: most bytes
    of the rows; None: what is free except for RESERVE. cut: cut(rows, slots, cache) copies rows (n, groups, O) into
    slices of a LINE; None: rows stay whole, with O rounded up to a power of two. cache: (slices, capacity, groups,
    width) of the class's dtype; the second index is the slot. slot_of: int32 (V,), -1 for a token without a slot;
    device_slots: a copy of it on the device. token_at: the token in each slot, -1 for none. Raises ResourceError if
    `memory` does not hold the rows of one sentence.
    """

    def __init__(
        self, table, filters: Filters, *, dtype: str, length: int, memory: int | None, cut: Callable | None = None
    ):
        import torch

        self.table, self.cut, self.groups, V = table.contiguous(), cut, len(filters.taps()), len(table)
        taps = [weight.permute(2, 0, 1).reshape(-1, filters.C) for weight in filters.weights]  # (K * O, C) per branch
        self.weights = prepare(torch.cat(taps).T, dtype=dtype)
        del taps
        hollow = tuple(weight.new_empty(1).expand(weight.shape) for weight in filters.weights)
        self.filters = Filters(hollow, filters.bias)  # shapes alone: `weights` has the values, so they can be freed
        stored = torch_dtype(dtype)
        self.width = row_width(filters.O, dtype, cut=cut is not None)
        self.slices = -(-filters.O // self.width)
        self.token_bytes = token_bytes = self.slices * self.groups * self.width * stored.itemsize
        memory = _free(table, V * token_bytes) if memory is None else memory
        self.capacity = min(V, memory // token_bytes)
        if self.capacity < min(length, V):
            raise ResourceError(
                f"a token table of {memory} bytes holds the rows of {self.capacity} tokens; a sentence has {length}",
                remedy=f"allow at least {length * token_bytes} bytes",
            )
        self.cache = table.new_zeros((self.slices, self.capacity, self.groups, self.width), dtype=stored)
        self.slot_of = np.full(V, -1, np.int32)
        self.device_slots = table.new_full((V,), -1, dtype=torch.int32)
        self.token_at = np.full(self.capacity, -1, np.int64)
        self.last_used = np.zeros(self.capacity, np.int64)  # number of the batch that last needed each slot
        self.built = self.batch = 0
        bounds = np.cumsum([0, *filters.kernels], dtype=np.int32)  # the group of each branch's first tap
        self.bounds = torch.from_numpy(bounds).to(table.device)

    def clear(self) -> None:
        """Forget all rows, as before a measurement."""
        self.slot_of.fill(-1)
        self.device_slots.fill_(-1)
        self.token_at.fill(-1)
        self.built = 0

    @property
    def holds_all(self) -> bool:
        """True if there is a slot for every token, so that none is ever evicted."""
        return self.capacity == len(self.slot_of)

    def precompute(self, ids: np.ndarray) -> bool:
        """Compute the missing rows of sentences ids (B, L) in one go; False if free slots do not suffice."""
        needed = np.zeros(len(self.slot_of), bool)
        needed[ids] = True
        tokens = np.flatnonzero(needed & (self.slot_of < 0))
        free = np.flatnonzero(self.token_at < 0)
        if len(tokens) > len(free):
            return False
        if len(tokens):
            self._build(tokens, free[: len(tokens)])
        return True

    def batches(self, ids: np.ndarray, size: int) -> Iterator[Batch]:
        """Yield batches of at most `size` sentences of ids (B, L). Their rows exist until the next batch is requested;
        kernels that were queued before may still read them."""
        exceeded = False
        pending = [(first, min(first + size, len(ids))) for first in range(0, len(ids), size)][::-1]
        while pending:
            first, end = pending.pop()
            slots = self.slot_of[ids[first:end]]
            if slots.min(initial=0) < 0:
                exceeded = exceeded or not self.precompute(ids[first:])  # all later batches too, in large products
                if exceeded and not self._replace(ids[first:end]):
                    middle = (first + end) // 2
                    pending += [(middle, end), (first, middle)]
                    continue
                slots = self.slot_of[ids[first:end]]
            self.batch += 1
            if not self.holds_all:
                self.last_used[slots] = self.batch
            yield Batch(first, end, slots)

    def _replace(self, ids: np.ndarray) -> bool:
        """Compute the missing rows of ids in free slots and in those of the least recently used tokens that are not in
        ids; False if ids has more tokens than there are slots."""
        needed = np.unique(ids)
        if len(needed) > self.capacity:
            return False
        tokens = needed[self.slot_of[needed] < 0]
        order = np.where(self.token_at < 0, -1, self.last_used)
        present = self.slot_of[needed]
        order[present[present >= 0]] = np.iinfo(np.int64).max
        slots = np.argsort(order, kind="stable")[: len(tokens)]
        self._evict(self.token_at[slots])
        self.token_at[slots] = -1  # before `_build`, which may run out of memory
        self._build(tokens, slots)
        return True

    def _evict(self, tokens: np.ndarray) -> None:
        """Take the slots of these tokens away; entries of -1 are skipped."""
        import torch

        tokens = tokens[tokens >= 0]
        self.slot_of[tokens] = -1
        self.device_slots.index_fill_(0, torch.from_numpy(tokens).to(self.device_slots.device), -1)

    def _build(self, tokens: np.ndarray, slots: np.ndarray) -> None:
        """Multiply the tokens' embeddings by the weights of all taps, into these slots."""
        import torch

        index = torch.from_numpy(np.stack([tokens, slots])).to(self.table.device)
        shape = (min(len(tokens), PRODUCT_TOKENS), self.groups * self.filters.O)
        products = self.table.new_empty(shape, dtype=self.cache.dtype)  # reused by every product
        for start in range(0, len(tokens), PRODUCT_TOKENS):
            some, target = index[:, start : start + PRODUCT_TOKENS]
            rows = matmul(self.table.index_select(0, some), self.weights, out=products[: len(some)])
            rows = rows.view(len(rows), self.groups, self.filters.O)
            if self.cut:
                self.cut(rows, target, self.cache)
            else:
                self.cache[0, :, :, : self.filters.O].index_copy_(0, target, rows)
        self.device_slots.index_copy_(0, index[0], index[1].int())
        self.slot_of[tokens] = slots
        self.token_at[slots] = tokens
        self.built += len(tokens)


def _free(near, most: int) -> int:
    """Bytes that a table of at most `most` may take on the device of `near`."""
    if not near.is_cuda:
        return most
    import torch

    torch.cuda.empty_cache()
    free = torch.cuda.mem_get_info(near.device)[0]
    return max(free - RESERVE, free // 2)


def prepare_whole(table, filters: Filters, *, dtype: str, length: int, memory: int | None) -> DeviceTable:
    """An empty token table for these weights; its rows are not cut into slices."""
    return DeviceTable(table, filters, dtype=dtype, length=length, memory=memory, cut=None)
