"""`tilewright sweep --job`: what it takes, what it refuses, what it prints and saves."""

from dataclasses import replace

import pytest

from tilewright import hardware
from tilewright.bench import results, sweep_workers
from tilewright.bench.results import read
from tilewright.bench.workloads import scaling
from tilewright.bench.workloads.scaling import Run
from tilewright.errors import InternalError


def test_a_sweep_over_batch_sizes_is_printed_and_saved_with_its_figure(run, small, tmp_path):
    code, out, _ = run("sweep", "--job", "classify", "--batch-size", "1,4,64", "-n", "8", "--model", "m", "--save")
    assert code == 0 and out.count("passed ") == 2 and "refused: there are 8 sentences" in out
    assert out.splitlines()[-1] == "All points of the job gave the same bits."
    assert "Published by a report of the course, on its own machine: a batch of 64 sentences is best." in out
    rows = read(tmp_path / "results")
    assert [(row.op, row.point, row.size) for row in rows] == [
        ("sweep_sentiment", f"batch={n}", "m, sentences of 6 tokens, 8 sentences") for n in (1, 4, 64)
    ]
    (figure,) = tmp_path.glob("results/*/sweep_sentiment-batch-float32.svg")
    assert "sentences/s" in figure.read_text()


def test_points_over_workers_are_saved_one_by_one_and_not_measured_again(run, tmp_path, monkeypatch):
    """The third run fails; the same command then measures the two missing points only."""
    ran = []

    def run_once(job, count, plan, workers):
        ran.append((count, workers))
        if len(ran) == 3:
            raise InternalError("the machine is given back")
        return Run(1 / workers, 2.0, workers, "a" * 64)

    monkeypatch.setattr(scaling, "run_once", run_once)
    two = replace(hardware.cpu(), cores=2)
    monkeypatch.setattr(hardware, "cpu", lambda: two)
    for module in (results, sweep_workers):
        monkeypatch.setattr(module, "commit", lambda: "1a2b3c4")
    command = ("sweep", "--job", "draw", "--images", "10,100", "--workers", "1,2", "--save")
    code, _, errors = run(*command)
    assert code and "the machine is given back" in errors
    assert [row.point for row in read(tmp_path / "results")] == [f"images=10, workers={n}" for n in (1, 2)]
    code, out, _ = run(*command)
    assert code == 0 and ran[3:] == [(100, 1), (100, 2)] and out.count("--again measures it again") == 2
    assert "images  1 worker  2 workers\n    10         1        0.5\n" in out
    assert len(read(tmp_path / "results")) == 4 and "2 workers are faster than 1 from 10 images on." in out
    assert list(tmp_path.glob("results/*/sweep_dcgan-images-workers-float32.svg"))
    code, out, _ = run(*command, "--again")
    assert code == 0 and len(ran) == 9 and "measures it again" not in out


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ("--job gpt2", "no parameter: one or two parameters are wanted"),
        ("--job gpt2 --batch-size 1 --threads 1 -n 1,2", "prompts, batch, threads: one or two parameters"),
        ("softmax --job gpt2 --batch-size 1", "OP is for an operation"),
        ("--job gpt2 --batch-size 1 --set tile=1", "--set is for an operation"),
        ("softmax --batch-size 1", "--batch-size is for a whole job. Write --job gpt2, without OP"),
        ("--threads 1", "no operation is given"),
        ("--job gpt2 --batch-size 0", "--batch-size 0: integers from 1 to 1,048,576 are wanted"),
        ("--job gpt2 --gpus 1,2", "--gpus 1,2 needs --device cuda"),
        ("--job gpt2 --gpus 1 --workers 1 --device cuda", "--workers and --gpus are the same parameter"),
        ("--job gpt2 --threads 1 --device cuda", "--threads 1 is for the CPU"),
        ("--job gpt2 --threads 1 --workers 1", "--threads cannot be combined with several workers"),
        ("--job dcgan --batch-size 1 --workers 1", "--batch-size cannot be combined with several workers"),
        ("--job gpt2 --batch-size 1 --dtype float64", "--dtype float64: gpt2 is measured in float32, bfloat16"),
        ("--job gpt2 --batch-size 1 --model none", "none"),
        ("--job dcgan --workers 1 --model m", "--model cannot be combined with several workers"),
        ("--job dcgan -n 1,2 --again --save", "--again is for --workers and --gpus; other sweeps measure every point"),
        ("--job dcgan --workers 1 --again", "--again without --save: only saved points are not measured again"),
        ("softmax --threads 1 --again", "--again is for a whole job"),
        ("--job convolve --threads 1 --model m", "--model m: it has no model"),
        ("--job convolve --batch-size 1", "a volume is one record"),
    ],
)
def test_what_makes_no_sweep_of_a_job_is_refused(run, options, says):
    code, _, errors = run("sweep", *options.split())
    assert code in (2, 3) and says in errors
