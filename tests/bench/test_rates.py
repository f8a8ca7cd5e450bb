"""Rates and workers from saved rows."""

from dataclasses import replace

import pytest

from tilewright.bench import rates
from tilewright.bench.rates import Job, rate, saved_rows, saving_command, scaling
from tilewright.bench.results import PEER, Row, save
from tilewright.generation.memory import Prompts
from tilewright.hardware import gpu_name, machine_name
from tilewright.models.dcgan import DCGANConfig
from tilewright.models.gpt2 import GPT2Config
from tilewright.models.textcnn import TextCNNConfig


def row(op, rung, size, rows, seconds, *, threads=2, **more):
    return Row(op, rung, size, "float32", threads, rows, seconds, seconds, seconds, 3, **more)


def job(verb, records, flops, **figures):
    return Job(verb, "float32", 2, records, flops, figures)


def test_rows_are_of_this_machine_and_class_and_no_peers(tmp_path):
    here = row("dcgan", "tilewright", "8 images", 8, 1.0)
    gpu = row("dcgan", "tilewright", "9 images", 9, 1.0, threads=0)
    save(tmp_path, machine_name(), [here, row("dcgan", "torch", "8 images", 8, 1.0, check=PEER)])
    save(tmp_path, "another", [here])
    save(tmp_path, gpu_name(), [gpu])
    wanted = job("draw", 8, 1.0)
    assert [one.rows for one in saved_rows(wanted, tmp_path)] == [8]
    assert [one.rows for one in saved_rows(wanted._replace(threads=0), tmp_path)] == [9]
    assert saved_rows(wanted._replace(dtype="bfloat16"), tmp_path) == []


def test_the_same_job_takes_as_long_as_was_measured():
    config = GPT2Config()
    course = row("gpt2", "as given", "124M, course: 16 -> 8", 8192, 10.0)
    flops = config.flops(Prompts(1024, 1024 * 16, 16), 8)
    found = rate(job("generate", 1024, flops, new_tokens=8), [course])
    assert found.seconds == pytest.approx(10.0) and found.row is course
    images = row("dcgan", "tilewright", "960 images", 960, 0.5)
    assert rate(job("draw", 1920, 1920.0 * DCGANConfig().flops), [images]).seconds == pytest.approx(1.0)
    exists, built = (row("sentiment", f"table {name}", "100 sentences", 100, s) for name, s in
                     (("exists", 1.0), ("inside", 6.0)))  # fmt: skip
    sentences = job("classify", 200, 200.0 * TextCNNConfig().flops)
    assert rate(sentences, [built, exists]).seconds == pytest.approx(2 * 1.0 + 5.0)
    assert rate(sentences, [exists]) is None


def test_texts_that_share_a_context_are_no_rate_of_others():
    alone = row("score", "tilewright", "124M, 64 texts", 64, 2.0, gflops=50.0)
    shared = row("score", "tilewright", "124M, 64 texts, 4 per context", 64, 1.0, gflops=100.0)
    found = rate(job("score", 10, 200e9), [shared, alone])
    assert found.row is alone and found.seconds == pytest.approx(4.0)


def test_the_workload_is_the_nearest_one():
    course, batch, single = (row("gpt2", name, size, rows, 10.0) for name, size, rows in (
        ("as given", "124M, course: 16 -> 8", 8192), ("64 prompts", "124M, batch: 16 -> 128", 8192),
        ("1 prompt", "124M, single: 16 -> 64", 64)))  # fmt: skip
    distinct = row("gpt2", "distinct prompts", "124M, course: 16 -> 8", 8192, 11.0)
    assert rate(job("generate", 100, 1e9, new_tokens=8), [course, distinct]).row is distinct
    other = row("gpt2", "as given", "tiny, course: 16 -> 8", 8192, 1.0)
    rows = [other, course, batch, single]
    for tokens, records, wanted in ((8, 100, course), (500, 100, batch), (60, 1, single)):
        assert rate(job("generate", records, 1e9, new_tokens=tokens), rows).row is wanted
    dense, light = (
        row("volumes", "tilewright", f"{rate}", 8, 1.0, gflops=rate, gbytes_s=10.0) for rate in (300.0, 20.0)
    )
    assert rate(job("convolve", 1000, 60 * 1000.0), [dense, light]).row is light
    assert rate(job("convolve", 1000, 250 * 1000.0), [dense, light]).row is dense
    assert rate(job("convolve", 10**9, 18e9), [light]).seconds == pytest.approx(0.9)
    assert rate(job("convolve", 10**9, 9e9), [light]).seconds == pytest.approx(0.8), "the bytes take longer"


def test_a_bert_classifies_as_fast_as_it_embeds():
    """It has no token table: a TextCNN's rows, scaled by the number of operations, once gave its rate."""
    exists, built = (row("sentiment", f"table {name}", "100 sentences", 100, 1.0) for name in ("exists", "inside"))
    texts = row("embed", "tilewright", "minilm, 64 texts", 64, 2.0, gflops=50.0)
    wanted = job("classify", 10, 200e9, token_table=False, tokens_per_text=20.0)
    found = rate(wanted, [exists, built, texts])
    assert found.row is texts and found.seconds == pytest.approx(4.0)
    assert rate(wanted, [exists, built]) is None
    assert saving_command(wanted) == "tilewright bench embed --dtype float32 --threads 2 --save"
    swept = [row("scaling", f"local, {n}", "sentiment, 512 sentences", 512, 1.0, versus_below=n, label=str(n))
             for n in (1, 2)]  # fmt: skip
    assert scaling(wanted, swept, 100, 2) == (1, 1.0, None)


