"""Files of a job that were edited and sealed anew: the output is right all the same, or an error says what is wrong."""

import hashlib
import json
import os
import shutil
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import pytest

from tilewright.errors import TilewrightError, UsageError
from tilewright.runtime.convert.models import init_dcgan
from tilewright.runtime.jobs.cut import Lines, Records, RowGroups, Whole
from tilewright.runtime.jobs.directory import MANIFEST, REPORT, JobDirectory, error_name, part_name
from tilewright.runtime.jobs.manifest import Damaged, Manifest, encoded, seal, unseal
from tilewright.runtime.jobs.merge import Report, digest_of, verify
from tilewright.runtime.jobs.pieces import listed, parsed
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.jobs.status import status
from tilewright.runtime.verbs.convolve import ConvolveJob, convolve
from tilewright.runtime.verbs.draw import DrawJob, draw
from verb_jobs import ERRORS, clear, expected, job_of, run


def changes(value):
    """Other values of a field, of its own kind."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [0, value // 2, value - 1, value + 1, -value - 1, 2**40, 2**62]
    if isinstance(value, float):
        return [0.0, -1.0, 1e300]
    if isinstance(value, str):
        return ["", "0" * 64, value[:-1], f"{value}x"]
    if isinstance(value, list | tuple):
        return [value[:-1], [*value, *value[-1:]], [], value[::-1]]
    if isinstance(value, dict):
        return [{}, *({name: one for name, one in value.items() if name != left} for left in value)]
    return [7]


def edited(content, kind):
    """(what was edited, the sealed bytes) for every field, and for those of its cut and fingerprint."""
    plain = msgspec.to_builtins(content)

    def sealed(said):
        try:
            return encoded(seal(msgspec.convert(said, kind)))
        except msgspec.ValidationError:  # what the type refuses is refused where it is read, too
            return (json.dumps(said) + "\n").encode()

    for name, value in plain.items():
        if name == "seal":
            continue
        for other in changes(value):
            if other != value:
                yield f"{name} = {other!r}"[:120], sealed(plain | {name: other})
        for part, inner in value.items() if isinstance(value, dict) else ():
            for other in changes(inner):
                if other != inner:
                    yield f"{name}.{part} = {other!r}"[:120], sealed(plain | {name: {**value, part: other}})


def sealed_again(part, record, notes):
    """Writes a shard's file with other notes and a record that fits."""
    digest = hashlib.sha256(notes).hexdigest() if notes else ""
    forged = seal(msgspec.structs.replace(record, notes_size=len(notes), notes_sha256=digest))
    part.write_bytes(part.read_bytes()[: record.size] + notes + forged.trailer)


@pytest.fixture
def finished(verbs):
    """A job of `classify` in a few shards, with bad lines and ids given twice; `again` restores it."""
    job = job_of(verbs, "classify", "classify.jsonl", "forged", shard_size=3000)
    run(job)
    kept = f"{job.output}.kept"
    shutil.copytree(f"{job.output}.job", kept)
    yield job, Path(f"{job.output}.job"), lambda: put_back(job, kept)
    shutil.rmtree(kept)
    clear(job)


def put_back(job, kept):
    clear(job)
    shutil.copytree(kept, f"{job.output}.job")


def right_or_refused(job, wanted, what):
    """The run gives the right output and the right counts, or refuses; `status` and `verify` end without a crash."""
    for look in (status, verify):
        with suppress(TilewrightError):
            look(job.output)
    try:
        report = run(job)
    except TilewrightError as error:
        assert error.exit_code in (2, 3, 4), (what, error)
        assert not os.path.exists(job.output) or Path(job.output).read_bytes() == wanted, what
        return "refused"
    assert Path(job.output).read_bytes() == wanted, what
    assert report.errors == ERRORS, what
    assert verify(job.output).intact, what
    return "right"


@pytest.mark.parametrize("name", ["manifest", "report"])
def test_every_field_of_the_manifest_and_the_report(verbs, finished, name):
    job, folder, again = finished
    kind, file = {"manifest": (Manifest, MANIFEST), "report": (Report, REPORT)}[name]
    content = msgspec.json.decode((folder / file).read_bytes(), type=kind)
    wanted, counts = expected(verbs, "classify"), {"right": 0, "refused": 0}
    for what, raw in edited(content, kind):
        (folder / file).write_bytes(raw)
        counts[right_or_refused(job, wanted, what)] += 1
        again()
    assert counts["right"] + counts["refused"] > 40 and counts["right"] > 0, counts


def test_every_field_of_a_record(verbs, finished):
    job, folder, again = finished
    with JobDirectory(job.output) as directory:
        record = directory.record(1)
    wanted, counts = expected(verbs, "classify"), {"right": 0, "refused": 0}
    for what, raw in edited(record, type(record)):
        part = folder / "shards" / part_name(1)
        old = part.read_bytes()
        part.write_bytes(old[: record.size + record.notes_size] + raw + f"{len(raw):08x}\n".encode())
        (folder / REPORT).unlink()
        Path(job.output).unlink(missing_ok=True)
        counts[right_or_refused(job, wanted, what)] += 1
        again()
    assert counts["right"] > 50 and not counts["refused"], counts


