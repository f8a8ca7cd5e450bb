"""Safetensors headers that lie are refused with an InputError; good ones are mapped without a copy."""

import json
import resource
import struct
import time

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tilewright.errors import InputError
from tilewright.formats import safetensors as ours
from tilewright.formats.blocks import blocks_of
from tilewright.formats.files import InputFile


def read(path):
    with InputFile(path, "model's weights") as file:
        return ours.map_tensors(file, ours.read_header(file))


def pack(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(dtype="F32", shape=(2,), begin=0, end=8):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


@pytest.fixture
def tensors(rng):
    return {
        "a": rng.standard_normal((3, 5), np.float32),
        "b": rng.standard_normal((2, 3, 4), np.float32).astype(ml_dtypes.bfloat16),
        "c": rng.standard_normal(7, np.float32).astype(np.float16),
        "scalar": np.array(2.5, np.float32),
    }


def test_reads_what_the_reference_implementation_writes(tmp_path, tensors):
    safetensors.numpy.save_file(tensors, tmp_path / "m", metadata={"format": "pt"})
    found = read(tmp_path / "m")
    assert found.keys() == tensors.keys()
    for name, array in tensors.items():
        assert found[name].dtype == array.dtype and found[name].shape == array.shape
        assert found[name].tobytes() == array.tobytes()
        assert not found[name].flags.writeable and not found[name].flags.owndata


def test_the_reference_implementation_reads_what_we_write(tmp_path, rng):
    arrays = {"z": rng.standard_normal((3, 5), np.float32), "a": rng.standard_normal(4, np.float32)}
    ours.write_tensors(tmp_path / "m", [(name, array.shape, blocks_of(array)) for name, array in arrays.items()])
    found = safetensors.numpy.load_file(tmp_path / "m")
    assert {name: array.tobytes() for name, array in found.items()} == {n: a.tobytes() for n, a in arrays.items()}
    with InputFile(tmp_path / "m", "weights") as file:
        header = ours.read_header(file)
    assert list(header) == ["z", "a"] and header["z"].begin % ours.ALIGN == 0


def test_misaligned_tensors_are_copied(tmp_path):
    header = {"odd": entry("U8", (1,), 0, 1), "a": entry("F32", (2,), 1, 9)}
    (tmp_path / "m").write_bytes(pack(header, b"\x07" + np.array([1.5, -2], "<f4").tobytes()))
    found = read(tmp_path / "m")["a"]
    assert found.flags.aligned and found.tolist() == [1.5, -2] and not found.flags.writeable


def test_blocks_must_fill_the_shape(tmp_path):
    with pytest.raises(ValueError, match="8 bytes were given"):
        ours.write_tensors(tmp_path / "m", [("a", (3,), [np.zeros(2, np.float32)])])
    assert list(tmp_path.iterdir()) == []


BIG = 2**63
LIES = {
    "empty file": (b"", "0 bytes"),
    "seven bytes": (b"\0" * 7, "7 bytes"),
    "length beyond the file": (pack({}, length=10**6), "claims 1,000,000"),
    "length of 2^63": (pack({}, length=BIG), "claims 9,223,372,036,854,775,808"),
    "length of 2^64 - 1": (pack({}, length=2**64 - 1), "claims"),
    "empty header": (pack(b""), "does not start"),
    "a list": (pack(b"[]"), "does not start"),
    "leading space": (pack(b" {}"), "does not start"),
    "truncated": (pack(b'{"a":'), "breaks the safetensors format: the JSON is not whole, it ends at byte 5"),
    "trailing words": (pack(b"{} x"), "breaks the safetensors format"),
    "bad UTF-8": (pack(b'{"\xff":1}'), "breaks the safetensors format"),
    "a lone surrogate": (pack(b'{"\\ud800":1}'), r"\ud800 is half of a surrogate pair"),
    "not an entry": (pack({"a": 1}), "object"),
    "unknown field": (pack({"a": {**entry(), "x": 1}}, bytes(8)), "unknown field"),
    "missing field": (pack({"a": {"dtype": "F32", "shape": [2]}}, bytes(8)), "data_offsets"),
    "unknown type": (pack({"a": entry("F31")}, bytes(8)), "'F31'"),
    "long type": (pack({"a": entry("F" * 10**5)}, bytes(8)), "length <= 16"),
    "negative size": (pack({"a": entry(shape=(-2,))}, bytes(8)), ">= 0"),
    "fractional size": (pack({"a": entry(shape=(2.5,))}, bytes(8)), "float"),
    "boolean size": (pack({"a": entry(shape=(True, 2))}, bytes(8)), "bool"),
    "size of 2^63": (pack({"a": entry(shape=(BIG,))}, bytes(8)), "<="),
    "product overflows": (pack({"a": entry(shape=(2**32, 2**32))}, bytes(8)), "more than an array can have"),
    "product wraps to 8 bytes": (pack({"a": entry(shape=(2**61 + 1, 2))}, bytes(8)), "more than an array can have"),
    "zero hides huge sizes": (pack({"a": entry(shape=(0, 2**62, 2**62), end=0)}), "more than an array can have"),
    "too many dimensions": (pack({"a": entry(shape=(1,) * 9 + (2,))}, bytes(8)), "length <= 8"),
    "10,000 digits": (pack(b'{"a":{"dtype":"F32","shape":[' + b"9" * 10**4 + b'],"data_offsets":[0,8]}}'), "range"),
    "offsets of 2^63": (pack({"a": entry(begin=BIG, end=BIG + 8)}, bytes(8)), "<="),
    "end before begin": (pack({"a": entry(begin=8, end=0)}, bytes(8)), "lies at"),
    "end beyond the file": (pack({"a": entry(shape=(4,), end=16)}, bytes(8)), "lies at"),
    "three offsets": (pack({"a": {**entry(), "data_offsets": [0, 8, 8]}}, bytes(8)), "length 2"),
    "shape larger than bytes": (pack({"a": entry(shape=(3,))}, bytes(8)), "takes 12"),
    "shape smaller than bytes": (pack({"a": entry(shape=(1,))}, bytes(8)), "takes 4"),
    "overlap": (pack({"a": entry(), "b": entry(begin=4, end=12)}, bytes(12)), "the tensor before it ends"),
    "the same bytes twice": (pack({"a": entry(), "b": entry()}, bytes(8)), "the tensor before it ends"),
    "gap": (pack({"a": entry(), "b": entry(begin=12, end=20)}, bytes(20)), "the tensor before it ends"),
    "gap at the start": (pack({"a": entry(begin=4, end=12)}, bytes(12)), "the tensor before it ends"),
    "bytes left over": (pack({"a": entry()}, bytes(9)), "1 bytes belong to no tensor"),
    "no tensor, some data": (pack({}, bytes(4)), "belong to no tensor"),
    "name twice": (pack(b'{"a":%b,"a":%b}' % ((json.dumps(entry()).encode(),) * 2), bytes(8)), "given twice"),
    "field twice": (
        pack(b'{"a":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}}', bytes(8)),
        "'dtype' is given twice",
    ),
    "metadata of another kind": (pack({"__metadata__": {"a": 1}}), "breaks the safetensors format"),
    "nested 100,000 deep": (pack(b'{"a":' + b"[" * 10**5 + b"]" * 10**5 + b"}"), "breaks the safetensors format"),
    "metadata nested": (
        pack(b'{"__metadata__":' + b'{"a":' * 10**5 + b"1" + b"}" * 10**5 + b"}"),
        "breaks the safetensors format",
    ),
    "two million items": (pack(b'{"a":[' + b"1," * 2 * 10**6 + b"1]}"), "1,000,000 items"),
    "a pickle": (b"\x80\x04\x95\x10\0\0\0\0\0\0\0\x8c\x05posix\x94", "claims"),
}


@pytest.mark.parametrize("name", LIES)
def test_lies_are_refused(tmp_path, name):
    content, message = LIES[name]
    (tmp_path / "m").write_bytes(content)
    start, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(InputError) as caught:
        read(tmp_path / "m")
    assert message in str(caught.value) and str(tmp_path / "m") in str(caught.value) and len(str(caught.value)) < 900
    assert time.perf_counter() - start < 1
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024


BASE = pack(
    {"__metadata__": {"format": "pt"}, "a": entry(shape=(2, 2), end=16), "b": entry("BF16", (2,), 16, 20)}, bytes(20)
)
PIECES = [
    b"0",
    b"9" * 30,
    b"-1",
    b"null",
    b"{",
    b"}",
    b"[",
    b"]",
    b'"',
    b",",
    b":",
    b"\xff",
    b"1e9",
    b"\\u0000",
    b"F64",
]


def good_or_input_error(path, content):
    path.write_bytes(content)
    try:
        arrays = read(path)
    except InputError as error:
        assert "\n" not in str(error)
        return
    for array in arrays.values():
        array.tobytes()


@given(
    changes=st.lists(
        st.tuples(
            st.integers(0, len(BASE) - 1), st.integers(0, 3), st.one_of(st.binary(max_size=9), st.sampled_from(PIECES))
        ),
        min_size=1,
        max_size=4,
    )
)
@settings(
    max_examples=3 * settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_mutated_files(tmp_path, changes):
    content = BASE
    for place, removed, inserted in changes:
        content = content[:place] + inserted + content[place + removed :]
    good_or_input_error(tmp_path / "m", content)


@given(
    sizes=st.lists(st.sampled_from([0, 1, 2, 4, 8, 12, 2**31, 2**32, 2**62, 2**63, -1]), min_size=0, max_size=9),
    offsets=st.lists(st.sampled_from([0, 4, 8, 16, 20, 2**32, 2**62, 2**63, 2**64, -8]), min_size=0, max_size=3),
    dtype=st.sampled_from(["F32", "BF16", "F64", "I8", "F4", ""]),
    again=st.booleans(),
)
@settings(
    max_examples=3 * settings.default.max_examples,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)
def test_invented_headers(tmp_path, sizes, offsets, dtype, again):
    lie = {"dtype": dtype, "shape": sizes, "data_offsets": offsets}
    header = {"a": lie, "b": entry(begin=8, end=16)} if again else {"a": lie}
    good_or_input_error(tmp_path / "m", pack(header, bytes(16)))
