"""The token table on a GPU: a place for each token that has occurred, with its rows of all taps.

As `token_table`, where the idea is told. Here a token's rows are computed together, one product by the weights of all
taps side by side: 19 % more rows than occur in the course's sentences, but one product in place of 24, each with a last
turn in which multiprocessors idle. Places are numbered, so one token takes another's without a row being moved. Which
tokens exist is known to the host alone: it turns ids into places, and kernels need nothing else.
"""

from collections.abc import Callable, Iterator

import numpy as np

from tilewright.errors import ResourceError
from tilewright.ops.core.gpu.tensors import torch_dtype
from tilewright.ops.embedding_conv1d.operands import Filters
from tilewright.ops.matmul import matmul, prepare

PRODUCT_TOKENS = 4096  # multiplied at a time: 400 MB of products at the course's size, and the last turn is 1 % of all
LINE = 128  # bytes of a row that lie together: what eight lanes fetch, and what L2 keeps
RESERVE = 4 << 30  # bytes of a GPU's memory that the table leaves for products and batches, or half of what is free


class DeviceTable:
    """Rows of O numbers for (token, group), a group being one tap of one branch.

    table: (V, C) on the device. filters: the branches, tensors on it. length: tokens a sentence. memory: bytes that
    rows may occupy; None: what is free but for RESERVE. cut: cut(rows, places, kept) puts rows (n, groups, O) into
    slices of a LINE; None: they stay whole, up to a power of two.
    kept: (slices, capacity, groups, width) float32, or 16 bits wide in a class of these; the second index is a token's
    place. place_of: int32 (V,), -1 for a token that has none; `there`: the same on the device. Raises ResourceError if
    not even one sentence's rows fit.
    """

    def __init__(
        self, table, filters: Filters, *, dtype: str, length: int, memory: int | None, cut: Callable | None = None
    ):
        import torch

        self.table, self.cut, self.groups, V = table, cut, len(filters.taps()), len(table)
        taps = [weight.permute(2, 0, 1).reshape(-1, filters.C) for weight in filters.weights]  # (K * O, C) a branch
        self.weights = prepare(torch.cat(taps).T, dtype=dtype)
        del taps
        hollow = tuple(weight.new_empty(1).expand(weight.shape) for weight in filters.weights)
        self.filters = Filters(hollow, filters.bias)  # shapes: the numbers are in `weights`, and may go
        short = torch_dtype(dtype)
        self.width = LINE // short.itemsize if cut else max(1 << (filters.O - 1).bit_length(), 4)
        self.slices = -(-filters.O // self.width)
        self.token_bytes = token_bytes = self.slices * self.groups * self.width * short.itemsize
        memory = _free(table, V * token_bytes) if memory is None else memory
        self.capacity = min(V, memory // token_bytes)
        if self.capacity < min(length, V):
            raise ResourceError(
                f"a token table of {memory} bytes holds the rows of {self.capacity} tokens; a sentence has {length}",
                hint=f"allow at least {length * token_bytes} bytes",
            )
        self.kept = table.new_zeros((self.slices, self.capacity, self.groups, self.width), dtype=short)
        self.place_of = np.full(V, -1, np.int32)
        self.there = table.new_full((V,), -1, dtype=torch.int32)
        self.token_at = np.full(self.capacity, -1, np.int64)
        self.needed_at = np.zeros(self.capacity, np.int64)  # the batch that last needed a place
        self.built = self.batch = 0
        bounds = np.cumsum([0, *filters.kernels], dtype=np.int32)  # the group of each branch's first tap
        self.bounds = torch.from_numpy(bounds).to(table.device)

    def clear(self) -> None:
        """Forget all rows: what a measurement of their making starts with."""
        self.place_of.fill(-1)
        self.there.fill_(-1)
        self.token_at.fill(-1)
        self.built = 0

    @property
    def is_roomy(self) -> bool:
        """Whether there is a place for every token, so that none is ever dropped."""
        return self.capacity == len(self.place_of)

    def precompute(self, ids: np.ndarray) -> bool:
        """Compute the rows that sentences ids (B, L) will need, in one go; False if there is no room for all."""
        tokens = self._missing(ids)
        if not len(tokens):
            return True
        room = np.flatnonzero(self.token_at < 0)
        if len(tokens) > len(room):
            return False
        self._build(tokens, room[: len(tokens)])
        return True

    def batches(self, ids: np.ndarray, size: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield (first, end, places int32): at most `size` sentences of ids (B, L), whose rows all exist until the
        next batch is asked for. Work queued on the stream before that may still read them."""
        hopeless = False
        pending = [(first, min(first + size, len(ids))) for first in range(0, len(ids), size)][::-1]
        while pending:
            first, end = pending.pop()
            places = self.place_of[ids[first:end]]
            if places.min(initial=0) < 0:
                hopeless = hopeless or not self.precompute(ids[first:])  # all that is to come, in large products
                if hopeless and not self._make_room(ids[first:end]):
                    middle = (first + end) // 2
                    pending += [(middle, end), (first, middle)]
                    continue
                places = self.place_of[ids[first:end]]
            self.batch += 1
            if not self.is_roomy:
                self.needed_at[places] = self.batch
            yield first, end, places

    def _missing(self, ids: np.ndarray) -> np.ndarray:
        """The distinct tokens of ids that have no place."""
        needed = np.zeros(len(self.place_of), bool)
        needed[ids] = True
        return np.flatnonzero(needed & (self.place_of < 0))

    def _make_room(self, ids: np.ndarray) -> bool:
        """Compute the missing rows of ids, in the places of tokens that are not in ids and were not needed for longest;
        False if ids has more tokens than there are places."""
        needed = np.unique(ids)
        if len(needed) > self.capacity:
            return False
        tokens = needed[self.place_of[needed] < 0]
        order = np.where(self.token_at < 0, -1, self.needed_at)
        here = self.place_of[needed]
        order[here[here >= 0]] = np.iinfo(np.int64).max
        places = np.argsort(order, kind="stable")[: len(tokens)]
        self._drop(self.token_at[places])
        self.token_at[places] = -1  # before the memory for new rows may not suffice
        self._build(tokens, places)
        return True

    def _drop(self, tokens: np.ndarray) -> None:
        """The tokens, of which those below 0 are none, have no place any more."""
        import torch

        tokens = tokens[tokens >= 0]
        self.place_of[tokens] = -1
        self.there.index_fill_(0, torch.from_numpy(tokens).to(self.there.device), -1)

    def _build(self, tokens: np.ndarray, places: np.ndarray) -> None:
        """The tokens' embeddings by the weights of all taps, cut into slices."""
        import torch

        index = torch.from_numpy(np.stack([tokens, places])).to(self.table.device)
        shape = (min(len(tokens), PRODUCT_TOKENS), self.groups * self.filters.O)
        products = self.table.new_empty(shape, dtype=self.kept.dtype)  # one for all
        for start in range(0, len(tokens), PRODUCT_TOKENS):
            some = index[:, start : start + PRODUCT_TOKENS]
            rows = matmul(self.table.index_select(0, some[0]), self.weights, out=products[: some.shape[1]])
            rows = rows.view(len(rows), self.groups, self.filters.O)
            if self.cut:
                self.cut(rows, some[1], self.kept)
            else:
                self.kept[0, :, :, : self.filters.O].index_copy_(0, some[1], rows)
        self.there.index_copy_(0, index[0], index[1].int())
        self.place_of[tokens] = places
        self.token_at[places] = tokens
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