@pytest.mark.parametrize(
    "cut",
    [
        lambda cut: Lines(cut.size // 2, cut.per_shard),
        lambda cut: Lines(cut.size - 1, cut.per_shard),
        lambda cut: Lines(cut.size + 5000, cut.per_shard),
        lambda cut: Lines(1, 1),
        lambda cut: Records(8, 3, 1),
        lambda cut: RowGroups((1, 2)),
        lambda cut: Whole(),
    ],
)
def test_an_edited_cut_leaves_no_record_out(verbs, finished, cut):
    job, folder, _ = finished
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    forged = seal(msgspec.structs.replace(manifest, cut=cut(manifest.cut)))
    (folder / MANIFEST).write_bytes(encoded(forged))
    assert not verify(job.output).intact
    with pytest.raises(
        UsageError, match=r"manifest was edited: it divides the input as .* and this input is divided as Lines"
    ):
        run(job)
    assert not os.path.exists(job.output) or Path(job.output).read_bytes() == expected(verbs, "classify")


def test_another_size_of_shards_is_another_cut_of_the_same_input(verbs, finished):
    """An edit that leaves nothing out: the shards of the earlier cut are made again."""
    job, folder, _ = finished
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    (folder / MANIFEST).write_bytes(encoded(seal(msgspec.structs.replace(manifest, cut=Lines(manifest.cut.size, 700)))))
    assert right_or_refused(job, expected(verbs, "classify"), "per_shard") == "right"


@pytest.mark.parametrize("name", ["0000000.part", "000001.part", "00099.part", "00001.part.part", "1.part"])
def test_a_file_that_is_no_shard_counts_for_none(verbs, finished, name):
    """Under a longer number of shard 0 all its ids would seem to be given twice."""
    job, folder, _ = finished
    with JobDirectory(job.output) as directory:
        done = len(list(directory.committed()))
    shutil.copy(folder / "shards" / "00000.part", folder / "shards" / name)
    (folder / REPORT).unlink()
    Path(job.output).unlink()
    found = status(job.output)
    assert (found.done, found.errors) == (done, ERRORS)
    assert right_or_refused(job, expected(verbs, "classify"), name) == "right"


@pytest.mark.parametrize("way", ["fewer", "more", "none"])
def test_ids_that_a_shard_has_noted(verbs, finished, way):
    """As many as it has records, or it is made again."""
    job, folder, _ = finished
    with JobDirectory(job.output) as directory:
        record, notes = directory.record(2), directory.notes(2)
    other = {"fewer": notes[:-8], "more": notes + b"1" * 8, "none": b""}[way]
    sealed_again(folder / "shards" / part_name(2), record, other)
    (folder / REPORT).unlink()
    Path(job.output).unlink()
    assert right_or_refused(job, expected(verbs, "classify"), way) == "right"


@pytest.mark.parametrize("way", ["fewer", "more", "none"])
def test_lines_of_a_shard_with_an_id_given_twice(verbs, finished, way):
    """As many as the input has there, or the shard is made again: the marking of the id ended with a ValueError."""
    job, folder, _ = finished
    with JobDirectory(job.output) as directory:
        number = next(
            n for n in range(1, 99) if b"the id of an earlier record" in directory.errors.read(error_name(n), 1 << 20)
        )
        record, notes = directory.record(number), bytearray(directory.notes(number))
        notes[:8] = directory.notes(0)[:8]  # one more id that was given before
    part = folder / "shards" / part_name(number)
    output = part.read_bytes()[: record.size]
    other = {"fewer": output[: output.rindex(b"\n", 0, -1) + 1], "more": output + b"{}\n", "none": b""}[way]
    forged = msgspec.structs.replace(record, size=len(other), sha256=hashlib.sha256(other).hexdigest())
    part.write_bytes(other + bytes(notes))
    sealed_again(part, forged, bytes(notes))
    (folder / REPORT).unlink()
    Path(job.output).unlink()
    assert right_or_refused(job, expected(verbs, "classify"), way) == "right"


@pytest.mark.parametrize("errors", [b"no JSON\n", b'{"line": "\xff"}\n', b"[]\n"])
def test_errors_of_a_shard_with_an_id_given_twice(verbs, finished, errors):
    job, folder, _ = finished
    with JobDirectory(job.output) as directory:
        numbers = [n for n in range(directory.manifest.cut.shards) if (found := directory.record(n)) and found.errors]
        number = numbers[-1]
        record, notes = directory.record(number), bytearray(directory.notes(number))
        notes[:8] = directory.notes(0)[:8]  # one more id that was given before
    errors *= record.errors  # else their number tells
    (folder / "errors" / error_name(number)).write_bytes(errors)
    digest = hashlib.sha256(errors).hexdigest()
    forged = msgspec.structs.replace(record, error_size=len(errors), error_sha256=digest)
    sealed_again(folder / "shards" / part_name(number), forged, bytes(notes))
    (folder / REPORT).unlink()
    Path(job.output).unlink()
    assert right_or_refused(job, expected(verbs, "classify"), errors) == "right"


def test_a_long_name_or_value_is_not_told_whole(verbs, finished):
    job, folder, _ = finished
    manifest = msgspec.json.decode((folder / MANIFEST).read_bytes(), type=Manifest)
    for field in ({"x" * 100_000: 1}, {"verb": "x" * 100_000}):
        forged = msgspec.structs.replace(manifest, fingerprint={**manifest.fingerprint, **field})
        (folder / MANIFEST).write_bytes(encoded(seal(forged)))
        with pytest.raises(UsageError) as caught:
            run(job)
        assert len(str(caught.value)) < 2000
    raw = (folder / MANIFEST).read_bytes()
    with pytest.raises(Damaged) as damaged:
        unseal(raw.replace(b'"type":"lines"', b'"type":"%s"' % (b"x" * 100_000)), Manifest)
    assert len(str(damaged.value)) < 2000


PLACED = [
    ("convolve", "out.npy"),
    ("convolve", "out.nii"),
    ("convolve", "out.zarr"),
    ("draw", "out.npy"),
    ("draw", "out/"),
]
LISTS = {
    "cut": lambda pieces: pieces[:-1],
    "empty": lambda pieces: [],
    "without chunks of zeros": lambda pieces: [piece for piece in pieces if piece.size],
    "twice": lambda pieces: [*pieces, pieces[-1]],
    "swapped": lambda pieces: [pieces[0]._replace(name=pieces[-1].name, offset=pieces[-1].offset), *pieces[1:]],
    "shifted": lambda pieces: [piece._replace(offset=piece.offset + 1) for piece in pieces],
    "longer": lambda pieces: [*pieces[:-1], pieces[-1]._replace(size=10**17)],
    "shorter": lambda pieces: [*pieces[:-1], pieces[-1]._replace(size=pieces[-1].size - 1)],
    "nothing of it": lambda pieces: [*pieces[:-1], pieces[-1]._replace(size=0, sha256=hashlib.sha256().hexdigest())],
}


@pytest.mark.parametrize(("verb", "output"), PLACED)
@pytest.mark.parametrize("way", LISTS)
def test_an_edited_list_of_pieces_leaves_no_hole(tmp_path, monkeypatch, rng, verb, output, way):
    """The list says which bytes of the output a shard has written in place; it is sealed anew with its shard."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tilewright.formats.zarr_volumes.CHUNK", 4)
    monkeypatch.setattr(os, "fsync", lambda fd: None)
    settings = Settings(shard_size=4)
    if verb == "convolve":
        volume = rng.standard_normal((12, 9, 8)).astype(np.float32)
        volume[3:9, :6] = 0  # so that a Zarr output has chunks of zeros, which are not stored
        np.save("v.npy", volume)
        again = lambda: convolve(ConvolveJob("v.npy", "box:3", output, settings=settings))  # noqa: E731
    else:
        init_dcgan("m", 3, z_size=3, size=2, channels=(4, 3), kernel=4)
        again = lambda: draw(DrawJob("m", None, output, count=10, seed=3, settings=settings))  # noqa: E731
    again()
    name = output.rstrip("/")
    right = digest_of(name, lambda: None)
    with JobDirectory(name) as directory:
        record, notes = directory.record(1), directory.notes(1)
    assert record.size == 0
    other = listed(LISTS[way](parsed(notes)))
    sealed_again(Path(f"{name}.job/shards/00001.part"), record, other)
    os.unlink(f"{name}.job/{REPORT}")
    os.rename(name, f"{name}.job/output")  # as it is before the merge
    assert again().job["computed"] == (other != notes)  # one piece cannot be swapped
    assert digest_of(name, lambda: None) == right and verify(name).intact


def test_a_file_in_place_of_a_chunk_of_zeros(tmp_path, monkeypatch, rng):
    """What zarr would read there is no result of the job: the shard is made again without it."""
    monkeypatch.chdir(tmp_path)
    volume = rng.standard_normal((96, 8, 8)).astype(np.float32)
    volume[32:] = 0
    np.save("v.npy", volume)
    again = lambda: convolve(ConvolveJob("v.npy", "box:1", "out.zarr", settings=Settings(shard_size=64)))  # noqa: E731
    again()
    right = digest_of("out.zarr", lambda: None)
    os.rename("out.zarr", "out.zarr.job/output")
    os.unlink(f"out.zarr.job/{REPORT}")
    stored, absent = Path("out.zarr.job/output/c/0/0/0"), Path("out.zarr.job/output/c/1/0/0")
    assert stored.exists() and not absent.parent.exists()
    absent.parent.mkdir(parents=True)
    shutil.copy(stored, absent)
    assert not verify("out.zarr").intact
    assert again().job["computed"] == 1
    assert digest_of("out.zarr", lambda: None) == right and verify("out.zarr").intact
