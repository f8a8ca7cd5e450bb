"""Plain lines every few seconds where there is no terminal, a bar where there is one; one for all workers of a job."""

import errno
import io
from types import SimpleNamespace

import pytest

from tilewright.runtime import progress as module
from tilewright.runtime.jobs.cut import Lines, Records, Whole
from tilewright.runtime.progress import JobProgress, amount, duration


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def clock(monkeypatch):
    now = [100.0]
    monkeypatch.setattr(module.time, "perf_counter", lambda: now[0])
    return now


class Full(io.StringIO):
    def write(self, text):
        raise OSError(errno.ENOSPC, "No space left on device")


class FullTerminal(Terminal, Full):
    pass


@pytest.mark.parametrize("kind", [Full, FullTerminal])
def test_a_stream_that_cannot_be_written_stops_nothing(clock, kind):
    with JobProgress("sentences", kind()) as watch:
        watch.begin(Records(0, 10, 10))
        watch.at_work(0, 1)
        for seconds in (6, 12, 18):
            clock[0] = 100 + seconds
            watch.at_work(0, 5)
    assert watch._lost


def test_bar():
    stream = Terminal()
    with JobProgress("sentences", stream) as watch:
        watch.begin(Records(0, 10, 10))
        watch.at_work(0, 5)
    assert "50%" in stream.getvalue() and "sentences/s" in stream.getvalue()


def test_after_a_request_to_stop_the_time_of_the_stop_is_shown(clock):
    stream, left = io.StringIO(), [float("inf")]
    with JobProgress("sentences", stream, stops_in=lambda: left[0]) as watch:
        watch.begin(Records(0, 100, 20))
        watch.at_work(0, 1)
        for left[0] in (float("inf"), 12.0):
            clock[0] += 10
            watch.at_work(0, 5)
    running, stopping = stream.getvalue().splitlines()
    assert running.endswith(" left") and stopping.endswith(", stopping within 12 s")


def shard(number, records):
    return SimpleNamespace(shard=number, records=records, finished=1.0, seconds=1.0, figures={})


def test_all_workers_of_a_job(clock):
    """The first run did 20 records; this one begins 10 s after its start, from when on there is a line every 5 s."""
    stream = io.StringIO()
    with JobProgress("prompts", stream) as watch:
        watch.begin(Records(0, 100, 20))
        watch.committed(shard(0, 20), None)
        clock[0] = 110
        watch.at_work(0, 0)  # no line: there is nothing to say yet
        watch.at_work(1, 0)
        clock[0] = 112
        watch.committed(shard(1, 20), 0)
        clock[0] = 116
        watch.at_work(1, 0)
        watch.at_work(1, 4)
        clock[0] = 122
        watch.at_work(1, 20)
        clock[0] = 128
        watch.committed(shard(2, 20), 1)  # the same records
    assert stream.getvalue().splitlines() == [
        "40 of 100 prompts (40%), 3.3 prompts/s, 6 s, 18 s left; by worker 3.3 0",
        "60 of 100 prompts (60%), 3.3 prompts/s, 12 s, 12 s left; by worker 1.7 1.7",
        "60 of 100 prompts (60%), 2.2 prompts/s, 18 s, 18 s left; by worker 1.1 1.1",
    ]


def test_the_last_shard_is_as_large_as_what_is_left(clock):
    """A tenth of it is 10 of 1,100, not of the size of a whole one; a shard that is run again begins anew."""
    stream = io.StringIO()
    with JobProgress("prompts", stream) as watch:
        watch.begin(Records(0, 1100, 1000))
        for seconds, share in ((0, 0.0), (10, 0.9), (20, 0.45)):
            clock[0] = 100 + seconds
            watch.at_work(0, 0, share)
        watch.committed(shard(0, 1000), 0)
        for seconds, share in ((90, 0.1), (100, 0.5)):
            clock[0] = 100 + seconds
            watch.at_work(0, 0, share)
    percent = [line.split("(")[1].split()[0] for line in stream.getvalue().splitlines()]
    assert percent == ["82%", "41%", "92%", "95%"]


def test_sentences_end_one_after_the_other(clock):
    """Their rate is told beside the share of the bytes."""
    stream = io.StringIO()
    with JobProgress("sentences", stream) as watch:
        watch.begin(Lines(400, 400))
        watch.at_work(0, 0, 0.0)
        clock[0] = 106
        watch.at_work(0, 30, 0.25)
    assert stream.getvalue() == "30 sentences (25%), 5 sentences/s, 6 s, 18 s left\n"


def test_text_of_which_nobody_knows_the_lines(clock):
    """The share is that of bytes: 100 of 400, and 10 lines of the shard at work, each like the 20 before: 50 more."""
    stream = io.StringIO()
    with JobProgress("prompts", stream) as watch:
        watch.begin(Lines(400, 100))
        watch.at_work(0, 0)
        watch.committed(shard(0, 20), 0)
        clock[0] = 106
        watch.at_work(0, 10)
        watch.at_work(0, 0)  # a sign of life that counts nothing takes nothing back
        clock[0] = 112
        watch.at_work(0, 0)
    assert stream.getvalue().splitlines() == [
        "30 prompts (38%), 5 prompts/s, 6 s, 10 s left",
        "30 prompts (38%), 2.5 prompts/s, 12 s, 20 s left",
    ]


def test_prompts_that_end_together(clock):
    """What the worker says of its shard counts, of two as large; no rate is told of prompts that end together."""
    stream = io.StringIO()
    with JobProgress("prompts", stream) as watch:
        watch.begin(Lines(400, 200))
        watch.at_work(0, 0, 0.0)  # no line: nothing is done yet
        for seconds, done, share in ((5, 0, 0.02), (10, 0, 0.5), (15, 0, None), (16, 0, 0.4), (20, 2, 1.0)):
            clock[0] = 100 + seconds
            watch.at_work(0, done, share)
        clock[0] = 126
        watch.committed(shard(0, 20), 0)
    assert stream.getvalue().splitlines() == [
        "0 prompts (1% of the work), 5 s, about 8 min left",
        "0 prompts (25% of the work), 10 s, 30 s left",
        "0 prompts (25% of the work), 15 s, 45 s left",
        "2 prompts (50% of the work), 20 s, 20 s left",
        "20 prompts (50%), 0.77 prompts/s, 26 s, 26 s left",
    ]


def test_many_workers(clock):
    stream = io.StringIO()
    with JobProgress("images", stream) as watch:
        watch.begin(Records(0, 900, 1))
        for worker in range(9):
            watch.at_work(worker, 0)
        for worker in range(9):
            clock[0] = 104 + 6 * (worker == 8)
            watch.at_work(worker, 10 * (worker + 1))
    assert stream.getvalue().splitlines() == [
        "450 of 900 images (50%), 45 images/s, 10 s, 10 s left; 9 workers, 1 to 9 each",
    ]


def test_a_job_on_a_terminal():
    stream = Terminal()
    with JobProgress("images", stream) as watch:
        watch.begin(Whole())
        watch.committed(shard(0, 7), 0)
    assert "100%" in stream.getvalue() and "images/s" in stream.getvalue()


def test_figures():
    assert [amount(rate) for rate in (0.0, 3.456, 1234.5)] == ["0", "3.5", "1,234"]
    assert [duration(s) for s in (0.4, 100, 1000, 10000)] == ["0 s", "100 s", "17 min", "2.8 h"]
