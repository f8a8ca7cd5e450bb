"""metrics.prom, read by a small parser of Prometheus' text format."""

import os
import re
from pathlib import Path

import pytest

import toy_jobs
from tilewright.errors import InputError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.engines.local import Local
from tilewright.runtime.jobs.directory import JobDirectory
from tilewright.runtime.jobs.metrics import EVERY, METRICS, Metrics
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.task import Watch

SAMPLE = re.compile(r'(tilewright_job_\w+)\{output="((?:[^"\\\n]|\\["\\n])*)"\} (\d+(?:\.\d+)?(?:e[+-]\d+)?)')


def parsed(text):
    """Metric -> (value, label), without the prefix. Each has its HELP and its TYPE before its only sample."""
    found = {}
    lines = text.split("\n")
    assert lines.pop() == "" and len(lines) % 3 == 0
    for told, kind, sample in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        name, label, value = SAMPLE.fullmatch(sample).groups()
        assert told.startswith(f"# HELP {name} ") and kind == f"# TYPE {name} gauge" and name not in found
        found[name.removeprefix("tilewright_job_")] = float(value), label
    return found


def read(place):
    """The values of a job's file."""
    path = Path(f"{place.output}.job/{METRICS}")
    return {name: value for name, (value, _) in parsed(path.read_text()).items()}


def test_a_job(place):
    place.fill(42)
    Path(place.input).write_bytes(b"line\n" * 99 + b"bad\n")
    report = run(toy_jobs.Upper(place.input), place.output, Local(2))
    found = read(place)
    assert found.pop("seconds") > 0 and found.pop("records_per_second") > 0 and found.pop("workers") in (1, 2)
    assert found == {
        "shards": report.shards, "shards_done": report.shards, "records": 100, "errors": 1, "running": 0, "finished": 1,
    }  # fmt: skip


def test_a_job_that_ends_early_and_is_resumed(place):
    with pytest.raises(InputError):
        run(place.task(trouble={21: ("error", 1)}), place.output, Inline())
    found = read(place)
    assert (found["shards"], found["shards_done"], found["records"]) == (10, 5, 20)
    assert (found["running"], found["finished"]) == (0, 0)
    run(place.task(), place.output, Inline())
    found = read(place)
    assert (found["shards_done"], found["records"], found["workers"], found["finished"]) == (10, 40, 1, 1)
    before = os.stat(f"{place.output}.job/{METRICS}").st_mtime_ns
    run(place.task(), place.output, Inline())  # nothing to do: it still tells of the last run
    assert os.stat(f"{place.output}.job/{METRICS}").st_mtime_ns == before
    place.check()


def test_while_it_runs(place):
    """The file changes every few seconds, and counts the records of running shards in the rate."""
    now, seen = [100.0], []

    class Slow(Watch):
        def at_work(self, worker, done, share=None):
            now[0] += 1.0
            seen.append(Path(place.path, "out.job", METRICS).exists() and read(place)["seconds"])

    with JobDirectory(place.output, make=True) as directory:
        metrics = Metrics(directory, Slow(), lambda: now[0])
        for done in range(1, 13):
            metrics.at_work(0, done)
        assert read(place) == {
            "shards": 0, "shards_done": 0, "records": 0, "errors": 0, "workers": 1, "seconds": 2 * EVERY,
            "records_per_second": 1.1, "running": 1, "finished": 0,
        }  # fmt: skip
    assert seen == [0.0] * 5 + [5.0] * 5 + [10.0] * 2


def test_a_part_writes_none(place):
    run(place.task(), place.output, Inline(), Settings(part=(0, 2)))
    assert METRICS not in os.listdir(f"{place.output}.job")


def test_the_name_of_the_output(tmp_path):
    name = 'a "b" \\ \n\xff.bin'
    with JobDirectory(f"{tmp_path}/{name}", make=True) as directory:
        found = parsed(Metrics(directory, Watch()).text(running=True, finished=False))
    for _, label in found.values():
        assert re.sub(r"\\(.)", lambda it: {"n": "\n"}.get(it[1], it[1]), label) == f"{tmp_path}/{name}"


def test_a_file_that_cannot_be_written(place):
    """The job goes on without it."""
    run(place.task(), place.output, Inline(), Settings(part=(0, 1)))
    os.mkdir(f"{place.output}.job/{METRICS}")
    run(place.task(), place.output, Inline())
    place.check()
