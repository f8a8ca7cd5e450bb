"""A sentence of a writeup changes with its rows, and only with them."""

import pytest

from tilewright.bench.report.laws import curves as scaling_curves
from tilewright.bench.report.sentences import (
    cores_of,
    job_sentences,
    ladder_sentences,
    profile_sentences,
    published,
    scaling_sentences,
    steps_sentences,
    sweep_sentences,
    thread_sentences,
)
from tilewright.bench.report.sweeps import curves
from tilewright.bench.results import PEER


def test_cores_of_a_machine():
    assert (cores_of("amd-epyc-zen5-2c"), cores_of("nvidia-h200")) == (2, None)


@pytest.mark.parametrize(
    ("gain", "told"),
    [
        (2.9, "cpu.fast runs 2.90 times as fast as cpu.slow. Its idea: all <at> once."),
        (0.5, "cpu.fast takes 2.00 times as long as cpu.slow. Its idea: all <at> once."),
        (1.01, "Within 3% of the rung below: cpu.fast."),
    ],
)
def test_a_step_of_a_ladder(row, ladder, gain, told):
    rows = [row("cpu.slow", gflops=10.0), row("cpu.fast", gflops=10.0 * gain, versus_below=gain)]
    assert told in ladder_sentences(rows, ladder)


def test_where_a_ladder_leads(row, ladder):
    rows = [row("cpu.slow", gflops=10.0), row("cpu.fast", gflops=29.0, versus_below=2.9, roof_share=0.58)]
    first = ladder_sentences(rows, ladder)[0]
    assert first == "From cpu.slow to cpu.fast the rate grows 2.90 times, to 29 GFLOP/s, 58 % of the roof."
    for peer, told in ((14.5, "cpu.fast runs 2.00 times as fast as MKL."), (29.1, "cpu.fast runs as fast as MKL."),
                       (58.0, "cpu.fast takes 2.00 times as long as MKL.")):  # fmt: skip
        assert ladder_sentences([*rows, row("MKL", gflops=peer, check=PEER)], ladder)[-1] == told
    assert ladder_sentences([], ladder) == []


def test_threads_of_a_ladder(row):
    rows = [row("cpu.fast", threads=1, gflops=10.0), row("cpu.fast", threads=2, gflops=19.0)]
    assert thread_sentences(rows) == ["On 2 threads cpu.fast runs 1.90 times as fast as on 1 thread."]
    assert thread_sentences(rows[:1]) == []


def swept(row, name, times, **more):
    plain = {"op": "sweep_conv3d", "label": "", "check": "passed"}
    (curve,) = curves(
        [
            row("cpu.taps", point=f"{name}={value}", median_s=seconds, low_s=seconds, high_s=seconds, **(plain | more))
            for value, seconds in times.items()
        ]
    )
    return sweep_sentences(curve)


@pytest.mark.parametrize(
    ("times", "told"),
    [
        (
            {1: 1.0, 2: 0.52, 3: 0.53, 4: 0.6},
            "the speed-up ends at 2 threads, 1.92 times as fast as one: the machine has 2 cores. Amdahl's serial share "
            "is 4 %.",
        ),
        (
            {1: 1.0, 2: 0.99, 4: 1.2},
            "the speed-up ends at 1 thread, although the machine has 2 cores.",
        ),
        ({2: 1.0, 4: 0.5}, "the speed-up ends at 4 threads, beyond the machine's 2 cores."),
        ({1: 1.0, 2: 1.01}, "threads makes no difference; all points are within 1.0%."),
    ],
)
def test_a_sweep_over_threads(row, times, told):
    (sentence,) = swept(row, "threads", times)
    assert sentence.startswith(f"cpu.taps, 8x8x8: {told}")


def test_a_sweep_that_does_not_reach_the_cores_or_is_noisy(row):
    (few,) = swept(row, "threads", {1: 1.0, 2: 0.5}, machine="amd-epyc-zen4-8c")
    assert "the speed-up ends at 2 threads, 2.00 times as fast as one, the most that were measured." in few
    (noisy,) = swept(row, "threads", {1: 1.0, 2: 0.5}, noise="rounds differ 1.6 x")
    assert noisy.endswith("The rows are noisy, so no law is fitted.")
    (beyond,) = swept(row, "threads", {1: 1.0, 2: 0.9, 5: 0.4})
    assert "beyond the machine's 2 cores" in beyond and "Amdahl" not in beyond


def test_a_sweep_over_a_tile(row):
    told = swept(row, "tile", {8: 1.5, 16: 1.0, 32: 1.2}, machine="nvidia-h200")
    assert told == ["cpu.taps, 8x8x8: tile=16 is best, 1.50 times as fast as tile=8."]
    assert swept(row, "tile", {8: 1.0, 16: 1.01}) == [
        "cpu.taps, 8x8x8: tile makes no difference; all points are within 1.0%."
    ]
    assert swept(row, "tile", {8: 0.0}, runs=0, rows=0) == ["cpu.taps, 8x8x8: no point could run."]


def test_scaling(row):
    def told(*speedups):
        rows = [
            row(f"local, {n}", op="scaling", size="gpt2, 5 prompts", label=str(n), versus_below=faster, point="")
            for n, faster in speedups
        ]
        return scaling_sentences(scaling_curves(rows)[0])

    assert told((1, 1.0), (4, 3.6)) == [
        "gpt2, 5 prompts, float32, local: 4 workers run 3.60 times as fast as one, 90% of linear."
    ]
    assert told((1, 1.0), (2, 1.9), (4, 2.0))[1] == "From 4 workers on, less than 70% of linear is left."
    assert told((1, 1.0)) == []


def test_jobs_and_profiles(row):
    job = row("tilewright", op="dcgan", size="9 images", rows=9, peer="torch", peer_ratio=3.0)
    assert job_sentences([job, row("torch", op="dcgan", check=PEER)]) == [
        "9 images, tilewright, float32, 1 thread: 18 images/s. It runs 3.00 times as fast as torch."
    ]
    parts = [row(name, op="dcgan_profile", size="9 images", median_s=s) for name, s in (("a", 1.0), ("b", 3.0))]
    assert profile_sentences(parts) == ["9 images, float32, 1 thread: most of the time goes to b (75%), a (25%)."]
    assert profile_sentences([]) == []


def test_steps_of_a_job(row):
    rows = [row("naive", rows=8, median_s=8.0, versus_below=None), row("tiles", rows=80, median_s=8.0, versus_below=10)]
    assert steps_sentences(rows) == [
        "tiles runs 10 times as fast as naive.",
        "All steps together: tiles runs 10 times as fast as naive.",
    ]


def test_published_figures_name_their_machine():
    assert published("conv3d")[0].startswith("Published by a report of the course, on another machine: 2.78 times")
    assert published("softmax") == []
