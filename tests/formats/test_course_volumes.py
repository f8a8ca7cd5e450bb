"""Volumes and kernels as the course's text: exact counts, exact places of what is wrong."""

import re

import numpy as np
import pytest

from tilewright.errors import InputError
from tilewright.formats import course_volumes
from tilewright.formats.course_volumes import open_text, read_text_kernel


def text_of(array):
    return " ".join(map(str, array.shape)) + " " + "".join(f"{x:f} " for x in array.reshape(-1))


@pytest.mark.parametrize("piece", [7, 64, 1 << 20])
@pytest.mark.parametrize("end", ["", "\n", " \r\n\n"])
def test_values(tmp_path, rng, monkeypatch, piece, end):
    monkeypatch.setattr(course_volumes, "PIECE", piece)
    array = rng.standard_normal((3, 4, 5)).astype(np.float32).round(6)
    (tmp_path / "v.txt").write_text(text_of(array) + end)
    found = open_text(str(tmp_path / "v.txt"), "input").load(np.float32)
    assert np.abs(found - array).max() < 1e-6


def test_any_white_space_and_notation(tmp_path):
    (tmp_path / "v.txt").write_text("1\t2\n3\r\n1e0 -2.5E-1\n+3 .5   7. -0")
    found = open_text(str(tmp_path / "v.txt"), "input").load(np.float32)
    assert found.tolist() == [[[1, -0.25, 3], [0.5, 7, 0]]]


@pytest.mark.parametrize("piece", [5, 1 << 20])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "begins with ''; three sizes D H W"),
        ("2 2", "three sizes"),
        ("a b c", "begins with 'a b c'"),
        ("2 2 -2 1 1 1 1", "three sizes"),
        ("0 2 2 ", "of at least 1"),
        ("2 2 2.5 1 1 1 1 1 1 1 1", "three sizes"),
        ("9999999999 1 1 1", "three sizes"),
        ("1 1 3 1 2", "ask for 1 x 1 x 3 = 3 values; the 9 bytes hold at most"),
        ("1 1 3 1.0 2.0", "ask for 1 x 1 x 3 = 3 values; the file holds 2"),
        ("1 1 3 1 2 3 4", "ask for 1 x 1 x 3 = 3 values; the file holds more"),
        ("999999999 999999999 999999999 1 2", "hold at most"),
        ("1 1 3 1 2 nan", r"value 2, byte 10: 'nan' is no finite number"),
        ("1 1 3 1 -inf 2", r"value 1, byte 8: '-inf' is no finite number"),
        ("1 1 3 1 0x10 2", "value 1, byte 8: '0x10'"),
        ("1 1 3 1 2,5 3", "value 1, byte 8: '2,5'"),
        ("1 1 3 1 1e 3", "value 1, byte 8: '1e'"),
        ("1 1 3 1 - 3", "value 1, byte 8: '-'"),
        ("1 1 3 1-2 3 4", "value 0, byte 6: '1-2'"),
        ("1 1 3 1.2.3 3 4", "value 0, byte 6: '1.2.3'"),
        ("1 1 3 1e5.5 3 4", "value 0, byte 6: '1e5.5'"),
        ("1 1 3 1 2 1e39", r"value 2, voxel \[0, 0, 2\]: the value is too large for float32"),
        ("1 1 3 1 2 1e999", "1e999|too large"),
        ("1 1 3 1 2 \0", r"value 2, byte 10: '\\x00' is no finite number"),
    ],
)
def test_what_is_refused(tmp_path, monkeypatch, text, message, piece):
    monkeypatch.setattr(course_volumes, "PIECE", piece)
    (tmp_path / "v.txt").write_text(text)
    with pytest.raises(InputError) as caught:
        open_text(str(tmp_path / "v.txt"), "input")
    assert re.search(message, str(caught.value)), str(caught.value)
    assert caught.value.path == str(tmp_path / "v.txt")


def test_a_word_without_end(tmp_path):
    (tmp_path / "v.txt").write_bytes(b"1 1 9 " + b"1" * (3 << 20))
    with pytest.raises(InputError, match="without a space"):
        open_text(str(tmp_path / "v.txt"), "input")


def test_kernels(tmp_path, rng):
    array = rng.standard_normal((3, 3, 3)).round(6)
    (tmp_path / "k.txt").write_text("3 " + "".join(f"{x:f} " for x in array.reshape(-1)))
    found = read_text_kernel(str(tmp_path / "k.txt"))
    assert found.shape == (3, 3, 3) and np.abs(found - array).max() < 1e-6
    for text, message in [
        ("2 " + "1 " * 8, "the kernel's size is 2; a kernel as text has an odd one"),
        ("3 " + "1 " * 26, "27 values; the 54 bytes hold at most 26"),
        ("3 " + "1 " * 28, "holds more"),
        ("x", "begins with 'x'; one size K of at least 1, then K x K x K taps"),
    ]:
        (tmp_path / "k.txt").write_text(text)
        with pytest.raises(InputError, match=message):
            read_text_kernel(str(tmp_path / "k.txt"))


def test_mutated_text(tmp_path, rng):
    good = text_of(rng.standard_normal((2, 3, 4))).encode()
    path, alphabet = tmp_path / "v.txt", b" 0123456789.-+eEnaif\n\t\x00\xff"
    for _ in range(2000):
        data = bytearray(good[: rng.integers(1, len(good))] if rng.random() < 0.2 else good)
        for _ in range(rng.integers(1, 4)):
            data[rng.integers(0, len(data))] = alphabet[rng.integers(0, len(alphabet))]
        path.write_bytes(data)
        words = bytes(data).split()
        try:
            found = open_text(str(path), "input").load(np.float32)
        except InputError:
            continue
        assert [*map(int, words[:3])] == [*found.shape]
        assert np.array_equal(found.reshape(-1), np.array([float(word) for word in words[3:]], np.float32))
