"""--retry-failed: the shards with failed records are computed again, the others are reused."""

import os
from pathlib import Path

import pytest

import toy_jobs
from tilewright.errors import InputError, InternalError, UsageError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.engines.local import Local
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.settings import Settings

RETRY = Settings(engine="local", retry_failed=True)


def test_a_record_that_was_bad_for_a_reason_that_is_gone(place):
    """As after more memory: the output is that of a job in which all records were good."""
    report = run(place.task(trouble={6: ("raise", 9)}), place.output, Local(2))
    without = place.squares[:48] + place.squares[56:]
    place.check(without)
    assert report.errors == 1 and run(place.task(), place.output, Local(2)).computed == 0  # its shard is final
    with pytest.raises(InputError):
        run(place.task(trouble={5: ("error", 1)}), place.output, Local(2), RETRY)
    place.check(without)  # the output stays until a better one is complete
    better = run(place.task(), place.output, Local(2), RETRY)
    assert (better.computed, better.shards, better.errors) == (1, 10, 0)
    place.check()
    assert verify(place.output).intact and os.listdir(f"{place.output}.job/errors") in ([], ["00001.jsonl"])
    assert run(place.task(), place.output, Local(2), RETRY).computed == 0


def test_a_record_that_is_bad_again(place):
    """Only its shard runs. Its error counts once."""
    Path(place.input).write_bytes(b"line\n" * 40 + b"bad\n" + b"line\n" * 40)
    task = toy_jobs.Upper(place.input)
    first = run(task, place.output, Local(2))
    content = Path(place.output).read_bytes()
    again = run(task, place.output, Local(2), Settings(engine="local", retry_failed=True, max_errors=1))
    assert (first.errors, again.errors, again.computed, again.sha256) == (1, 1, 1, first.sha256)
    assert Path(place.output).read_bytes() == content and verify(place.output).intact


def test_a_job_that_too_many_errors_stopped(place):
    """The missing shards run, too."""
    with pytest.raises(InternalError):
        run(place.task(trouble={6: ("raise", 9)}), place.output, Local(1), Settings(engine="local", max_errors=0))
    done = len(place.parts())
    report = run(place.task(), place.output, Local(1), Settings(engine="local", max_errors=0, retry_failed=True))
    assert 1 <= done < 10 and report.computed == 10 - done + 1
    place.check()


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        (
            Settings(retry_failed=True),
            "engine is 'inline'; --retry-failed needs an engine that replaces workers that die",
        ),
        (Settings(retry_failed=True, engine="mpi"), "engine is 'mpi'; --retry-failed needs an engine that replaces"),
        (Settings(retry_failed=True, engine="local", restart=True), "and --restart computes others"),
        (Settings(retry_failed=True, engine="local", part=(0, 2)), "and --part computes others"),
        (RETRY, "no shard of this job is computed yet, so no record has failed"),
    ],
)
def test_what_cannot_be_tried_again(place, settings, why):
    with pytest.raises(UsageError, match=why):
        run(place.task(), place.output, Inline(), settings)
    assert sorted(os.listdir(place.path)) == ["in", "notes"]
