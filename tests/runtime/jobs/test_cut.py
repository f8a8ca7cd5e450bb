"""Every line belongs to one shard, whatever the size of a shard; its number is right in whatever order it is asked."""

import os
import random
from pathlib import Path

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.formats import lines
from tilewright.formats.files import InputFile
from tilewright.formats.lines import read_lines
from tilewright.runtime.jobs import cut
from tilewright.runtime.jobs.cut import LineIndex, Lines, Records, Shard


@pytest.mark.parametrize(("count", "per_shard"), [(0, 3), (1, 3), (3, 3), (4, 3), (40, 1), (40, 100)])
def test_every_row_belongs_to_one_shard(count, per_shard):
    records = Records(8, count, per_shard, offset=128)
    shards = [Shard(number, records) for number in range(records.shards)]
    assert [row for shard in shards for row in shard.rows] == list(range(count))
    assert all(shard.offset == 128 + 8 * shard.rows.start for shard in shards)
    assert all(len(shard.rows) == per_shard for shard in shards[:-1])


class Text:
    def __init__(self, path, content):
        path.write_bytes(content)
        self.file = InputFile(path, "input")
        self.index_path = f"{path}.index"

    def shards(self, per_shard, key="k" * 64):
        lines = Lines(self.file.size, per_shard)
        fd = os.open(self.index_path, os.O_RDWR | os.O_CREAT)
        return fd, [Shard(n, lines, LineIndex(fd, self.index_path, lines, key)) for n in range(lines.shards)]

    def read(self, per_shard, order=None):
        fd, shards = self.shards(per_shard)
        found = {}
        for n in order or range(len(shards)):
            found[n] = list(shards[n].lines(self.file))
        os.close(fd)
        return [line for n in sorted(found) for line in found[n]]


TEXTS = [
    b"a\nbb\n\nccc\n",
    b"a\nbb\n\nccc",
    b"\n\n\n",
    b"\n",
    b"x",
    b"one line that is long\n",
    b"a\r\nb\r\n",
    b"\xef\xbb\xbfa\nb\n",  # a byte-order mark is no part of the first line
    b"\xef\xbb\xbf\nb\n",
    b"\xef\xbb\xbf",
    b"a\n \n\tb\n",
]


@pytest.mark.parametrize("content", TEXTS)
def test_lines_at_every_size(tmp_path, content):
    for per_shard in range(1, len(content) + 2):
        text = Text(tmp_path / "in", content)
        assert text.read(per_shard) == list(read_lines(text.file)), per_shard
        os.remove(text.index_path)


def test_lines_of_random_texts_in_random_order(tmp_path, monkeypatch):
    monkeypatch.setattr(cut, "CHUNK_BYTES", 16)
    monkeypatch.setattr(cut, "TAIL_BYTES", 8)
    draw = random.Random(7)
    for _ in range(200):
        content = bytes(draw.choice(b"ab \n\n") for _ in range(draw.randint(1, 200)))
        text, per_shard = Text(tmp_path / "in", content), draw.randint(1, 40)
        order = list(range(-(-len(content) // per_shard)))
        draw.shuffle(order)
        assert text.read(per_shard, order) == list(read_lines(text.file)), (content, per_shard)
        os.remove(text.index_path)


def test_lines_that_are_too_long(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "MAX_LINE_BYTES", 20)
    monkeypatch.setattr(cut, "CHUNK_BYTES", 16)
    monkeypatch.setattr(cut, "TAIL_BYTES", 8)
    content = b"a\n" + b"x" * 20 + b"\n" + b"y" * 21 + b"\nb\n" + b"z" * 100 + b"\nc\n" + b"w" * 50
    for per_shard in (*range(1, 60), 1000):
        text = Text(tmp_path / "in", content)
        found = [(number, line) for number, line, _ in text.read(per_shard)]
        assert found == [(number, line) for number, line, _ in read_lines(text.file)], per_shard
        assert [number for number, line in found if line is None] == [3, 5, 7]
        os.remove(text.index_path)


def test_a_shard_reads_its_own_bytes_only(tmp_path, monkeypatch):
    """And 64 KiB behind them, and, where the index is full, nothing before them."""
    text = Text(tmp_path / "in", b"some line\n" * 200_000)
    read = []
    real = InputFile.read_into
    monkeypatch.setattr(
        InputFile,
        "read_into",
        lambda self, buffer, offset: (read.append((offset, len(buffer))), real(self, buffer, offset)),
    )
    fd, shards = text.shards(100_000)
    shards[-1].index.first_line(text.file, len(shards))
    read.clear()
    assert next(shards[10].lines(text.file))[0] == 100_001
    list(shards[10].lines(text.file))
    os.close(fd)
    assert min(offset for offset, _ in read) == 999_999
    assert max(offset + size for offset, size in read) <= 1_100_000 + cut.TAIL_BYTES


@pytest.mark.parametrize("damage", ["flipped", "torn", "foreign", "gone"])
def test_a_damaged_index_is_counted_again(tmp_path, damage):
    text = Text(tmp_path / "in", b"some line\n" * 100)
    expected = list(read_lines(text.file))
    assert text.read(64) == expected
    raw = bytearray(Path(text.index_path).read_bytes())
    assert len(raw) == 15 * 16  # the last one is wanted by nobody
    if damage == "flipped":
        raw[33] ^= 1
    if damage == "torn":
        raw = raw[:40]
    with open(text.index_path, "wb") as file:
        file.write(b"" if damage == "gone" else raw)
    fd, shards = text.shards(64, key=("f" if damage == "foreign" else "k") * 64)
    assert list(shards[15].lines(text.file)) == [line for line in expected if line[2] > 960]
    os.close(fd)


def test_a_text_that_shrinks(tmp_path):
    text = Text(tmp_path / "in", b"some line\n" * 100)
    fd, shards = text.shards(64)
    os.truncate(tmp_path / "in", 500)
    with pytest.raises(InputError, match="shrank"):
        list(shards[15].lines(text.file))
    os.close(fd)


def test_the_index_is_kept(tmp_path, monkeypatch):
    """What one process has counted another one does not read again."""
    text = Text(tmp_path / "in", b"line\n" * 1000)
    text.read(100)
    monkeypatch.setattr(cut, "_starts", lambda *args: pytest.fail("it was read again"))
    assert text.read(100, order=[49])[0][:2] == (981, b"line")
    assert np.fromfile(text.index_path, "<u8")[::2].sum() == 980
