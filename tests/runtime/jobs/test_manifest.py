"""Sealed files: every changed bit is found; a manifest names what differs; an input is known by little of it."""

import os
import random
import time

import pytest

from tilewright.errors import InputError
from tilewright.runtime.jobs.cut import Lines, Records, Whole
from tilewright.runtime.jobs.manifest import Damaged, Manifest, check_unchanged, encoded, file_identity, seal, unseal

FINGERPRINT = {
    "verb": "classify",
    "seed": 3,
    "temperature": 0.5,
    "ignore_eos": False,
    "stop": ["a", "b"],
    "top_k": None,
}


def manifest(cut=None, **changes):
    return Manifest(fingerprint={**FINGERPRINT, **changes}, cut=cut or Records(4, 40, 4, 128))


@pytest.mark.parametrize("cut", [Records(4, 40, 4, 128), Lines(100, 7), Whole()])
def test_it_comes_back(cut):
    sealed = seal(manifest(cut))
    assert unseal(encoded(sealed), Manifest) == sealed and len(sealed.seal) == 64


def test_every_flipped_bit_is_found():
    raw = encoded(seal(manifest()))
    for bit in range(8 * len(raw)):
        changed = bytearray(raw)
        changed[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Damaged):
            unseal(bytes(changed), Manifest)


def test_ten_thousand_mutations():
    """Bytes changed, cut out, doubled, and nasty JSON put in: refused, and by nothing else than Damaged."""
    raw, draw = encoded(seal(manifest())), random.Random(5)
    nasty = [b"[" * 100_000, b"9" * 10_000, b'"\xff"', b"1e999", b'{"a":' * 5000, b"\x00", b'"\\ud800"', b"-0", b"NaN"]
    for _ in range(10_000):
        changed = bytearray(raw)
        for _ in range(draw.randint(1, 3)):
            at, end = sorted(draw.randrange(len(changed) + 1) for _ in range(2))
            new = draw.choice([b"", bytes(changed[at:end]) * 2, draw.randbytes(3), draw.choice(nasty)])
            changed[at:end] = new
        if bytes(changed) != raw:
            with pytest.raises(Damaged):
                unseal(bytes(changed), Manifest)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 4}, "seed was 3 and is 4"),
        ({"verb": "generate"}, "verb was 'classify' and is 'generate'"),
        ({"stop": ["a"]}, "stop was ['a', 'b'] and is ['a']"),
        ({"ignore_eos": 0}, "ignore_eos was False and is 0"),
        ({"seed": 3.0}, "seed was 3 and is 3.0"),
        ({"top_k": 1}, "top_k was None and is 1"),
        ({"top_p": 1}, "top_p was not there and is 1"),
    ],
)
def test_what_differs_is_named(changes, message):
    assert manifest().differs(manifest(**changes)) == message
    with pytest.raises(InputError, match="changed while it ran: "):
        check_unchanged(manifest(), {**FINGERPRINT, **changes})


def test_the_cut_is_no_difference():
    assert manifest().differs(manifest(Records(4, 40, 5))) is None
    assert manifest().differs(seal(manifest())) is None


def test_an_input_is_known_by_a_sample(tmp_path):
    path = tmp_path / "in"
    path.write_bytes(bytes(range(256)) * 4096)
    known = file_identity("input", str(path))
    assert known["input.bytes"] == 1 << 20 and file_identity("input", str(path)) == known
    stat = os.stat(path)
    with open(path, "r+b") as file:
        file.write(b"x")
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))  # even so
    assert file_identity("input", str(path))["input.sample"] != known["input.sample"]
    path.write_bytes(b"")
    assert file_identity("input", str(path))["input.bytes"] == 0
    with pytest.raises(InputError, match="no such input"):
        file_identity("input", str(tmp_path / "gone"))


def test_ten_gigabytes_are_planned_at_once(tmp_path):
    path = tmp_path / "in"
    with open(path, "wb") as file:
        file.truncate(10 << 30)
    start = time.process_time()
    seal(Manifest(fingerprint=file_identity("input", str(path)), cut=Lines(10 << 30, 8 << 20)))
    assert time.process_time() - start < 2
