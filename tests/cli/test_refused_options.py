"""Options that make no sense together are refused by name: none is ignored, and none of two is taken in silence."""

import importlib

import pytest

from tilewright.ops.core.ladder import operations

SIZES = ("m", "n", "k")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("op", operations())
def test_a_size_is_taken_or_refused_by_name(run, op, size):
    """Every operation with every size option: a Case with an integer of that letter, or an error that names both."""
    spec = importlib.import_module(f"tilewright.bench.sizes.{op}")
    takes = isinstance(getattr(spec.sizes()[0], size.upper(), None), int)
    code, out, errors = run("ladder", op, f"--{size}", "5", "--explain")
    if takes:
        assert code == 0 and "-> cpu." in out
    else:
        assert code == 2 and f"--{size} 5" in errors and op in errors and "internal" not in errors


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["all", "--k", "5"], ["all", "--k 5"]),
        (["all", "--rung", "cpu.naive"], ["all", "--rung cpu.naive"]),
        (["matmul", "--device", "cuda", "--threads", "2"], ["matmul", "--threads 2"]),
        (["matmul", "--explain", "--save"], ["matmul", "--save"]),
        (["matmul", "--explain", "--threads", "1"], ["matmul", "--threads"]),
        (["matmul", "--dtype", "tf32"], ["matmul", "--dtype tf32"]),
        (["correlate", "--dtype", "bfloat16"], ["correlate", "--dtype bfloat16"]),
        (["correlate", "--device", "cuda"], ["correlate", "GPU"]),
        (["softmax", "--label", "no such"], ["softmax", "--label no such"]),
        (["conv1d", "--k", "5000"], ["conv1d", "--k 5000"]),
        (["matmul", "--rung", "no.such"], ["matmul", "no.such"]),
        (["matmul", "--rung", "cpu.packed", "--rung", "cpu.vectors"], ["--rung", "more than once"]),
    ],
)
def test_ladder_refuses(run, arguments, words):
    code, out, errors = run("ladder", *arguments)
    assert code == 2 and all(word in errors for word in words), errors
    assert "GFLOP/s" not in out


def test_all_operations_of_a_class_leave_out_those_that_have_none(run):
    code, out, _ = run("ladder", "all", "--dtype", "bfloat16", "--explain")
    assert code == 0 and "matmul N=" in out and "correlate taps=" not in out


WORKLOADS = ("sentiment", "gpt2", "dcgan", "convolve", "scaling")
TAKES = {  # option and a value -> the workloads that have it
    ("--against", "none"): ("sentiment", "gpt2", "dcgan", "convolve"),
    ("--input", "x"): ("sentiment", "gpt2"),
    ("--count", "2"): ("sentiment", "gpt2", "dcgan", "scaling"),
    ("--dtype", "float32"): ("sentiment", "gpt2", "dcgan", "scaling"),
    ("--threads", "1"): ("sentiment", "gpt2", "dcgan", "convolve"),
    ("--model", "x"): ("gpt2",),
    ("--max-tokens", "9"): ("gpt2", "scaling"),
    ("--only", "x"): ("gpt2", "scaling"),
    ("--rounds", "4"): ("gpt2", "dcgan"),
    ("--profile",): ("gpt2",),
    ("--workers", "1,3"): ("scaling",),
    ("--engine", "mpi"): ("scaling",),
    ("--launcher", "x"): ("scaling",),
    ("--folder", "x"): ("scaling",),
    ("--tiny",): ("scaling",),
}


@pytest.mark.parametrize("option", TAKES, ids=lambda option: option[0])
def test_bench_refuses_an_option_of_another_workload(run, option):
    for workload in WORKLOADS:
        _, about, _ = run("bench", workload, "--help")
        assert (option[0] in about) == (workload in TAKES[option])
        if workload not in TAKES[option]:
            code, _, errors = run("bench", workload, *option)
            assert code == 2 and option[0] in errors and workload in errors


def test_bench_has_old_spellings(run):
    code, about, _ = run("bench", "conv3d", "--help")
    assert code == 0 and "volumes" in about
    code, _, errors = run("bench", "--save", "gpt2")
    assert code == 2 and "write it after: tilewright bench WORKLOAD --save" in " ".join(errors.split())
    code, about, _ = run("bench", "--help")
    assert code == 0 and "convolve" in about and "conv3d" not in about


VERBS = {
    "generate": ["--model", "poet", "-i", "a.txt", "-o", "b.txt"],
    "classify": ["--model", "critic", "-i", "a.txt", "-o", "b.jsonl"],
    "draw": ["--model", "portraits", "--count", "1", "-o", "b.png"],
    "convolve": ["-i", "a.npy", "--kernel", "gaussian:1", "-o", "b.npy"],
}


@pytest.mark.parametrize("before", [[], ["plan"]])
@pytest.mark.parametrize("verb", VERBS)
def test_an_operation_that_is_forced_twice_is_refused(run, verb, before):
    rungs = ["--rung", "matmul=cpu.packed", "--rung", "conv3d=cpu.taps", "--rung", "matmul=cpu.vectors"]
    code, _, errors = run(*before, verb, *VERBS[verb], *rungs)
    assert code == 2 and "matmul is given twice, as cpu.packed and cpu.vectors" in errors


@pytest.mark.parametrize("before", [[], ["plan"]])
@pytest.mark.parametrize("verb", VERBS)
def test_an_option_with_one_value_that_is_given_twice_is_refused(run, verb, before):
    code, _, errors = run(*before, verb, *VERBS[verb], "-o", "c.npy")
    assert code == 2 and "--output" in errors and "more than once" in errors
