"""What an embedding_conv1d rung is handed: checked weights, and the table of rows that has been computed so far."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Filters:
    """The branches: weights, each (O, C, K) with its own K; biases, each (O,), one after the other in `bias`
    (branches * O,)."""

    weights: tuple[Any, ...]
    bias: Any

    @property
    def kernels(self) -> tuple[int, ...]:
        """K of every branch."""
        return tuple(weight.shape[2] for weight in self.weights)

    @property
    def O(self) -> int:  # noqa: E743 - output channels
        """Filters of a branch."""
        return self.weights[0].shape[0]

    @property
    def C(self) -> int:
        """Width of an embedding."""
        return self.weights[0].shape[1]

    def taps(self) -> list[tuple[int, int]]:
        """(branch, tap) of every row that a token may need, in the order of the table's groups."""
        return [(branch, tap) for branch, K in enumerate(self.kernels) for tap in range(K)]


@dataclass(frozen=True, eq=False)
class Prepared:
    """What `embedding_conv1d.prepare` gives: the operands, and in `state` what the rung computed from them."""

    rung: str
    dtype: str
    table: Any
    filters: Filters
    state: Any
