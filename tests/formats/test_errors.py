"""Errors: one paragraph with the place and the remedy, and nothing in it that could drive a terminal."""

import pytest

from tilewright.errors import InputError, InternalError, Interrupted, ResourceError, UsageError


@pytest.mark.parametrize(
    ("kind", "code"), [(UsageError, 2), (InputError, 3), (ResourceError, 4), (InternalError, 5), (Interrupted, 75)]
)
def test_exit_codes(kind, code):
    assert kind("x").exit_code == code


def test_paragraph():
    error = InputError("the input is empty", path="a.bin", where="byte 0", remedy="write it first")
    assert str(error) == "a.bin, byte 0: the input is empty. Write it first"
    assert str(InputError("bare")) == "bare"


def test_control_characters_are_escaped():
    text = str(InputError("name \x1b[31m\u202e\ud800", path="a\nb\x07"))
    assert text == "a\\nb\\x07: name \\x1b[31m\\u202e\\ud800"
