"""`tilewright demo`: the models that come with the package at work, then the course's jobs at full size, checked."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tilewright.demo.course import course_file, sentences
from tilewright.errors import Cancelled, Interrupted

__all__ = ["FOLDER", "PROMPT", "Clock", "course_file", "run", "sentences"]

PROMPT = "To be, or not to be:"
FOLDER = Path("demo")  # of the current directory: the pictures
NEXT = """Next:
  tilewright demo --prompt "My lord,"                          verse from words of yours
  tilewright models                                            the three models, what they are good for and what not
  tilewright classify --model critic -i reviews.txt -o labels.jsonl      a sentence a line
  tilewright draw --model portraits -n 1000 --seed 2 -o faces/           a picture a face
  tilewright ladder matmul                                     every kernel of an operation, from naive to fast
  tilewright doctor                                            this machine, and what is missing on it"""

Say = Callable[[str], None]


class Clock:
    """Seconds since it was made, and how many of them kernels took to compile, or to be fetched from the disk."""

    def __init__(self) -> None:
        self._start, self.compiling_s = time.perf_counter(), 0.0

    @property
    def total_s(self) -> float:
        """Since it was made."""
        return time.perf_counter() - self._start

    @contextmanager
    def compiling(self) -> Iterator[None]:
        """The block runs kernels for the first time."""
        start = time.perf_counter()
        yield
        self.compiling_s += time.perf_counter() - start


def run(say: Say, *, prompt: str = PROMPT, folder: Path = FOLDER) -> bool:
    """Verse from `prompt`, reviews, faces and a volume, then each of the course's jobs; True if all checks passed.

    `say` gets lines as they come. Two pictures stay in `folder`. Raises UsageError for a prompt that the poet cannot
    continue, ResourceError where the machine refuses, Cancelled when it is stopped.
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
            named.reviews(say, clock)
            named.faces(say, clock, folder / "faces.png")
            named.volume(say, clock, folder / "volume.png")
            say(course.ABOUT)
            passed = [job(say, clock) for job in (course.sentiment, course.text, course.images, course.volume)]
    except Interrupted as stop:
        raise Cancelled(
            "the demo was stopped: the pictures that it named are complete, and it left no other files"
        ) from stop
    kernels = f"{clock.compiling_s:.0f} s compiling or loading kernels, which are compiled the first time only"
    say(f"\n{clock.total_s:.0f} s, of which {kernels}\n\n{NEXT}")
    return all(passed)
