"""Errors: what they say, the fields that carry it, and that Python's own handlers catch them."""

import json
import pickle
import re
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from tilewright.errors import (
    InputError,
    Interrupted,
    NotEnoughMemory,
    Refused,
    ResourceError,
    TilewrightError,
    UsageError,
    WrongType,
    error_json,
)
from tilewright.formats.files import naming
from tilewright.formats.volumes import MemoryShort
from tilewright.generation.sampling import ParameterError, ParameterTypeError, SamplingParams

A = B = np.ones((2, 2), np.float32)
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
        (WrongType, TypeError),
        (WrongType, ValueError),
        (ParameterTypeError, TypeError),
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
        ParameterTypeError("n", "'8'", "an integer is wanted"),
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


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: tw.load(5), "the path is 5; a text or a PathLike is wanted"),
        (lambda: tw.SamplingParams(max_tokens="8"), "max_tokens is '8'; an integer of at least 1 is wanted"),
        (lambda: tw.SamplingParams(max_tokens=8.5), "max_tokens is 8.5; an integer of at least 1 is wanted"),
        (lambda: tw.SamplingParams(ignore_eos=1), "ignore_eos is 1; true or false is wanted"),
        (lambda: tw.SamplingParams(stop=5), "stop is 5; a string or a list of strings, none empty, is wanted"),
        (lambda: tw.SamplingParams(stop_token_ids=["a"]), "stop_token_ids is ['a']; a list of token ids"),
        (lambda: tw.SamplingParams(logit_bias=5), "logit_bias is 5; an object of token ids, each with a number"),
        (lambda: tw.SamplingParams.of(max_new_tokens="8"), "max_new_tokens is '8'; an integer of at least 1 is wanted"),
        (lambda: tw.load("critic").classify(5), "sentences is 5; a list of sentences is wanted"),
        (lambda: tw.load("critic").classify("A film."), "sentences is one text; a list of sentences is wanted"),
        (lambda: tw.load("critic").classify([5]), "sentence 0 is 5; text or a sequence of up to 64 token ids"),
        (lambda: tw.load("critic", table_memory="1G"), "table_memory is '1G'; a number of bytes is wanted"),
        (lambda: tw.load("poet").generate(5), "prompts is 5; a list is wanted"),
        (lambda: tw.load("poet").generate(["a"], 5), "params is 5; SamplingParams is wanted"),
        (
            lambda: list(tw.load("poet").generate([5])),
            "prompt 0 (counted from 0) is int64 of shape (); integer token ids (n,) are wanted",
        ),
        (lambda: tw.matmul("a", B), "matmul: a is <U1; float32 or bfloat16 is wanted"),
        (lambda: tw.matmul(A, object()), "matmul: b is object; float32 or bfloat16 is wanted"),
        (
            lambda: tw.matmul(A, B, out="c"),
            "matmul: out is str; a writeable float32 or bfloat16 NumPy array",
        ),
        (lambda: tw.embedding(["a"], B), "ids is <U1; integers are wanted"),
        (lambda: tw.threads("two").__enter__(), "threads is 'two'; an integer is wanted"),
        (lambda: tw.load("portraits").generate("a"), "z is <U1 (); real numbers (n, 100) are wanted"),
    ],
)
def test_a_wrong_type_is_a_type_error(call, message):
    """And a UsageError, so that the command line tells it as one."""
    with pytest.raises(TypeError, match=re.escape(message)) as caught:
        call()
    assert isinstance(caught.value, UsageError) and caught.value.exit_code == 2


@pytest.mark.parametrize(
    "call",
    [
        lambda: tw.matmul(A, B.astype(np.float64)),
        lambda: tw.matmul(A, B[:1]),
        lambda: tw.threads(0).__enter__(),
        lambda: tw.SamplingParams(max_tokens=0),
        lambda: tw.SamplingParams(stop=""),
        lambda: tw.SamplingParams(stop_token_ids=[-1]),
        lambda: tw.SamplingParams(logit_bias={1: 1000}),
        lambda: list(tw.load("poet").generate([[]])),
        lambda: tw.load("critic").classify([[1, 2, 10**9]]),
    ],
)
def test_a_wrong_value_is_no_type_error(call):
    with pytest.raises(UsageError) as caught:
        call()
    assert not isinstance(caught.value, TypeError)


def test_an_empty_prompt_is_named_and_the_remedy_given():
    with pytest.raises(UsageError, match=r"^prompt 1 \(counted from 0\) is empty; .*Leave it out, or give '<\|endoft"):
        list(tw.load("poet").generate(["a", ""]))


def test_a_long_path_is_shown_by_its_ends():
    error = InputError("it is damaged", path=f"/{'a' * 5000}/x.npy")
    assert str(error) == f"/{'a' * 499}...{'a' * 494}/x.npy: it is damaged" and len(error.path) == 5007
