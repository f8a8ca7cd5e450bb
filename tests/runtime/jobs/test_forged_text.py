"""Files of a text's job that were edited and sealed anew: lines, ids and counts are those of an undisturbed run."""

import hashlib
import json
import os
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tilewright.runtime.jobs.cut import ENTRY, LineIndex
from tilewright.runtime.jobs.directory import INDEX, REPORT, JobDirectory, error_name, part_name
from tilewright.runtime.jobs.manifest import seal
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.start import Settings
from tilewright.runtime.verbs.classify import ClassifyJob, classify

LINES = 60
COUNTS = {
    "more lines": lambda count: count + 3,
    "no lines": lambda count: 0,
    "more than any file has": lambda count: 2**62,
}


@pytest.fixture(params=["ids", "no ids"])
def finished(request, verbs, tmp_path):
    """(job, its report, its output) of `classify` in a few shards; with ids, one is given twice."""
    rng, path = np.random.default_rng(5), tmp_path / "in.jsonl"
    rows = [{"tokens": row} for row in rng.integers(0, 50, (LINES, 6)).tolist()]
    if request.param == "ids":
        rows = [{"id": min(i, LINES - 9), **row} for i, row in enumerate(rows)]
    lines = [json.dumps(row) for row in rows]
    lines[LINES - 20] = "{"
    path.write_text("\n".join(lines) + "\n")
    job = ClassifyJob(str(verbs / "textcnn"), str(path), str(tmp_path / "out.jsonl"), settings=Settings(shard_size=500))
    report = classify(job)
    assert report.job["shards"] > 3
    return job, report, Path(job.output).read_bytes()


def unfinish(job, *shards):
    """The job as it is when these shards are still to compute, or all are there and the output is not."""
    os.unlink(f"{job.output}.job/{REPORT}")
    os.unlink(job.output)
    for number in shards:
        os.unlink(f"{job.output}.job/shards/{part_name(number)}")
        Path(f"{job.output}.job/errors/{error_name(number)}").unlink(missing_ok=True)


def right(job, finished):
    """The same command again gives what the first run gave."""
    _, report, output = finished
    again = classify(job)
    assert Path(job.output).read_bytes() == output
    assert (again.records, again.errors) == (report.records, report.errors)
    assert verify(job.output).intact
    return again.job["computed"]


@pytest.mark.parametrize("workers", [None, 2, "part"])
@pytest.mark.parametrize("edit", COUNTS)
def test_an_index_of_lines(finished, workers, edit):
    """Whoever can read the manifest can compute the checks of lines.index: what an earlier run counted is not used."""
    job = finished[0]
    index = Path(f"{job.output}.job/{INDEX}")
    with JobDirectory(job.output) as directory:
        last = directory.manifest.cut.shards - 1
        check = LineIndex(-1, "", directory.manifest.cut, directory.manifest.seal)._check
    counts = [COUNTS[edit](count) for count, _ in ENTRY.iter_unpack(index.read_bytes())]
    index.write_bytes(b"".join(ENTRY.pack(count, check(at, count)) for at, count in enumerate(counts)))
    unfinish(job, last)
    if workers == "part":
        classify(replace(job, settings=Settings(part=(last % 2, 2))))
    computed = right(replace(job, settings=Settings(workers=2 if workers == 2 else None)), finished)
    assert computed == (0 if workers == "part" else 1)


def forge(job, number, **changes):
    """Seals a shard anew; changes: of its record, from the record and its notes."""
    with JobDirectory(job.output) as directory:
        record, notes = directory.record(number), directory.notes(number)
    notes = changes.pop("notes", notes)
    digest = hashlib.sha256(notes).hexdigest() if notes else ""
    record = seal(msgspec.structs.replace(record, notes_size=len(notes), notes_sha256=digest, **changes))
    part = Path(f"{job.output}.job/shards/{part_name(number)}")
    part.write_bytes(part.read_bytes()[: record.size] + notes + record.trailer)


def test_no_shard_knows_its_ids(finished):
    """Else an id that was given in two shards would be none."""
    job, report, _ = finished
    for number in range(report.job["shards"]):
        forge(job, number, notes=b"")
    unfinish(job)
    assert right(job, finished) == report.job["shards"]


@pytest.mark.parametrize("change", [-1, 1, 1000])
def test_a_shard_counts_other_records(finished, change):
    job, _, _ = finished
    with JobDirectory(job.output) as directory:
        records = directory.record(2).records
    forge(job, 2, records=records + change)
    unfinish(job)
    assert right(job, finished) == 1
