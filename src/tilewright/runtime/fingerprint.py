"""The fields that the fingerprints of all verbs have: device class, dtype, rungs, version. `in_force` applies a job's
threads and rungs in a process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from tilewright.errors import UsageError
from tilewright.ops.core.ladder import forced, forcing
from tilewright.ops.core.launch import asked_threads, threads
from tilewright.runtime.devices import class_elsewhere, place_for
from tilewright.runtime.jobs.manifest import SWITCHES, Value
from tilewright.runtime.jobs.settings import Settings
from tilewright.switches import changing_bits, rungs_without

EXACT = ("amx-bf16", "avx512bf16")  # CPU features with which kernels round differently


@contextmanager
def in_force(settings: Settings) -> Iterator[None]:
    """Within the block, kernels run on the settings' number of threads, and the settings' rungs are forced.

    Raises UsageError for an unknown operation or for fewer than 1 thread, and Refused for an unknown rung.
    """
    count = asked_threads() if settings.threads is None else settings.threads
    with forcing(**settings.rungs), threads(count):
        yield


def as_called(settings: Settings) -> Settings:
    """The settings with defaults filled in.

    The device "auto" is resolved. Rungs and threads of the caller's `with` blocks, and rungs that --without forces, are
    added. Raises what `in_force` and `place_for` raise, and UsageError for a batch of fewer than 1 record.
    """
    if settings.batch_size is not None and settings.batch_size < 1:
        raise UsageError(f"batch_size is {settings.batch_size}; it must be at least 1")
    device = place_for(settings.device, settings.dtype or "float32")
    with in_force(settings):
        rungs = forced()
        rungs |= rungs_without(settings.without, device, rungs)
        return replace(settings, device=device, rungs=rungs, threads=asked_threads())


def fingerprint(verb: str, settings: Settings, dtype: str) -> dict[str, Value]:
    """The fields on which the results of every verb depend. dtype: the accuracy class."""
    fields: dict[str, Value] = {"verb": verb, "version": own_version(), "dtype": dtype}
    fields["device"] = device_class(settings.device)
    if settings.without:
        fields[SWITCHES] = [*sorted(settings.without)]
    if changed := changing_bits(settings.without, settings.device):
        fields["without"] = [*changed]
    return fields | {f"rung.{op}": name for op, name in sorted(settings.rungs.items())}


def device_class(device: str) -> str:
    """A name for all hardware that gives the same bits, such as "cpu, 16 lanes, amx-bf16" or "cuda 9.0".

    device: "cpu" or "cuda".
    """
    from tilewright.hardware import cpu, gpus

    if device == "cuda":
        if known := class_elsewhere():
            return known
        return "cuda " + ".".join(map(str, gpus()[0].capability)) if gpus() else "cuda"
    names = [name for name in EXACT if cpu().has(name)]
    if names == ["avx512bf16"] and not cpu().multiplies_pairs:
        names.append("float32 products")
    return ", ".join([f"cpu, {cpu().lanes} lanes", *names])


def own_version() -> str:
    """The version of tilewright; "" if it runs from its sources without an installation."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("tilewright")
    except PackageNotFoundError:
        return ""
