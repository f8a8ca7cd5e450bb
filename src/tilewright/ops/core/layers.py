"""Layers of a model, so that a rung can be forced for one of them: "conv_transpose2d@3" is the third call of it.

A model numbers its calls of an operation from 1 in the order of its forward pass, and passes the number to `layer`.
Calls inside an operation's rung have no number, unless the rung numbers them itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextvars import ContextVar, Token
from types import MappingProxyType

from tilewright.errors import UsageError, counted

_NONE: Mapping[str, int] = MappingProxyType({})
_current: ContextVar[Mapping[str, int]] = ContextVar("layer", default=_NONE)


class layer:
    """Within `with layer(conv_transpose2d=3):`, calls of this operation belong to the model's third layer.

    It replaces an outer `layer` block: operations that run inside this one have no number.
    """

    __slots__ = ("numbers", "token")

    def __init__(self, **numbers: int):
        self.numbers = numbers

    def __enter__(self) -> None:
        self.token: Token = _current.set(self.numbers)

    def __exit__(self, *error: object) -> None:
        _current.reset(self.token)


def target_of(op: str, rungs: Mapping[str, object]) -> str:
    """The key in `rungs` that applies to `op` now: "op@n" if `rungs` has one for the current layer n, otherwise
    `op`."""
    number = _current.get().get(op)
    target = f"{op}@{number}"
    return target if number and target in rungs else op


def split_target(target: str) -> tuple[str, int | None]:
    """Split "conv_transpose2d@3" into ("conv_transpose2d", 3). Without a layer the number is None.

    Raises UsageError for an invalid number.
    """
    op, at, number = target.partition("@")
    if not at:
        return op, None
    if not (number.isascii() and number.isdigit() and len(number) <= 9 and int(number)):
        what = f"{target}: the layer {number!r} must be a number from 1"
        raise UsageError(what, remedy=f"write {op}@1 for the first call of {op}")
    return op, int(number)


def wrong_layers(targets: Mapping[str, object], calls: Mapping[str, int]) -> Iterator[tuple[str, str]]:
    """Yield (target, error) for layers that a model does not have. calls: how often it calls each operation."""
    for target in targets:
        op, number = split_target(target)
        if number is None:
            continue
        if op not in calls:
            has = f"those of {', '.join(calls)} are" if calls else "none are"
            yield target, f"its calls of {op} are not numbered as layers; {has}"
        elif number > calls[op]:
            yield target, f"it calls {op} {counted(calls[op], 'time')}"
