"""The whole process group killed at random times, what must not matter changed at each resume: the same bytes."""

import collections
import os
import shutil
import time
from pathlib import Path

import pytest

from tilewright.runtime.jobs.merge import verify


def repeat_until_killed(place, kill_group, rng, kills, task):
    """Runs jobs, killing each at random times until it is done, as often as `kills` in all; yields after each."""
    done = 0
    while done < kills:
        for path in (f"{place.output}.job", place.output, f"{place.notes}/log"):
            shutil.rmtree(path) if os.path.isdir(path) else Path(path).unlink(missing_ok=True)
        lost = 0  # workers at the time of a kill, each with a shard
        while True:
            workers = int(rng.integers(1, 4))
            engine = "inline" if rng.random() < 0.2 else workers
            options = {"shard_size": int(rng.integers(3, 6)) * (1 if task == "squares" else 16)}
            process = place.start(engine=engine, task=task, options=options, knobs={"slow": 0.004})
            before, until = len(place.begun()), time.monotonic() + 300
            while len(place.begun()) == before and process.poll() is None:
                assert time.monotonic() < until
                time.sleep(0.002)
            time.sleep(rng.random() * 0.3)
            finished = process.poll() is not None
            kill_group(process)
            if finished:
                assert process.returncode in (0, 1), process.returncode
                break
            done += 1
            lost += workers
        yield collections.Counter(shard for shard, _, _ in place.begun()), lost


@pytest.mark.parametrize(
    "kills", [3, pytest.param(100, marks=pytest.mark.long), pytest.param(500, marks=pytest.mark.long)]
)
@pytest.mark.parametrize("task", ["squares", pytest.param("upper", marks=pytest.mark.long)])
def test_kills_at_random_times(place, kill_group, rng, task, kills):
    place.fill(400)
    expected = place.squares
    if task == "upper":
        words = [b"bad" if n % 17 == 0 else b"line %d" % n for n in range(400)]
        Path(place.input).write_bytes(b"\n".join(words))
        lines = [b"!" if word == b"bad" else word.upper() for word in words]
        expected = b"# 400 lines, 24 bad\n" + b"".join(b"%d %s\n" % (n, line) for n, line in enumerate(lines, 1))
    for begun, lost in repeat_until_killed(place, kill_group, rng, kills, task):
        place.check(expected)
        assert verify(place.output).intact
        assert sum(begun.values()) - len(begun) <= lost, "more than a shard a worker and kill was run again"
        assert sorted(begun) == list(range(len(begun)))
