"""`--config FILE`: options of a verb in a TOML file."""

from pathlib import Path

import pytest

from gpt2_models import save
from tilewright import hardware


@pytest.fixture(name="run")
def _run(run, tmp_path):
    """run(text of the TOML, *options) -> (exit code, stdout, stderr) of `generate --config` with them."""
    save(tmp_path / "m")
    (tmp_path / "in.jsonl").write_text('{"prompt": "the cat"}\n')

    def call(text, *options):
        (tmp_path / "job.toml").write_text(text)
        return run("generate", "--config", "job.toml", *options)

    return call


USUAL = 'model = "m"\ninput = "in.jsonl"\noutput = "out.jsonl"\n'


def test_the_options_of_a_file_count_as_those_of_the_command_line(run):
    code, out, errors = run(f'{USUAL}max-tokens = 3\nignore_eos = true\nbad-word = ["cat", "dog"]\ntemperature = 0\n')
    assert (code, errors) == (0, "") and "at most 3, greedy" in out
    given = ("--max-tokens", "3", "--ignore-eos", "--bad-word", "cat", "--bad-word", "dog", "--temperature", "0")
    before = Path("out.jsonl").read_bytes()
    code, out, errors = run("", "-p", "m", "-i", "in.jsonl", "-o", "out.jsonl", *given)
    assert (code, errors) == (0, "") and "Nothing to do" in out  # the same job
    assert Path("out.jsonl").read_bytes() == before


def test_the_command_line_wins(run):
    code, out, _ = run(f"{USUAL}max-tokens = 3\nrestart = true\n", "--max-tokens", "2", "-o", "other.jsonl")
    assert code == 0 and "at most 2" in out and Path("other.jsonl").exists() and not Path("out.jsonl").exists()


def test_plan_takes_it(run, tmp_path):
    run(f"{USUAL}max-tokens = 3\n")
    from tilewright.cli import main

    with pytest.raises(SystemExit) as caught:
        main(["plan", "generate", "--config", "job.toml"])
    assert not caught.value.code


REFUSED = {
    "max-tokns = 3": "job.toml: 'max-tokns' is no option of this verb; did you mean max-tokens?",
    "max-tokens = 3\nmax_tokens = 4": "job.toml: 'max_tokens' is given twice, with a hyphen and with an underscore",
    "max-tokens = 0": "'0' is given; a number greater than or equal to 1 is wanted (from job.toml)",
    "max-tokens = [1, 2]": "job.toml: max-tokens is [1, 2]; text or a number is wanted",
    "max-tokens = true": "job.toml: max-tokens is true; text or a number is wanted",
    "seed = 2026-11-25": "job.toml: seed is 2026-11-25; text or a number is wanted",
    "seed = 2026-11-25T07:08:09Z": "job.toml: seed is 2026-11-25 07:08:09+00:00; text or a number is wanted",
    "ignore-eos = 'yes'": 'job.toml: ignore-eos is "yes"; true or false is wanted',
    "stop = [['a', true]]": 'job.toml: stop is ["a", true]; text or a number is wanted',
    "max-batch-memory = 'much'": "'much' is no size; write 256M or 4G (from job.toml)",
    "temperature = 7": "--temperature is 7.0; a number from 0 to 2 is wanted (from job.toml)",
    "threads = 100000": "threads can be asked for (from job.toml)",
    "rung = 'matmul=cpu.none'": "matmul has no rung 'cpu.none' (from job.toml)",
    "rung = 'conv3d=cpu.rows'": "--rung is conv3d=cpu.rows; it has no effect: generate runs",
    "ignore-eos = 1": "job.toml: ignore-eos is 1; true or false is wanted",
    "max-tokens: 3": "job.toml is no TOML: ",
    "config = 'other.toml'": "job.toml: 'config' is no option of this verb",
    "help = true": "job.toml: 'help' is no option of this verb; a key is an option's long name, as in max-errors = 3",
    "[generate]\nmax-tokens = 3": "job.toml: 'generate' is no option of this verb; options are given without tables",
}


@pytest.mark.parametrize("text", REFUSED)
def test_a_file_that_is_refused(run, text):
    code, out, errors = run(f"{USUAL}{text}\n")
    assert code == 2 and REFUSED[text] in " ".join((out + errors).split())


def test_a_rung_for_a_gpu_that_is_missing(run, monkeypatch):
    monkeypatch.setattr(hardware, "unavailable", lambda engine: "no driver")
    code, _, errors = run(f"{USUAL}rung = 'matmul=simt.buffered'\n", "--device", "auto")
    assert code == 4 and "(from job.toml)" in errors


def test_a_file_that_is_missing(run):
    code, _, errors = run(USUAL, "--config", "nope.toml")
    assert code == 2 and "more than once" in errors
    Path("job.toml").unlink()
    from tilewright.cli import main

    with pytest.raises(SystemExit) as caught:
        main(["generate", "--config", "job.toml"])
    assert caught.value.code == 2
