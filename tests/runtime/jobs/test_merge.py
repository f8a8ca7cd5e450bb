"""The output is what the shards say, or is not there; every flipped bit is found, and rebuilt by a rerun."""

import os
import random
from pathlib import Path

import numpy as np
import pytest

import toy_jobs
from tilewright.errors import InternalError, ResourceError, UsageError
from tilewright.runtime.engines.inline import Inline
from tilewright.runtime.jobs import directory as module
from tilewright.runtime.jobs import run as run_module
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.run import run
from tilewright.runtime.jobs.task import Options


def test_a_header_from_the_totals(place):
    task = toy_jobs.Squares(place.input, npy=True)
    report = run(task, place.output, Inline())
    with open(place.output, "rb") as file:
        assert np.load(file).tobytes() == place.squares
    assert report.size == os.path.getsize(place.output)


def test_a_disk_that_is_too_full_is_found_before_the_merge(place, monkeypatch):
    Path(place.output).write_bytes(b"earlier")
    real = os.statvfs

    class Full:
        f_bavail, f_frsize = 1, 300

    monkeypatch.setattr(module.os, "statvfs", lambda path: Full)
    with pytest.raises(ResourceError, match="takes 320 bytes and its disk has 300 left") as caught:
        run(place.task(), place.output, Inline())
    assert caught.value.exit_code == 4 and Path(place.output).read_bytes() == b"earlier"
    monkeypatch.setattr(module.os, "statvfs", real)
    assert run(place.task(), place.output, Inline()).computed == 0
    place.check()


def files(place):
    """Everything that a seal or a hash covers."""
    folder = Path(f"{place.output}.job")
    covered = [*sorted((folder / "shards").iterdir()), *sorted((folder / "errors").iterdir())]
    return [Path(place.output), folder / "manifest.json", folder / "report.json", *covered]


def spoil(path, bit):
    raw = bytearray(path.read_bytes())
    raw[bit // 8] ^= 1 << bit % 8
    path.write_bytes(raw)


def test_a_thousand_flipped_bits(place):
    Path(place.input).write_bytes(b"line\nbad\n" * 40)
    run(toy_jobs.Upper(place.input), place.output, Inline())
    assert verify(place.output).intact
    draw, covered = random.Random(3), files(place)
    assert len(covered) == 3 + 6 + 6
    for _ in range(1000):
        path = draw.choice(covered)
        bit = draw.randrange(8 * path.stat().st_size)
        spoil(path, bit)
        found = verify(place.output)
        assert not found.intact, (path, bit)
        name = path.stem.lstrip("0") or "0"
        words = {"out": "output", "manifest": "manifest.json", "report": "report.json"}
        assert found.damaged[0].startswith(words.get(path.stem, f"shard {name}: ")), (path, found)
        spoil(path, bit)
    assert verify(place.output).intact


@pytest.mark.parametrize("name", ["out", "manifest.json", "report.json", "shards/00003.part", "errors/00003.jsonl"])
def test_a_rerun_repairs_what_is_damaged_and_nothing_else(place, name):
    Path(place.input).write_bytes(b"line\nbad\n" * 40)
    task = toy_jobs.Upper(place.input, toy_jobs.Knobs(place.notes))
    run(task, place.output, Inline())
    expected = Path(place.output).read_bytes()
    path = Path(place.output if name == "out" else f"{place.output}.job/{name}")
    for way in ("flipped", "gone"):
        if way == "flipped":
            spoil(path, 40)
        elif name.startswith("errors"):
            continue
        else:
            path.unlink()
        Path(place.notes, "log").unlink()
        Path(place.notes, "log").touch()
        report = run(task, place.output, Inline())
        redone = [3] if "00003" in name else []
        assert [shard for shard, _, _ in place.begun()] == redone and report.computed == len(redone), way
        place.check(expected)
        assert verify(place.output).intact, way


def test_damage_before_the_merge_is_repaired(place, monkeypatch):
    """Found as the shards are read for the output: those shards alone are run again."""
    real, spoilt = run_module.merge, []

    def merge(*args):
        if not spoilt:
            spoilt.append(True)
            for number in (2, 7):
                spoil(Path(f"{place.output}.job/shards/{number:05d}.part"), 9)
        return real(*args)

    monkeypatch.setattr(run_module, "merge", merge)
    assert run(place.task(), place.output, Inline()).computed == 12
    place.check()
    assert sorted(os.listdir(f"{place.output}.job/damaged")) == ["00002.part", "00007.part"]


def test_a_shard_that_vanishes_before_the_merge(place, monkeypatch):
    def vanish(record):
        if record.shard == 9 and len(place.begun()) == 10:
            os.unlink(f"{place.output}.job/shards/00004.part")

    assert run(place.task(), place.output, Inline(), watch=toy_jobs.Seen(vanish)).computed == 11
    place.check()


def test_a_machine_that_damages_everything(place, monkeypatch):
    real = run_module.merge

    def merge(*args):
        spoil(Path(f"{place.output}.job/shards/00002.part"), 9)
        return real(*args)

    monkeypatch.setattr(run_module, "merge", merge)
    with pytest.raises(InternalError, match="damaged in each of 3 tries"):
        run(place.task(), place.output, Inline())
    assert not os.path.exists(place.output)


def test_verify_names_what_is_not_there(place):
    with pytest.raises(UsageError, match="there is no job"):
        verify(place.output)
    run(place.task(), place.output, Inline())
    os.unlink(place.output)
    os.unlink(f"{place.output}.job/shards/00004.part")
    found = verify(place.output)
    assert found.damaged == ["output: it is not there", "shards: 1 of 10 are not there"]


def test_errors_are_counted(place):
    Path(place.input).write_bytes(b"line\nbad\n" * 40)
    report = run(toy_jobs.Upper(place.input), place.output, Inline())
    assert (report.records, report.errors) == (80, 40)
    assert Path(place.output).read_bytes().startswith(b"# 80 lines, 40 bad\n1 LINE\n2 !\n3 LINE\n")
    with pytest.raises(InternalError, match=r"40 of the first 80 records are bad and 39 are allowed") as caught:
        run(toy_jobs.Upper(place.input), place.output, Inline(), Options(max_errors=39))
    assert caught.value.exit_code == 5
    assert run(toy_jobs.Upper(place.input), place.output, Inline(), Options(max_errors=40)).computed == 0
