"""Finds forced rungs (kernels) that a job never uses. Such a rung is refused before the job, or reported at its end.

A job runs the operations of its model, and the operations that their rungs call. With some settings an operation does
not run. Then the verb's task names it, and the operation that runs instead. A rung may be forced for an operation, or
for one layer of the model ("matmul@2"); see `ops.core.layers`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from importlib import import_module
from typing import NamedTuple

from tilewright.errors import UsageError
from tilewright.ops.core.ladder import Ladder, Rung
from tilewright.ops.core.layers import split_target, wrong_layers

OPERATIONS = {  # that a verb's model may call; the `calls` of their rungs name further operations
    "classify": ("embedding_conv1d", "matmul", "embedding", "layernorm", "attention"),
    "embed": ("matmul", "embedding", "layernorm", "attention", "pool"),
    "generate": ("embedding", "layernorm", "rope", "attention", "matmul", "matmul_argmax", "sample"),
    "score": ("embedding", "layernorm", "rope", "attention", "matmul", "logprob"),
    "draw": ("matmul", "conv_transpose2d", "batchnorm"),
    "convolve": ("conv3d", "correlate"),
}


class Idle(NamedTuple):
    """The reason why a job does not run an operation.

    when: the setting, as in "at temperature 0". instead: the operation that runs. remedy: what to change, so that the
    operation runs.
    """

    when: str
    instead: str
    remedy: str


def without_rope(calls: Mapping[str, int]) -> dict[str, Idle]:
    """Returns `rope` as an idle operation if the decoder does not call it. calls: see `check_rungs`."""
    when = "in a model whose positions are a table"
    return {} if "rope" in calls else {"rope": Idle(when, "embedding", "leave it out")}


def check_operations(verb: str, rungs: Mapping[str, str]) -> None:
    """Raises UsageError for a rung of an operation that the verb never runs."""
    everywhere = {op: tuple(_ladder(op).rungs.values()) for op in OPERATIONS[verb]}
    runs = [*OPERATIONS[verb], *_beneath(everywhere)]
    for target, name in rungs.items():
        if split_target(target)[0] not in runs:
            rule = f"it has no effect: {verb} runs {', '.join(dict.fromkeys(runs))}"
            raise _refusal(target, name, rule, "leave it out, or force a rung of one of these")


def check_rungs(
    verb: str,
    rungs: Mapping[str, str],
    device: str,
    idle: Mapping[str, Idle] | None = None,
    calls: Mapping[str, int] | None = None,
) -> None:
    """Raises UsageError for a rung of an operation, or of a layer, that a job with these settings does not run.

    device: "cpu" or "cuda". idle: operations that do not run with the job's settings. calls: how often the model calls
    each operation in a forward pass; without it no rung can be forced for one layer.
    """
    check_operations(verb, rungs)
    idle, calls = idle or {}, calls or {}
    for target, what in wrong_layers(rungs, calls):
        op = split_target(target)[0]
        remedy = f"choose a layer from {op}@1 to {op}@{calls[op]}" if op in calls else f"write {op}={rungs[target]}"
        raise _refusal(target, rungs[target], f"{verb} has no such layer: {what}", remedy)
    running = {op: _candidates(op, rungs, device, calls.get(op, 0)) for op in OPERATIONS[verb] if op not in idle}
    beneath = set(_beneath(running))
    for target, name in rungs.items():
        op = split_target(target)[0]
        if op in running or op in beneath:
            if target == op and op not in beneath and len(_of_layers(op, rungs)) == calls.get(op):
                rule = f"it has no effect: each layer of {op} has a rung of its own"
                raise _refusal(target, name, rule, "leave it out")
            continue
        if op in idle:
            when, instead, remedy = idle[op]
            raise _refusal(target, name, f"it has no effect {when}: {verb} runs {instead} instead", remedy)
        raise _refusal(target, name, *_only_beneath(verb, op, device))


def _only_beneath(verb: str, op: str, device: str) -> tuple[str, str]:
    """(rule, remedy) for the error that the job's rungs do not call `op`, although other rungs would."""
    callers = _callers(verb, op)
    here = [f"{above}={rung.name}" for above, rung in callers if _runs_on(rung, device)]
    named = " or ".join(here or [f"{above}={rung.name}" for above, rung in callers])
    rule = f"it has no effect: {verb} runs {op} only beneath {named}"
    also = f"give --rung {here[0]}, too, or leave it out" if here else f"leave it out: none of them runs on {device}"
    return rule, also


def _ladder(op: str) -> Ladder:
    return import_module(f"tilewright.ops.{op}.ladder").ladder


def _candidates(op: str, forced: Mapping[str, str], device: str, layers: int) -> tuple[Rung, ...]:
    """The rungs of `op` that may run on the device.

    These are the rungs forced for layers, and for the other layers the rung forced for the operation, or else the
    default ones. layers: the number of layers; 0: they are not numbered.
    """
    rungs, own = _ladder(op).rungs, _of_layers(op, forced)
    named = tuple(rungs[name] for name in dict.fromkeys(own))
    if own and len(own) == layers:
        return named
    if op in forced:
        return (*named, rungs[forced[op]])
    return (*named, *(rung for rung in rungs.values() if rung.chosen and _runs_on(rung, device)))


def _of_layers(op: str, forced: Mapping[str, str]) -> list[str]:
    """The rungs that are forced for layers of `op`, one per layer."""
    return [name for target, name in forced.items() if target != op and split_target(target)[0] == op]


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


def _refusal(target: str, name: str, rule: str, remedy: str) -> UsageError:
    return UsageError(parameter="--rung", value=f"{target}={name}", rule=rule, remedy=remedy)
