"""Sealed files: every changed bit is found; a manifest names what differs; an input is known by little of it."""

import dataclasses
import os
import random
import re
import time

import pytest

from tilewright import hardware
from tilewright.errors import InputError
from tilewright.runtime.fingerprint import device_class
from tilewright.runtime.jobs.cut import Lines, Records, Whole
from tilewright.runtime.jobs.manifest import (
    Damaged,
    Manifest,
    check_unchanged,
    encoded,
    file_identity,
    seal,
    unseal,
)

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


def test_a_file_that_was_touched_or_more():
    """Times are told as a clock shows them; size and sample count whatever the time is."""
    was = {"input.bytes": 3, "input.sample": "ab" * 32, "input.changed": 1_700_000_000_123_456_789, "seed": 1}
    then = Manifest(fingerprint=was, cut=Whole())
    now = Manifest(fingerprint={**was, "input.changed": 1_700_000_007_000_000_000}, cut=Whole())
    day = time.strftime("%F", time.localtime(1_700_000_000))
    assert re.fullmatch(rf"input\.changed was {day} ..:..:20\.123 and is {day} ..:..:27\.000", then.differs(now))
    assert then.touched(now) == ["input"] and then.differs(now, but=["input"]) is None
    assert then.touched(then) == []
    for field, value, told in (
        ("input.bytes", 4, "the size of the input was 3 bytes and is 4 bytes"),
        ("input.sample", "ab" * 31 + "cd", "the input has other content, and the same size"),
    ):
        other = Manifest(fingerprint={**now.fingerprint, field: value}, cut=Whole())
        assert then.touched(other) == [] and then.differs(other, but=[]) == told
    other = Manifest(fingerprint={**was, "input.bytes": 4628}, cut=Whole())
    assert then.differs(other) == "the size of the input was 3 bytes and is 4,628 bytes"


@pytest.mark.parametrize("size", [0, 1, 65536, 65537, 999_999, (1 << 20) - 1, 1 << 20])
def test_samples_are_all_of_a_small_file(tmp_path, size, rng):
    """Whichever of its bytes changes."""
    path, content = tmp_path / "in", bytearray(rng.bytes(size))
    path.write_bytes(content)
    known = file_identity("input", str(path))["input.sample"]
    for at in rng.integers(0, size, 30).tolist() if size else []:
        content[at] ^= 1
        path.write_bytes(content)
        assert file_identity("input", str(path))["input.sample"] != known, at
        content[at] ^= 1


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


@pytest.mark.parametrize(
    ("name", "features", "said"),
    [
        ("AMD EPYC", ["avx512bf16"], "cpu, 16 lanes, avx512bf16"),
        ("Intel Xeon", ["avx512bf16"], "cpu, 16 lanes, avx512bf16, float32 products"),
        ("Intel Xeon", ["avx512bf16", "amx-bf16"], "cpu, 16 lanes, amx-bf16, avx512bf16"),
        ("Intel Xeon", [], "cpu, 16 lanes"),
    ],
)
def test_processors_that_round_in_other_ways_have_other_names(name, features, said, monkeypatch):
    machine = dataclasses.replace(hardware.cpu(), name=name, features=frozenset({"avx512f", "avx512vl", *features}))
    monkeypatch.setattr(hardware, "cpu", lambda: machine)
    assert device_class("cpu") == said
