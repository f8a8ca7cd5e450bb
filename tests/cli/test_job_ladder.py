"""`tilewright ladder --job`: steps as they come, the table, and what the options exclude."""

import pytest

from tilewright.bench.job_ladders import JOBS, job_of
from tilewright.bench.results import Row, read


def run_of(job, **options):
    """A made-up row of every step on the CPU, the last one first."""
    for i, step in enumerate(reversed(job.cpu)):
        yield Row(f"job_{job.name}", step.name, "8 planes", "float32", 2, 8, 2.0**i, 2.0**i, 2.0**i, 3,
                  check="passed 0.10")  # fmt: skip


@pytest.fixture
def measured(monkeypatch):
    """Nothing is measured."""
    monkeypatch.setattr("tilewright.bench.job_ladders.run.run", run_of)


def test_steps_are_shown_as_they_come_and_then_in_order(run, measured):
    code, out, errors = run("ladder", "--job", "convolve", "-n", "8", "--threads", "2")
    names = [step.name for step in job_of("convolve").cpu]
    assert code == 0, errors
    assert [line[2:].partition(":")[0] for line in out.splitlines() if " planes/s, passed" in line] == names[::-1]
    table = out.partition("step  ")[2]
    assert sorted(names, key=table.index) == names and table.count("2.00") == len(names) - 1
    assert "From the first step to the last: 16 x." in table and "factor: the rate divided by" in table


def test_a_ladder_is_saved_with_its_figure(run, measured, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, _ = run("ladder", "--job", "convolve", "--save")
    assert code == 0 and out.count("written to") == 2
    assert [row.op for row in read(tmp_path / "results")] == ["job_convolve"] * 5
    assert len(list(tmp_path.glob("results/*/job_convolve.svg"))) == 1


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("job", JOBS)
def test_list_names_every_step_with_its_idea(run, job, device):
    code, out, _ = run("ladder", "--job", job, "--device", device, "--list")
    assert code == 0 and all(step.name in out and step.idea in out for step in job_of(job).steps(device))


def test_an_interrupted_ladder_has_its_last_steps(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, *_ = run_of(job_of("convolve"))

    def broken(job, **options):
        yield first
        raise KeyboardInterrupt

    monkeypatch.setattr("tilewright.bench.job_ladders.run.run", broken)
    assert run("ladder", "--job", "convolve", "--save")[0] == 130
    assert [row.rung for row in read(tmp_path / "results")] == ["register blocks"]


REFUSED = [
    ("matmul --job dcgan", "--job dcgan: the operation matmul is for the ladder of an operation; a job takes --count"),
    ("--job dcgan --size M=3", "--job dcgan: --size is for the ladder of an operation"),
    ("--job dcgan --threads 1,2", "--threads 1,2: one number is wanted"),
    ("--job dcgan --threads 2 --device cuda", "--threads 2: it is for the CPU; --device cuda has none"),
    ("--job dcgan --list --quick", "--quick has no effect with --list, which times nothing"),
    ("--quick", "Invalid value for --quick: it is for a whole job: name one with --job"),
    ("matmul -n 5", "Invalid value for --count: it is for a whole job: name one with --job"),
    ("--job sum", "'sum' is not one of 'sentiment', 'dcgan', 'gpt2', 'convolve'"),
]


@pytest.mark.parametrize(("options", "words"), REFUSED)
def test_options_that_are_refused(run, options, words):
    code, _, errors = run("ladder", *options.split())
    assert code == 2 and words in errors
