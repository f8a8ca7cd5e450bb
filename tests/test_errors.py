"""Errors: what they say, the fields that carry it, and that Python's own handlers catch them."""

import json
import pickle
from pathlib import Path

import pytest

from tilewright.errors import (
    InputError,
    Interrupted,
    NotEnoughMemory,
    Refused,
    ResourceError,
    TilewrightError,
    UsageError,
    error_json,
)
from tilewright.formats.files import naming
from tilewright.formats.volumes import MemoryShort
from tilewright.generation.sampling import ParameterError, SamplingParams

FIELDS = ("message", "parameter", "value", "rule", "path", "where", "remedy")


def test_a_message_is_made_of_parameter_value_and_rule():
    error = UsageError(parameter="workers", value="0", rule="it must be at least 1", remedy="give --workers 1")
    assert str(error) == "workers is 0; it must be at least 1. Give --workers 1"
    assert error.remedy == "give --workers 1"


@pytest.mark.parametrize(
    ("kind", "python"),
    [
        (UsageError, ValueError),
        (Refused, ValueError),
        (ParameterError, ValueError),
        (InputError, ValueError),
        (ResourceError, OSError),
        (NotEnoughMemory, MemoryError),
        (NotEnoughMemory, OSError),
        (MemoryShort, MemoryError),
    ],
)
def test_errors_are_pythons_own(kind, python):
    assert issubclass(kind, python) and issubclass(kind, TilewrightError)


@pytest.mark.parametrize(
    "error",
    [
        UsageError("it is wrong", path=Path("x"), where="line 7", remedy="mend it"),
        ResourceError("the disk is full", path="out"),
        NotEnoughMemory("too little"),
        ParameterError("top_p", "2", "at most {} is wanted", other="n"),
        MemoryShort("it takes 7 bytes", missing=3, path="v.npy", remedy="use .npy"),
        Interrupted("stopped by SIGTERM: all is kept", value="SIGTERM"),
    ],
)
def test_pickling_keeps_the_fields(error):
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) and str(again) == str(error) and again.exit_code == error.exit_code
    assert [getattr(again, name) for name in FIELDS] == [getattr(error, name) for name in FIELDS]
    assert vars(again) == vars(error)


def test_json_has_the_fields_that_are_known():
    told = json.loads(error_json(UsageError(parameter="n", value="0", rule="it must be at least 1")))
    assert told["error"] == {
        "code": 2, "message": "n is 0; it must be at least 1", "path": None, "where": None, "remedy": None,
        "parameter": "n", "value": "0", "rule": "it must be at least 1",
    }  # fmt: skip
    assert set(json.loads(error_json(InputError("bad")))["error"]) == {"code", "message", "path", "where", "remedy"}


def test_an_error_of_ours_is_not_taken_for_the_systems():
    """`naming` wraps an OSError; a ResourceError, which is one, passes with its own path and remedy."""
    with pytest.raises(ResourceError, match=r"^inner: the disk is full") as caught, naming("outer", "write"):
        raise ResourceError("the disk is full", path="inner", remedy="make space")
    assert caught.value.remedy == "make space"


def test_a_parameter_is_named_as_its_user_spells_it():
    with pytest.raises(ParameterError) as caught:
        SamplingParams(max_tokens=4, min_tokens=5)
    assert str(caught.value) == "min_tokens is 5; at most max_tokens, 4, is wanted"
    spelled = caught.value.spelled(lambda name: f"--{name.replace('_', '-')}")
    assert str(spelled) == "--min-tokens is 5; at most --max-tokens, 4, is wanted"
    assert (caught.value.parameter, caught.value.value) == ("min_tokens", "5")
