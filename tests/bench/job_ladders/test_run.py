"""Ladders of jobs on tiny models: every step runs, is checked, and changes the job as it says."""

from itertools import pairwise

import numpy as np
import pytest

from tilewright.bench.job_ladders import JOBS, convolve, dcgan, gpt2, job_of, run, sentiment
from tilewright.errors import InternalError, UsageError
from tilewright.formats.images import pixels
from tilewright.models.dcgan import DCGANConfig, doubling
from tilewright.models.gpt2 import GPT2Config
from tilewright.models.textcnn import TextCNNConfig
from tilewright.runtime.forced_rungs import check_rungs
from tilewright.switches import check_switches

TEXT = TextCNNConfig(vocab_size=30, hidden_size=2736, num_filters=128, kernel_sizes=(3,), hidden_sizes=(5,))
IMAGE = DCGANConfig(z_size=5, size=2, channels=32, layers=doubling((16, 16, 16, 3), 5))
LANGUAGE = GPT2Config(vocab_size=60, n_positions=32, n_embd=32, n_layer=1, n_head=2)
VERBS = {"sentiment": "classify", "dcgan": "draw", "gpt2": "generate", "convolve": "convolve"}
CALLS = {"sentiment": TextCNNConfig().calls, "dcgan": DCGANConfig().calls, "gpt2": GPT2Config().calls, "convolve": {}}


@pytest.fixture
def tiny(monkeypatch, tmp_path):
    """The jobs at sizes that take milliseconds."""
    np.random.default_rng(1).integers(0, 30, (8, 16), np.int32).tofile(tmp_path / "ids.bin")
    monkeypatch.setattr(sentiment, "SENTENCES", tmp_path / "ids.bin")
    monkeypatch.setattr(sentiment, "TextCNNConfig", lambda: TEXT)
    monkeypatch.setattr(dcgan, "DCGANConfig", lambda: IMAGE)
    monkeypatch.setattr(gpt2, "GPT2Config", lambda: LANGUAGE)
    monkeypatch.setattr(convolve, "SIDE", {"cpu": 12})
    monkeypatch.setattr(run, "QUICK_ROUND_S", 0.005)
    monkeypatch.setattr(run, "ROUNDS", 1)


@pytest.mark.parametrize("name", JOBS)
def test_every_step_runs_on_the_cpu(tiny, name):
    job = job_of(name)
    rows = run.with_factors(list(run.run(job, device="cpu", count=9, quick=True)))
    assert [row.rung for row in rows] == [step.name for step in job.cpu]
    assert all(row.check.startswith("passed") and row.threads for row in rows)
    assert {row.size for row in rows} == {f"{9 * job.each} {job.unit}"} and {row.op for row in rows} == {f"job_{name}"}
    rates = [row.rows / row.median_s for row in rows]
    assert [row.versus_below for row in rows] == [None, *(b / a for a, b in pairwise(rates))]
    assert all((f"of {row.size}" in row.check) == (row.rows < 9 * job.each) for row in rows)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("name", JOBS)
def test_a_step_forces_what_the_job_runs(name, device):
    """Otherwise it would be refused as a job's --rung and --without are. No two steps have a name."""
    job = job_of(name)
    for step in job.steps(device):
        check_rungs(VERBS[name], step.rungs, device, {}, CALLS[name])
        check_switches(VERBS[name], step.without, device, "float32")
        assert all(rung.startswith("cpu.") == (device == "cpu") for rung in step.rungs.values())
    assert not job.steps(device)[-1].rungs and not job.steps(device)[-1].without, "the last step is today's"
    assert len({step.name for step in job.steps(device)}) == len(job.steps(device))
    after = job.steps(device)[job.steps(device).index(job.compared(device)) + 1 :]
    assert [step.name for step in after] == (["8-bit pixels"] if name == "dcgan" else [])


@pytest.mark.parametrize(
    ("name", "image", "spoil", "bound"),
    [
        ("8-bit pixels", 3, lambda value: value ^ 1, "78.4"),  # one bit
        ("Winograd", 0, lambda value: value + 0.01, "100"),
        ("fused", 3, lambda value: value + 0.01, "50"),  # an image that is compared with the step Winograd alone
    ],
)
def test_a_wrong_step_is_not_reported(tiny, monkeypatch, name, image, spoil, bound):
    monkeypatch.setattr(dcgan, "SAMPLE", 2)  # of the four images or more that these steps compute
    program, reported = dcgan.Images.program, []

    def off(self, step):
        run_step = program(self, step)

        def spoilt(n):
            results = run_step(n)
            if step.name == name:
                results[image, 0, 0, 0] = spoil(results[image, 0, 0, 0])
            return results

        return spoilt

    monkeypatch.setattr(dcgan.Images, "program", off)
    with pytest.raises(InternalError, match=f"dcgan, step '{name}': the result is off by {bound}"):
        for row in run.run(job_of("dcgan"), device="cpu", count=5, quick=True):
            reported.append(row.rung)
    assert name not in reported


def test_the_bytes_of_the_last_step_are_those_of_the_images(tiny):
    workload = dcgan.Images(5, "cpu")
    found = workload.program(dcgan.CPU[-1])(5)
    images = workload.program(job_of("dcgan").compared("cpu"))(5)
    assert found.dtype == np.uint8 and np.array_equal(found, pixels(images)) and len(np.unique(found)) > 1
    assert workload.error(found) == workload.error(images) <= 1


def test_a_step_whose_rung_never_runs_is_refused(tiny, monkeypatch):
    job = job_of("convolve")
    step = run.Step("idle", "made up", {"conv3d": "cpu.taps", "softmax": "cpu.naive"})
    monkeypatch.setattr(type(job), "steps", lambda self, device: (step,))
    with pytest.raises(InternalError, match="the job never ran softmax"):
        list(run.run(job, device="cpu", count=5, quick=True))


def test_an_unknown_job_is_refused_by_name():
    with pytest.raises(UsageError, match="no job 'sum'; the jobs with a ladder are sentiment, dcgan"):
        job_of("sum")
