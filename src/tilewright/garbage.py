"""Makes Python's garbage collector skip what a job has loaded.

A full collection visits all objects that can refer to others. A process with a model and its libraries has 100,000 to
500,000 of them, which takes 0.05 to 0.3 seconds, and records that come and go cause a full collection every few
thousand records. Objects that are exempt ("frozen") are not visited. They are still freed when nothing refers to them.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

FEW = 1000  # CPython 3.12 itself exempts 375 objects
NEW_OBJECTS = (
    50_000  # before a garbage collection while a command starts; with Python's own 700 it takes a tenth longer
)
USUAL = gc.get_threshold()


def collect_rarely() -> None:
    """Collect garbage less often, until `loaded_exempt` begins."""
    gc.set_threshold(NEW_OBJECTS)


def exempt_all() -> None:
    """Exempt all objects from the collections at the end of Python."""
    gc.freeze()


def exempt_loaded() -> None:
    """Exempt the objects that the next full collection leaves. For a process that only runs shards. It waits for that
    collection because garbage of the loading would be exempt too, and a process with little work needs none."""
    if _exempt_once not in gc.callbacks:
        gc.callbacks.append(_exempt_once)


def _exempt_once(phase: Literal["start", "stop"], info: dict[str, int]) -> None:
    """A callback of the garbage collector: after a full collection it exempts what is left and removes itself."""
    if phase == "stop" and info["generation"] == 2:
        own = gc.callbacks.index(_exempt_once)
        del gc.callbacks[own]
        gc.freeze()
        if own < len(gc.callbacks):  # CPython goes on with the next index and so skips the callback that moved here
            gc.callbacks[own](phase, info)


@contextmanager
def loaded_exempt() -> Iterator[None]:
    """Exempt the objects that exist now until the end of the block, unless the program has exempted objects itself.
    From now on garbage is collected as often as usual.

    Garbage among them is freed after the block. At its end no object of the process is exempt, whoever exempted it.
    """
    if gc.get_threshold()[0] == NEW_OBJECTS:
        gc.set_threshold(*USUAL)
    if gc.get_freeze_count() > FEW:
        yield
        return
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
