"""Switches: optimisations that a job or a model can run without, so that a report can measure how much each one
gains."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Literal, NamedTuple, cast, get_args

from tilewright.errors import UsageError, WrongType

Switch = Literal["pinned", "overlap", "graphs", "folding", "kv-cache", "prefix-sharing", "token-table"]
Without = frozenset[Switch]  # the optimisations that are switched off

JOBS = ("generate", "classify", "embed", "draw", "convolve")
ON_GPUS = ("generate", "classify", "draw", "convolve")
TABLE, WITHOUT_TABLE = "embedding_conv1d", {"cpu": "cpu.gather", "cuda": "simt.gather"}


class Optimisation(NamedTuple):
    """Where a switch has an effect. verbs, devices: those that have the optimisation. dtypes: accuracy classes that a
    GPU can compute without it; (): all. keeps_bits: the devices on which results have the same bits without it."""

    verbs: tuple[str, ...]
    devices: tuple[str, ...] = ("cpu", "cuda")
    dtypes: tuple[str, ...] = ()
    keeps_bits: tuple[str, ...] = ("cpu", "cuda")

    def fits(self, verb: str, device: str, dtype: str) -> bool:
        """True if the verb has the optimisation there, and can run without it."""
        can = device == "cpu" or not self.dtypes or dtype in self.dtypes
        return verb in self.verbs and device in self.devices and can


OPTIMISATIONS: dict[Switch, Optimisation] = {
    "pinned": Optimisation(ON_GPUS, ("cuda",)),
    "overlap": Optimisation(ON_GPUS, ("cuda",)),
    "graphs": Optimisation(("generate", "classify", "draw"), ("cuda",)),
    "folding": Optimisation(("draw",), keeps_bits=()),
    "kv-cache": Optimisation(("generate",), keeps_bits=("cpu",)),  # a GPU decodes by other kernels than it prefills
    "prefix-sharing": Optimisation(("generate", "score")),
    "token-table": Optimisation(("classify",), dtypes=("float32",), keeps_bits=()),
}


def switched_off(without: Collection[str], parameter: str = "without") -> Without:
    """The set of these names, not checked. Raises WrongType for one text."""
    if isinstance(without, str):
        raise WrongType(f'{parameter} is {without!r}; a set of names is wanted, as in {{"{get_args(Switch)[0]}"}}')
    return cast(Without, frozenset(without))


def check_switches(
    verb: str, without: Collection[str], device: str, dtype: str, *, parameter: str = "--without"
) -> None:
    """Raises UsageError for a name that is unknown, or if a job of the verb does not have that optimisation.

    device: "cpu" or "cuda". dtype: the accuracy class. parameter: the caller's name for `without`.
    """
    known = [name for name, each in OPTIMISATIONS.items() if each.fits(verb, device, dtype)]
    for name in sorted(switched_off(without, parameter) - set(known), key=str):
        if name not in OPTIMISATIONS:
            rule = f"it must be one of {', '.join(OPTIMISATIONS)}"
            raise UsageError(parameter=parameter, value=repr(name), rule=rule)
        rule = f"it has no effect on {verb} in {dtype} on {device}"
        if name == "token-table" and verb == "classify":
            rule = f"no kernel computes {dtype} on {device} without a token table"
        remedy = f"leave it out; here the switches are {', '.join(known)}" if known else "leave it out"
        raise UsageError(parameter=parameter, value=name, rule=rule, remedy=remedy)


def changing_bits(without: Collection[Switch], device: str) -> list[str]:
    """The switches among these that may change bits of results on the device, "cpu" or "cuda", sorted."""
    return sorted(name for name in without if device not in OPTIMISATIONS[name].keeps_bits)


def rungs_without(without: Collection[str], device: str, forced: Mapping[str, str]) -> dict[str, str]:
    """The rungs that the switches force, by operation. forced: those that the caller forces, by operation or layer.

    Raises UsageError if the caller forces another one.
    """
    if "token-table" not in without:
        return {}
    rung = WITHOUT_TABLE[device]
    for target, other in forced.items():
        if target.partition("@")[0] == TABLE and other != rung:
            rule = f"it runs {TABLE}={rung}, and the rung {target}={other} is forced"
            raise UsageError(parameter="--without", value="token-table", rule=rule, remedy="give only one of the two")
    return {TABLE: rung}
