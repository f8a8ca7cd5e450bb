"""`--help` of every verb: groups, defaults, an example, whole sentences; and the completion of a shell."""

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tilewright import cli
from tilewright.cli import VERBS
from tilewright.cli._options import CHECKS, FILES, MACHINE, MESSAGES, RUNS, SAMPLING, SCORING

WORKLOADS = ("sentiment", "embed", "gpt2", "score", "dcgan", "convolve", "scaling")
COMMANDS = [*((verb,) for verb in VERBS), *(("bench", workload) for workload in WORKLOADS)]
OWN = {"generate": [SAMPLING], "score": [SCORING]}  # groups of options
JOBS = ("generate", "score", "classify", "embed", "draw", "convolve")


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_help_of_a_command(run, command):
    code, out, _ = run(*command, "--help")
    assert code == 0 and f"\n  tilewright {' '.join(command)}" in out, "it has no example"
    assert "..." not in re.sub(r'"\.\.\."|1, 2, \.\.\.|VERB \.\.\.', "", out), "a sentence is cut off"
    assert not re.search(r"x>=|<=x|<\w+>|unless given|9223372036854775807|None|\[default: \(", out)
    assert max(map(len, out.splitlines())) <= 110


@pytest.mark.parametrize("verb", JOBS)
def test_options_of_a_job_are_in_groups(run, verb):
    _, out, _ = run(verb, "--help")
    checks = [] if verb == "embed" else [CHECKS]
    groups = [FILES, *OWN.get(verb, []), MACHINE, *checks, MESSAGES, RUNS, "Options"]
    assert re.findall(r"^(\S.*):$", out, re.MULTILINE) == groups
    parts = dict(zip(groups, re.split(r"^\S.*:$", out, flags=re.MULTILINE)[1:], strict=True))
    assert "--input" in parts[FILES] and "--dtype" in parts[MACHINE] and "--rung" in parts[MACHINE]
    assert "--restart" in parts[RUNS] and "--json" in parts[MESSAGES] and "--help" in parts["Options"]


def test_defaults_are_shown(run):
    _, out, _ = run("generate", "--help")
    text = " ".join(out.split())
    for default in ("16; at least 1", "1.0", "one per core; at least 1", "auto", "20; at least 0", "all; at least 1"):
        assert f"[default: {default}]" in text


def test_the_workloads_of_bench_are_whole_sentences(run):
    _, out, _ = run("bench", "--help")
    listed = " ".join(out.partition("Commands:")[2].split())
    assert (
        "beside SciPy, PyTorch, Halide and OpenCV. Then time the parts of a job." in listed
        and "All runs must write the same bytes." in listed
    )


def test_ladder_without_an_operation_lists_them(run):
    from tilewright.ops.core.ladder import operations

    code, out, _ = run("ladder")
    assert code == 0 and [line.split()[0] for line in out.splitlines()[: len(operations())]] == [*operations()]
    assert "\nsoftmax            10 rungs  Softmax of each row: " in out
    code, _, errors = run("ladder", "--save")
    assert code == 2 and "--save needs an operation. Write tilewright ladder OP --save" in errors


@pytest.mark.parametrize(
    ("typed", "found"),
    [("tilewright ge", "generate"), ("tilewright ladder soft", "softmax"), ("tilewright draw --se", "--seed")],
)
def test_a_shell_completes(typed, found):
    words = {
        f"_{'tilewright'.upper()}_COMPLETE": "complete_bash",
        "COMP_WORDS": typed,
        "COMP_CWORD": str(len(typed.split()) - 1),
    }
    around = {**os.environ, "PYTHONPATH": str(Path(cli.__file__).parents[2]), **words}
    done = subprocess.run([sys.executable, "-m", "tilewright"], env=around, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [found]


def test_completion_is_told(run):
    _, out, _ = run("--help")
    assert "  tilewright --install-completion   lets the shell complete verbs and options" in out


def test_an_option_whose_value_is_called_as_itself_names_its_flag():
    """typer 0.27 takes `rung: Option(metavar="RUNG")` for an option without a flag."""
    checked = 0
    for path in Path(cli.__file__).parent.glob("*.py"):
        for field in ast.walk(ast.parse(path.read_text())):
            for call in ast.walk(field.annotation) if isinstance(field, ast.AnnAssign) else ():
                if isinstance(call, ast.Call) and any(
                    word.arg == "metavar" and ast.unparse(word.value).strip("'") == field.target.id.upper()
                    for word in call.keywords
                ):
                    checked += 1
                    assert call.args or ast.unparse(call.func).endswith("Argument"), f"{path.name}: {field.target.id}"
    assert checked >= 3
