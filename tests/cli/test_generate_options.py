"""Options of `tilewright generate`: what is out of range, what has no effect, what is taken unless given."""

import os
from pathlib import Path

import pytest

from gpt2_models import save
from options import replaced
from tilewright.cli.generate import Options


@pytest.fixture(name="run")
def _run(run, tmp_path):
    """run(*options) -> (exit code, stdout, stderr) of `generate -p m -i in.jsonl -o out.jsonl --restart` and these."""
    save(tmp_path / "m")
    (tmp_path / "in.jsonl").write_text('{"prompt": "the cat"}\n')
    usual = ("generate", "-p", "m", "-i", "in.jsonl", "-o", "out.jsonl", "--restart")
    return lambda *options: run(*replaced(usual, *options))


SAMPLING = {
    "--temperature": ("2.5", "Error: --temperature is 2.5; a number from 0 to 2 is wanted"),
    "--top-p": ("0", "Error: --top-p is 0.0; a number above 0 and at most 1 is wanted"),
    "--top-k": ("-2", "--top-k is -2"),
    "--min-p": ("1.5", "--min-p is 1.5"),
    "--repetition-penalty": ("0", "--repetition-penalty is 0"),
    "--logprobs": ("21", "--logprobs is 21"),
    "--min-tokens": ("17", "--min-tokens is 17; at most --max-tokens, 16,"),
    "--samples": ("2", "--samples is 2; 1 with --temperature 0"),
    "--stop": ("", "--stop is ['']; a string or a list of strings, none empty, is wanted"),
    "--stop-id": ("-1", "--stop-id is [-1]; a list of token ids from 0 is wanted"),
    "--stop-id=": ("4000", "--stop-id is 4000; the model's tokens are 0 to "),
    "--max-tokens": ("0", "--max-tokens"),
    "--max-batch-memory": ("much", "'much' is no size"),
    "--threads": ("0", "--threads"),
    "--dtype": ("float8", "float8"),
    "--presence-penalty": ("-3", "--presence-penalty is -3.0; a number from -2 to 2 is wanted"),
    "--frequency-penalty": ("2.5", "--frequency-penalty is 2.5; a number from -2 to 2 is wanted"),
    "--bad-word": ("", "--bad-word is ['']; a string or a list of strings, none empty, is wanted"),
}


@pytest.mark.parametrize("option", SAMPLING)
def test_an_option_out_of_range(run, option):
    value, message = SAMPLING[option]
    before = sorted(os.listdir("."))
    more = ("--temperature", "0") if option == "--samples" else ()
    code, out, errors = run(option.removesuffix("="), value, *more)
    assert code == 2 and message in out + errors
    assert sorted(os.listdir(".")) == before


def test_options_that_only_a_temperature_gives_an_effect(run):
    greedy = ("--max-tokens", "1", "--temperature", "0")
    code, _, errors = run(*greedy, "--seed", "5", "--top-p", "0.5")
    said = "the likeliest token is taken, whatever is given as --seed and --top-p"
    assert code == 0 and errors == f"At --temperature 0 {said}, but for records that give their own\n"
    Path("in.txt").write_text("the cat\n")
    code, _, errors = run(*greedy, "--top-k", "3", "-i", "in.txt")
    assert code == 0 and errors == f"At --temperature 0 {said.replace('--seed and --top-p', '--top-k')}\n"
    code, _, errors = run(*greedy, "--seed", "0", "--top-p", "1", "-i", "in.txt")
    assert code == 0 and said in errors, "also where the value is the default"
    code, _, errors = run("--max-tokens", "1", "--seed", "5")
    assert code == 0 and errors == ""


def test_what_is_taken_unless_given_is_in_the_help(run):
    _, out, _ = run("--help")
    out = " ".join(out.split())
    assert f"per completion. [default: {Options.max_tokens}; at least 1]" in out
    assert f"likeliest token. [default: {Options.temperature}]" in out
