"""Binary sentences: every wrong byte is found before the work starts, and a file that shrinks is an error."""

import os

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.formats import course, files
from tilewright.formats.atomic import AtomicFile
from tilewright.formats.course import LogitsWriter, TokenFile
from tilewright.formats.records import Batch

L, V = 4, 10


def write(path, tokens):
    np.asarray(tokens, "<i4").tofile(path)
    return path


@pytest.mark.parametrize("size", [1, 3, 7, 100])
def test_batches(tmp_path, rng, size):
    tokens = rng.integers(0, V, (7, L), np.int32)
    file = TokenFile(write(tmp_path / "in", tokens), length=L, vocabulary=V)
    batches = list(file.batches(size))
    assert np.concatenate([batch.tokens for batch in batches]).tobytes() == tokens.tobytes()
    assert all(len(batch) == size for batch in batches[:-1]) and file.total == 7
    assert batches[-1].end == file.bytes == 7 * L * 4
    file.close()


def test_count(tmp_path, rng):
    tokens = rng.integers(0, V, (7, L), np.int32)
    tokens[5] = -1  # not used, not checked
    path = write(tmp_path / "in", tokens)
    file = TokenFile(path, length=L, vocabulary=V, count=5)
    assert np.concatenate([batch.tokens for batch in file.batches(2)]).tobytes() == tokens[:5].tobytes()
    file.close()
    with pytest.raises(InputError, match="holds 7 sentences; 8 were asked for"):
        TokenFile(path, length=L, vocabulary=V, count=8)


@pytest.mark.parametrize(("value", "place"), [(V, (0, 0)), (-1, (6, 3)), (2**31 - 1, (3, 2)), (-(2**31), (1, 1))])
def test_ids_out_of_range(tmp_path, value, place):
    tokens = np.zeros((7, L), np.int32)
    tokens[place] = value
    with pytest.raises(InputError) as caught:
        TokenFile(write(tmp_path / "in", tokens), length=L, vocabulary=V)
    assert f"token id {value} " in str(caught.value)
    assert f"sentence {place[0]}, position {place[1]} " in str(caught.value)


@pytest.mark.parametrize(
    ("size", "message"),
    [(0, "is empty"), (1, "0 sentences of 16 bytes and 1 more"), (20, "1 sentence of 16 bytes and 4")],
)
def test_sizes(tmp_path, size, message):
    (tmp_path / "in").write_bytes(bytes(size))
    with pytest.raises(InputError, match=message):
        TokenFile(tmp_path / "in", length=L, vocabulary=V)


def test_not_a_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, message in [
        ("", "is a directory"),
        ("gone", "no such input"),
        ("pipe", "not a regular"),
        ("a\0b", "name"),
    ]:
        with pytest.raises(InputError, match=message):
            TokenFile(f"{tmp_path}/{name}", length=L, vocabulary=V)


@pytest.mark.parametrize("left", [0, 16, 40])
def test_a_file_that_shrinks(tmp_path, left):
    path = write(tmp_path / "in", np.zeros((8, L)))
    file = TokenFile(path, length=L, vocabulary=V)
    batches = file.batches(2)
    next(batches)
    os.truncate(path, left)
    with pytest.raises(InputError, match="shrank while it was read: it had 128 bytes"):
        list(batches)
    file.close()


def test_a_file_that_changes_is_checked_again(tmp_path):
    path = write(tmp_path / "in", np.zeros((8, L)))
    file = TokenFile(path, length=L, vocabulary=V)
    write(path, np.full((8, L), V))
    with pytest.raises(InputError, match="sentence 0, position 0"):
        list(file.batches(8))
    file.close()


@pytest.mark.parametrize("scan", [1, 3, 100])
def test_every_sentence_is_checked(tmp_path, monkeypatch, scan):
    monkeypatch.setattr(course, "SCAN_RECORDS", scan)
    for sentence in range(8):
        tokens = np.zeros((8, L), np.int32)
        tokens[sentence, 1] = V
        with pytest.raises(InputError, match=f"sentence {sentence}, position 1"):
            TokenFile(write(tmp_path / "in", tokens), length=L, vocabulary=V)


def test_short_reads_are_completed(tmp_path, rng, monkeypatch):
    read = os.preadv
    monkeypatch.setattr(files.os, "preadv", lambda fd, views, offset: read(fd, [views[0][:3]], offset))
    tokens = rng.integers(0, V, (7, L), np.int32)
    file = TokenFile(write(tmp_path / "in", tokens), length=L, vocabulary=V)
    assert np.concatenate([batch.tokens for batch in file.batches(2)]).tobytes() == tokens.tobytes()
    file.close()


def test_descriptors_are_closed(tmp_path):
    path = write(tmp_path / "in", np.full((8, L), V))
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(5):
        with pytest.raises(InputError):
            TokenFile(path, length=L, vocabulary=V)
    assert len(os.listdir("/proc/self/fd")) == before


def test_logits(tmp_path, rng):
    logits = rng.standard_normal((5, 2), np.float32)
    with AtomicFile(tmp_path / "out") as file:
        writer = LogitsWriter(file)
        for rows in (logits[:3], logits[3:]):
            writer.write(Batch(np.zeros((len(rows), L), np.int32), 0), rows)
    assert (tmp_path / "out").read_bytes() == logits.tobytes()


def test_logits_that_are_not_finite(tmp_path):
    batch = Batch(np.zeros((2, L), np.int32), 0)
    with pytest.raises(InputError, match="sentence 3"), AtomicFile(tmp_path / "out") as file:
        writer = LogitsWriter(file)
        writer.write(batch, np.zeros((2, 2), np.float32))
        writer.write(batch, np.array([[0, 1], [np.nan, 1]], np.float32))
    assert not (tmp_path / "out").exists()
