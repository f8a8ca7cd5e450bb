"""A gzip file read by position yields what it expands to, whatever its members, and refuses what is damaged."""

import gzip

import numpy as np
import pytest

from tilewright.errors import InputError, ResourceError
from tilewright.formats import gzip_files
from tilewright.formats.files import InputFile
from tilewright.formats.gzip_files import GzipByPosition, GzipStream
from tilewright.formats.raw_volumes import RawVolume
from tilewright.formats.volume_formats import open_volume
from volume_files import save


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(gzip_files, "SPACING", 1000)


def opened(data, size):
    with open("a.gz", "wb") as file:
        file.write(data)
    made = GzipByPosition(GzipStream(InputFile("a.gz", "input")), size)
    made.index()
    return made


@pytest.mark.parametrize("members", [1, 5])
def test_any_position_in_any_order(rng, members):
    parts = [rng.integers(0, 9, 4000, np.uint8).tobytes() for _ in range(members)]
    whole = b"".join(parts)
    found = opened(b"".join(gzip.compress(part) for part in parts), len(whole))
    for _ in range(200):
        first, last = sorted(int(n) for n in rng.integers(0, len(whole) + 1, 2))
        data = bytearray(last - first)
        found.read_into(memoryview(data), first)
        assert bytes(data) == whole[first:last]
    found.close()


def test_states_are_limited(monkeypatch):
    monkeypatch.setattr(gzip_files, "STATES", 3)
    found = opened(gzip.compress(bytes(100_000)), 100_000)
    assert len(found._states) <= 4 and found.held == 3 * gzip_files.STATE_BYTES
    found.close()


def test_what_is_damaged_is_refused_before_anything_is_read(rng):
    whole = rng.bytes(20_000)
    good = gzip.compress(whole)
    flipped = bytearray(good)
    flipped[10_000] ^= 4
    for data in (bytes(flipped), good[:-1], good[:9000], good + b"more", good + gzip.compress(b"more")):
        with pytest.raises(InputError, match=r"a\.gz"):
            opened(data, len(whole))


def test_a_volume_larger_than_the_memory_is_read_box_by_box(rng, monkeypatch):
    monkeypatch.setattr(gzip_files, "SPACING", 50_000)
    monkeypatch.setattr(gzip_files, "STATE_BYTES", 1000)
    array = rng.standard_normal((30, 31, 32)).astype(np.float32)
    save("v.nii.gz", array)
    with open_volume("v.nii.gz", memory=2 * array.nbytes) as found:
        assert not isinstance(found, RawVolume) and found.held == array.nbytes
    with open_volume("v.nii.gz", memory=array.nbytes) as found, open_volume("v.nii.gz") as whole:
        assert isinstance(found, RawVolume) and found.held == 3000 and found.unit == (30, 31, 1)
        assert np.array_equal(found.load(np.float32), array)
        for start, shape in [((3, 4, 5), (9, 8, 7)), ((0, 0, 31), (30, 31, 1)), ((29, 0, 0), (1, 1, 32))]:
            boxes = np.empty((2, *shape), np.float32)
            found.read_into(start, boxes[0])
            whole.read_into(start, boxes[1])
            assert np.array_equal(*boxes)
    with open_volume("v.nii.gz", memory=array.nbytes, headers=True) as found:
        assert found.held == 3000
    with pytest.raises(ResourceError, match="takes 3,000 bytes in memory, and 2,999 are left"):
        open_volume("v.nii.gz", memory=2999)
