"""Compressed texts: the bytes that they expand to, read in any order; damage and bombs are refused."""

import gzip
import random
import sys
import tracemalloc
import zlib

import pytest

from tilewright.errors import InputError, ResourceError
from tilewright.formats import expanded
from tilewright.formats.expanded import Expanded, Source
from tilewright.formats.inputs import open_text
from tilewright.formats.packages import install_command

zstd = pytest.importorskip("backports.zstd")
COMPRESS = {".gz": gzip.compress, ".zst": zstd.compress}


@pytest.fixture(params=COMPRESS)
def packed(request, tmp_path):
    """packed(*parts): a file of these parts, each a member or frame of its own."""

    def write(*parts):
        path = tmp_path / f"in.jsonl{request.param}"
        path.write_bytes(b"".join(COMPRESS[request.param](part) for part in parts))
        return path

    return write


def text(size, seed=3):
    draw = random.Random(seed)
    return bytes(draw.choice(b"abcdefgh\n") for _ in range(size))


def test_bytes_in_any_order(packed, monkeypatch):
    monkeypatch.setattr(expanded, "PIECE_BYTES", 100)
    content, draw = text(5000), random.Random(5)
    path = packed(content[:2000], b"", content[2000:])
    with open_text(path, "input") as file:
        assert file.size == 5000
        for _ in range(200):
            begin = draw.randint(0, 5000)
            part = bytearray(draw.randint(0, 5000 - begin))
            file.read_into(part, begin)
            assert part == content[begin : begin + len(part)]
    with open_text(Source(str(path), 5000), "input") as file:
        assert file.size == 5000
        with pytest.raises(InputError, match="expands to 5,000 bytes; earlier it had 5,000"):
            file.read_into(bytearray(2), 4999)


def test_two_readers_in_turns_go_on_where_they_were(packed, monkeypatch):
    """One counts the lines of the stretch that the other has just read: neither expands the file again."""
    content = text(400_000)
    opened = []
    stream = expanded._Stream
    monkeypatch.setattr(expanded, "_Stream", lambda file: opened.append(1) or stream(file))
    with Expanded(packed(content), "input", len(content)) as file:
        for begin in range(0, 400_000, 10_000):
            for at in (begin, max(begin - 10_000, 0)):
                part = bytearray(10_000)
                file.read_into(part, at)
                assert part == content[at : at + 10_000]
    assert len(opened) <= 3


def test_what_is_damaged_is_refused(packed):
    path = packed(text(5000))
    whole, draw = path.read_bytes(), random.Random(1)
    for end in (len(whole) - 1, len(whole) // 2, 6):
        path.write_bytes(whole[:end])
        with pytest.raises(InputError, match=r"cut short|is damaged"):
            open_text(path, "input")
    for _ in range(20):
        wrong = bytearray(whole)
        wrong[draw.randrange(20, len(whole) - 8)] ^= 1 << draw.randrange(8)
        path.write_bytes(wrong)
        if path.suffix == ".zst":  # without a checksum, zstd may not notice
            continue
        with pytest.raises(InputError, match=r"cut short|is damaged"):
            open_text(path, "input")
    path.write_bytes(b'{"prompt": "a"}\n')
    with pytest.raises(InputError, match=rf"is damaged, or no \{path.suffix} file.*rename it"):
        open_text(path, "input")
    path.write_bytes(whole + b"rest")
    with pytest.raises(InputError, match="is damaged"):
        open_text(path, "input")


def test_a_bomb_is_refused_in_little_memory(tmp_path):
    """zstd packs zeros 20,000 times smaller."""
    path = tmp_path / "in.txt.zst"
    path.write_bytes(zstd.compress(bytes(64 << 20)))
    tracemalloc.start()
    with pytest.raises(InputError, match=r"expands to more than 1,100 times its .*made to fill memory"):
        open_text(path, "input")
    assert tracemalloc.get_traced_memory()[1] < 16 << 20
    tracemalloc.stop()


def test_empty_members_without_end_are_refused(packed):
    path = packed(*[b""] * 1200)
    with pytest.raises(InputError, match=r"1,000 (members|frames) in a row expand to nothing"):
        open_text(path, "input")


def test_gzip_without_a_checksum_is_refused(tmp_path):
    path = tmp_path / "in.txt.gz"
    path.write_bytes(zlib.compress(b"a\n"))
    with pytest.raises(InputError, match=r"is damaged, or no \.gz file"):
        open_text(path, "input")


def test_without_zstd_the_pip_of_this_clone_is_named(monkeypatch):
    for name in ("compression", "backports"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ResourceError) as found:
        expanded._zstd_module("in.jsonl.zst")
    assert found.value.remedy == f"install it: {install_command('zstd')}"
