"""Finds forced rungs that a job never uses: it refuses them before the work or names them at the end. None is ignored.

A job runs the operations of its model, and those that their rungs call. Its settings may leave some of them idle: the
verb's task says which, and what runs instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from typing import NamedTuple

from tilewright.errors import UsageError
from tilewright.ops.core.ladder import Ladder, Rung

OPERATIONS = {  # of a verb's model, with one setting or another; a rung's `calls` names those beneath them
    "classify": ("embedding_conv1d", "matmul"),
    "generate": ("embedding", "layernorm", "attention", "matmul", "matmul_argmax", "sample"),
    "draw": ("matmul", "conv_transpose2d", "batchnorm"),
    "convolve": ("conv3d", "correlate"),
}


class Idle(NamedTuple):
    """Why a job does not run an operation. when: the setting, as in "at temperature 0". instead: the operation that
    runs. remedy: what to change, so that the operation runs."""

    when: str
    instead: str
    remedy: str


def check_operations(verb: str, rungs: Mapping[str, str]) -> None:
    """Raises UsageError for a rung of an operation that the verb does not run with any settings."""
    everywhere = {op: tuple(_ladder(op).rungs.values()) for op in OPERATIONS[verb]}
    runs = [*OPERATIONS[verb], *_beneath(everywhere)]
    for op, name in rungs.items():
        if op not in runs:
            rule = f"it has no effect: {verb} runs {', '.join(dict.fromkeys(runs))}"
            raise _refusal(op, name, rule, "leave it out, or force a rung of one of these")


def check_rungs(verb: str, rungs: Mapping[str, str], device: str, idle: Mapping[str, Idle] | None = None) -> None:
    """Raises UsageError for a rung of an operation that a job with these settings does not run.

    device: "cpu" or "cuda". idle: operations of the verb that its settings leave idle.
    """
    check_operations(verb, rungs)
    idle = idle or {}
    running = {op: _candidates(op, rungs.get(op), device) for op in OPERATIONS[verb] if op not in idle}
    beneath = set(_beneath(running))
    for op, name in rungs.items():
        if op in running or op in beneath:
            continue
        if op in idle:
            when, instead, remedy = idle[op]
            raise _refusal(op, name, f"it has no effect {when}: {verb} runs {instead} instead", remedy)
        callers = _callers(verb, op)
        here = [f"{above}={rung.name}" for above, rung in callers if _runs_on(rung, device)]
        named = " or ".join(here or [f"{above}={rung.name}" for above, rung in callers])
        rule = f"it has no effect: {verb} runs {op} only beneath {named}"
        also = (
            f"give --rung {here[0]}, too, or leave it out" if here else f"leave it out: none of them runs on {device}"
        )
        raise _refusal(op, name, rule, also)


def _ladder(op: str) -> Ladder:
    return import_module(f"tilewright.ops.{op}.ladder").ladder


def _candidates(op: str, forced: str | None, device: str) -> tuple[Rung, ...]:
    """The rungs that may run on the device: the forced one, or else the chosen ones."""
    rungs = _ladder(op).rungs
    if forced is not None:
        return (rungs[forced],)
    return tuple(rung for rung in rungs.values() if rung.chosen and _runs_on(rung, device))


def _callers(verb: str, op: str) -> list[tuple[str, Rung]]:
    """The rungs of the verb's operations that call `op`, each after its operation."""
    return [(above, rung) for above in OPERATIONS[verb] for rung in _ladder(above).rungs.values() if op in rung.calls]


def _runs_on(rung: Rung, device: str) -> bool:
    return rung.name.startswith("cpu.") == (device == "cpu")


def _beneath(running: Mapping[str, Collection[Rung]]) -> Iterator[str]:
    """The operations that these rungs call."""
    for rungs in running.values():
        for rung in rungs:
            yield from rung.calls


def _refusal(op: str, name: str, rule: str, remedy: str) -> UsageError:
    return UsageError(parameter="--rung", value=f"{op}={name}", rule=rule, remedy=remedy)