def test_sampled_tokens_have_rows_of_their_own():
    greedy, sampled = (row("gpt2", "64 prompts", f"124M, {name}: 16 -> 128", 8192, seconds)
                       for name, seconds in (("batch", 10.0), ("sampled", 14.0)))  # fmt: skip
    for rows in ([greedy, sampled], [sampled, greedy]):
        assert rate(job("generate", 100, 1e9, new_tokens=128, sampled=True), rows).row is sampled
        assert rate(job("generate", 100, 1e9, new_tokens=128, sampled=False), rows).row is greedy
    assert rate(job("generate", 100, 1e9, new_tokens=128, sampled=True), [greedy]).row is greedy


def test_other_threads_are_another_rate():
    rows = [row("dcgan", "tilewright", "960 images", 960, 0.5, threads=1)]
    assert rate(job("draw", 1, 1.0), rows) is None


def test_workers_pay_as_long_as_they_scaled():
    rows = [row("scaling", f"local, {n}", "gpt2, 512 prompts", 512, 1.0, versus_below=faster, label=str(n))
            for n, faster in ((1, 1.0), (2, 1.9), (4, 3.1), (8, 4.0))]  # fmt: skip
    wanted = job("generate", 100, 1.0)
    found = scaling(wanted, rows, 100, 8)
    assert (found.workers, found.faster, found.row) == (4, 3.1, rows[2])
    assert scaling(wanted, rows, 3, 8).workers == 2, "no more than shards"
    assert scaling(job("draw", 100, 1.0), rows, 100, 8) == (4, 4.0, None), "cores per worker, by rule"
    assert scaling(wanted, [], 1, 8).workers == 1
    few = [row("scaling", f"local, {n}", "gpt2, 16 prompts", 16, 1.0, versus_below=faster, label=str(n))
           for n, faster in ((1, 1.0), (2, 1.1))]  # fmt: skip
    assert scaling(wanted._replace(records=20), [*rows, *few], 100, 8).workers == 1, "of a job of this size"
    assert scaling(wanted, [*rows, *few], 100, 8).workers == 4
    assert scaling(wanted._replace(threads=0), [], 100, 2) == (2, 2.0, None)
    assert scaling(wanted._replace(threads=8), rows, 100, 8) == (1, 1.0, None), "these workers had two cores each"
    assert rates.PAYS < 1


def test_swept_workers_are_compared_with_one_of_the_same_dtype_and_cores(tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "machine_name", lambda: "here")
    measured = {("float32", 2): (10.0, 6.0), ("bfloat16", 2): (4.0, 3.9), ("bfloat16", 1): (99.0, 55.0)}
    swept = [
        replace(row("sweep_dcgan", "worker processes", "dcgan", 1, seconds, threads=threads,
                    point=f"images=1000, workers={workers}"), dtype=dtype)
        for (dtype, threads), spent in measured.items() for workers, seconds in enumerate(spent, 1)
    ]  # fmt: skip
    save(tmp_path, "here", swept)
    for (dtype, threads), (one, two) in measured.items():
        wanted = job("draw", 900, 1.0)._replace(dtype=dtype, threads=threads)
        rows = [one for one in saved_rows(wanted, tmp_path) if one.threads == threads]
        assert [row.versus_below for row in rows if row.op == "scaling"] == [1.0, pytest.approx(one / two)]


def test_a_sweep_over_workers_says_how_many_pay(tmp_path, monkeypatch):
    monkeypatch.setattr(rates, "machine_name", lambda: "here")
    swept = [
        row("sweep_dcgan", "worker processes", "dcgan", 1, seconds, point=f"images={n}, workers={w}")
        for n, w, seconds in ((10, 1, 1.0), (10, 2, 1.0), (1000, 1, 9.0), (1000, 2, 5.0))
    ]
    save(tmp_path, "here", [*swept, row("sweep_dcgan", "one process", "dcgan", 1, 1.0, point="batch=8")])
    wanted = job("draw", 900, 1.0)
    found = scaling(wanted, saved_rows(wanted, tmp_path), 100, 8)
    assert (found.workers, found.faster, found.row.size) == (2, 1.8, "dcgan, 1,000 images")
    assert scaling(wanted._replace(records=20), saved_rows(wanted, tmp_path), 100, 8).workers == 1


def test_a_class_that_the_bench_has_not_is_measured_as_one_of_as_many_bits():
    wanted = job("generate", 1, 1.0)
    assert saving_command(wanted._replace(dtype="float16", threads=0)) == (
        "tilewright bench gpt2 --dtype bfloat16 --device cuda --save"
    )
    assert saving_command(job("draw", 1, 1.0)._replace(dtype="float16")).startswith(
        "tilewright bench dcgan --dtype float16"
    )
    assert saving_command(job("score", 1, 1.0)) == "tilewright bench score --dtype float32 --threads 2 --save"
    assert saving_command(job("convolve", 1, 1.0)) == "tilewright bench convolve --threads 2 --save"
    assert saving_command(job("convolve", 1, 1.0)._replace(dtype="float64")) is None
