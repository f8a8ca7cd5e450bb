"""Operands of an embedding_conv1d rung: checked weights, and the table of rows that has been computed so far."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, eq=False)
class Filters:
    """The branches. weights: (O, C, K) each, K differs. bias: (branches * O,), branch after branch."""

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
        """(branch, tap) of each group of the table: the rows that a token may need."""
        return [(branch, tap) for branch, K in enumerate(self.kernels) for tap in range(K)]


@dataclass(frozen=True, eq=False)
class Prepared:
    """The result of `embedding_conv1d.prepare`: the operands, and in `state` what the rung computed from them."""

    rung: str
    dtype: str
    table: Any
    filters: Filters
    state: Any


@dataclass(frozen=True, eq=False)
class Located:
    """Sentences as slots of a GPU's token table, int32 (B, L) on its device. Valid until the table evicts a token."""

    slots: Any
