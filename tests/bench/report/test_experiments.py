"""The page of experiments: what was measured where, and commands that exist."""

import importlib
import re
import shlex

import pytest

from tilewright.bench.job_ladders import job_of
from tilewright.bench.kernels.table import KernelRow
from tilewright.bench.report.experiments import BOTH, GROUPS, NOT_MEASURED, SWEEPS, TABLES, experiments
from tilewright.cli import main

EVERY = [each for group in GROUPS.values() for each in group]
COMMANDS = sorted({command for each in EVERY for command in each.commands if command.startswith("tilewright ")})


def line(text, number):
    """The cells of an experiment."""
    (found,) = re.findall(rf"^\| {number} \| (.*) \|$", text, re.MULTILINE)
    return found.split(" | ")


def test_an_experiment_without_rows_says_so():
    text = "\n".join(experiments([], {}, {}))
    assert [each.number for each in EVERY] == [
        *(f"S{i}" for i in range(1, 11)), *(f"J{i}" for i in range(1, 6)), *(f"T{i}" for i in range(1, 6)),
    ]  # fmt: skip
    assert line(text, "S9")[2] == f"CPU: {NOT_MEASURED}; GPU: {NOT_MEASURED}"
    assert line(text, "S1")[2] == f"CPU: {NOT_MEASURED}" and "](sweeps.md" not in text
    assert text.count(NOT_MEASURED) == sum(len(each.devices) for each in EVERY)


def test_rows_name_their_machine_and_link_to_the_heading(row):
    rows = [
        row("worker processes", op="sweep_dcgan", point="images=10, workers=2", threads=0, machine="nvidia-h200"),
        row("one process", op="sweep_dcgan", point="images=10", threads=1),
        row("local, 4", op="scaling", size="gpt2, 8 prompts", label="4", machine="other-2c"),
        row("naive", op="job_dcgan", threads=0, machine="nvidia-h200"),
        row("matmul", op="gpt2_profile", threads=0, machine="nvidia-h200"),
        row("tile.boxes", op="conv_transpose2d", threads=0, machine="other-2c", label="dcgan 4x4"),
        row("tile.boxes", op="conv_transpose2d", threads=0, machine="other-2c", label="dcgan 8x8"),
    ]
    kernel = KernelRow("matmul", "cpu.packed", "k", "s", *[None] * 9, machine="made-up-2c")
    written = {
        "sweeps.md": "# Sweeps\n\n## dcgan\n", "matmul.md": "# matmul\n\n## Compiled kernels\n",
        "scaling.md": "# Scaling\n",
        "timelines.md": "# Timelines\n\n### dcgan-copies\n", "job-ladders.md": "# Steps\n\n## dcgan\n",
        "volumes.md": "# Volumes\n\n### Where the time goes\n", "sentiment.md": "# Sentiment\n\n### End to end\n",
    }  # fmt: skip
    text = "\n".join(experiments(rows, {"matmul": [kernel]}, written))
    what, _, where, published = line(text, "S9")
    assert (
        where == f"CPU: {NOT_MEASURED}; GPU: NVIDIA H200" and "](sweeps.md#dcgan)" in what and "200 images" in published
    )
    assert line(text, "S10")[2] == f"CPU: Other, 2 cores (gpt2 on 4); GPU: {NOT_MEASURED}"
    assert line(text, "T1")[2].endswith("GPU: NVIDIA H200 (gpt2)")
    assert line(text, "T1")[0].endswith("roof. Tables and figures: [volumes](volumes.md#where-the-time-goes)")
    steps = "Tables and figures: [steps](job-ladders.md#dcgan), [timelines](timelines.md#dcgan-copies)"
    assert line(text, "J2")[0].endswith(steps) and line(text, "T5")[0].endswith(steps)
    assert line(text, "T4")[2].startswith("CPU: Made Up, 2 cores (matmul)")
    assert line(text, "T4")[0].endswith("Tables and figures: [matmul](matmul.md#compiled-kernels)")
    assert line(text, "T2")[2] == f"CPU: {NOT_MEASURED}; GPU: Other, 2 cores (2 layers)"


def test_a_line_says_what_of_it_is_not_measured(row):
    steps = [step.name for step in job_of("dcgan").gpu]
    points = [("tile=8", "h100"), ("tile=8, wpt=2", "h100"), ("block_rows=8, block_columns=8", "h200")]
    rows = [
        *(row("simt.x", op="sweep_matmul", point=point, threads=0, machine=f"nvidia-{gpu}") for point, gpu in points),
        *(row(name, op="job_dcgan", threads=0, machine="nvidia-h100") for name in steps[:-1]),
        *(row(name, op="job_dcgan", threads=0, machine="nvidia-h200") for name in steps),
    ]
    text = "\n".join(experiments(rows, {}, {}))
    assert line(text, "S4")[2] == "GPU: NVIDIA H100 (tile; tile and wpt), NVIDIA H200 (block_rows and block_columns)"
    assert line(text, "J2")[2].endswith("GPU: NVIDIA H100 (without 8-bit pixels), NVIDIA H200")


@pytest.mark.parametrize("command", [each for each in COMMANDS if re.match(r"tilewright sweep \w", each)])
def test_a_sweep_names_kernels_options_and_sizes_that_exist(command, row, monkeypatch):
    """Each kernel would be timed at each value of its options. Nothing is timed here."""
    swept = []

    def kept(options, case, rungs, axes):
        assert all(set(axes) <= {"threads", *rung.swept} for rung in rungs)
        swept.append(case)
        return [row("made up", op=f"sweep_{options.op}", point=", ".join(f"{name}={axes[name][0]}" for name in axes))]

    monkeypatch.setattr(importlib.import_module("tilewright.cli.sweep"), "_swept", kept)
    with pytest.raises(SystemExit) as end:
        main(shlex.split(command.removesuffix(" --save"))[1:])
    assert not end.value.code and swept


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_has_the_options_of_its_verb(command, capsys):
    _, verb, *words = shlex.split(command)
    workload = words[:1] if verb == "bench" else []
    with pytest.raises(SystemExit):
        main([verb, *workload, "--help"])
    told = capsys.readouterr().out
    for option in [word for word in words if word.startswith("-")]:
        assert re.search(rf"(?<![\w-]){option}(?![\w-])", told), f"{command}: {option}"


def test_devices():
    assert all(each.devices == BOTH or len(each.devices) == 1 for each in (*SWEEPS, *TABLES))
