"""`tilewright demo` runs the models that come with the package, then four jobs at full size, and checks the results."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tilewright.demo.course import course_file, sentences
from tilewright.errors import Cancelled, Interrupted

__all__ = ["FOLDER", "PROMPT", "Clock", "course_file", "run", "sentences"]

PROMPT = "To be, or not to be:"
FOLDER = Path("demo")  # below the current directory: the folder of the pictures
REVIEWS = "reviews.txt"  # in FOLDER: the reviews that critic has read, one per line
NEXT = (  # what a command does, and its words after `tilewright`
    ("verse from your own words", 'demo --prompt "My lord,"'),
    ("the three models and their limits", "models"),
    ("judge reviews, one per line", "classify --model critic -i {reviews} -o labels.jsonl"),
    ("draw faces, one picture each", "draw --model portraits -n 1000 --seed 2 -o faces/"),
    ("every kernel of one operation", "ladder matmul"),
    ("this machine, and what it lacks", "doctor"),
)

Say = Callable[[str], None]


class Clock:
    """Seconds since it was created, and how many of them were spent to compile kernels or to load them from the
    disk."""

    def __init__(self) -> None:
        self._start, self.compiling_s = time.perf_counter(), 0.0

    @property
    def total_s(self) -> float:
        """Seconds since it was created."""
        return time.perf_counter() - self._start

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """A block that runs kernels for the first time."""
        start = time.perf_counter()
        yield
        self.compiling_s += time.perf_counter() - start


def run(say: Say, *, prompt: str = PROMPT, folder: Path = FOLDER) -> bool:
    """Run verse from `prompt`, reviews, faces and a volume, then four jobs at full size. True if all checks passed.

    `say` gets lines as they come. Two pictures and the reviews stay in `folder`. Raises UsageError for a prompt that
    poet cannot continue, ResourceError if the machine refuses, Cancelled when it is stopped.
    """
    from tilewright.demo import course, named
    from tilewright.demo.ahead import compiling_ahead
    from tilewright.hardware import cpu
    from tilewright.runtime.kernel_cache import cache_or_none, first_run
    from tilewright.runtime.process.signals import stoppable

    clock = Clock()
    if notice := cache_or_none() or first_run():
        say(notice)
    try:
        with stoppable(), compiling_ahead():
            poet = named.poet_for(prompt)
            folder.mkdir(parents=True, exist_ok=True)
            say(f"tilewright on {cpu().name}, {cpu().cores} cores, vectors of {cpu().lanes} float32")
            named.verse(say, clock, poet, prompt)
            named.reviews(say, clock, folder / REVIEWS)
            named.faces(say, clock, folder / "faces.png")
            named.volume(say, clock, folder / "volume.png")
            say(course.ABOUT)
            passed = [job(say, clock) for job in (course.sentiment, course.text, course.images, course.volume)]
    except Interrupted as stop:
        raise Cancelled(
            "the demo was stopped: the pictures and reviews that it wrote are complete, and it left no other files"
        ) from stop
    kernels = f"{clock.compiling_s:.0f} s of it for compiling or loading kernels; only the first run compiles"
    say(f"\n{clock.total_s:.0f} s in all, {kernels}\n\n{following(folder)}")
    return all(passed)


def following(folder: Path) -> str:
    """The commands to try next, as they can be typed here."""
    name, width = program(), max(len(what) for what, _ in NEXT)
    commands = (words.format(reviews=folder / REVIEWS) for _, words in NEXT)
    lines = (f"  {what:<{width}}  {name} {words}" for (what, _), words in zip(NEXT, commands, strict=True))
    return "\n".join(["Next:", *lines])


def program() -> str:
    """How this `tilewright` is called here: by its name if the PATH leads to it, otherwise by a path."""
    own, found = Path(sys.executable).with_name("tilewright"), shutil.which("tilewright")
    if not own.exists():
        return f"{shlex.quote(sys.executable)} -m tilewright"
    if found and os.path.samefile(found, own):
        return "tilewright"
    below = os.path.relpath(own)
    return shlex.quote(str(own) if below.startswith("..") else below)
