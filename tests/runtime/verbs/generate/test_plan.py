"""The plan against the thing: arrays that a model really makes, and the peak of a real run."""

import json
import subprocess
import sys
from dataclasses import replace

import msgspec
import numpy as np
import pytest

from tilewright.errors import InputError, ResourceError, UsageError
from tilewright.generation.engine import Engine
from tilewright.generation.memory import Prompts
from tilewright.generation.sampling import SamplingParams
from tilewright.generation.sequences import Request
from tilewright.models.gpt2 import GPT2, GPT2Config
from tilewright.ops.core.memory import LINE
from tilewright.runtime.convert.models import init_gpt2
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.load import read_weights
from tilewright.runtime.verbs.generate import GenerateJob, generate
from tilewright.runtime.verbs.generate import plan as planning
from tilewright.runtime.verbs.generate.plan import plan, plan_made

SIZES = {"vocab_size": 301, "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 3}


@pytest.fixture
def model(tmp_path):
    init_gpt2(str(tmp_path / "model"), 3, **SIZES)
    return str(tmp_path / "model")


def made(model, **given):
    """The plan of prompts that no file holds: (memory by part, figures, peak)."""
    tokens, sampled = given.pop("tokens", 8), given.pop("sampled", False)
    params = SamplingParams(temperature=float(sampled), max_tokens=tokens, n=given.pop("n", 1))
    length = {name: given.pop(name) for name in ("length",) if name in given}
    settings = Settings(dtype=given.pop("dtype", None))
    found = plan_made(GenerateJob(model, "", "", params=params, settings=settings, **given), **length)
    return parts_of(found), found.figures, found.peak_memory


def parts_of(found):
    return {part.name: part.bytes for part in found.parts}


def arrays_of(thing, seen):
    """Every array that an object holds, views of one memory once."""
    if isinstance(thing, np.ndarray):
        base = thing
        while isinstance(base.base, np.ndarray):
            base = base.base
        seen[base.__array_interface__["data"][0]] = base
    elif isinstance(thing, (list, tuple)):
        for part in thing:
            arrays_of(part, seen)
    elif type(thing).__module__.startswith("tilewright.") and not isinstance(thing, GPT2Config):
        names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        for part in [*getattr(thing, "__dict__", {}).values(), *(getattr(thing, name) for name in names)]:
            arrays_of(part, seen)
    return seen


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_prepared_weights_are_what_the_model_holds_besides_the_embedding(model, dtype):
    config, weights = read_weights(model)
    placed = GPT2(config, weights, dtype=dtype)
    mapped = {name: array.__array_interface__["data"][0] for name, array in weights.items()}
    first, end = min(mapped.values()), max(mapped[name] + weights[name].nbytes for name in weights)
    held = arrays_of(placed, {})
    own = [array.nbytes for at, array in held.items() if not first <= at < end]
    to_align = LINE * len(own)
    assert 0 <= sum(own) - made(model, dtype=dtype)[0]["weights, prepared"] <= to_align


def test_keys_and_values_are_what_the_generator_lays_out_and_uses(model):
    config, weights = read_weights(model)
    placed = GPT2(config, weights)
    for count, tokens, slots in ((5, 8, 1000), (200, 8, 10), (200, 8, 1000), (200, 1, 1000)):
        each = placed.attention.cache_bytes(16 + tokens)
        memory, params = slots * each, SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        prompts = np.random.default_rng(0).integers(0, 301, (count, 16))
        parts, figures, _ = made(model, count=count, tokens=tokens, batch_memory=memory)
        engine = placed.engine(seed=0, memory=memory)
        most = most_at_once(engine, [Request(i, ids, params) for i, ids in enumerate(prompts)])
        assert figures["at_once"] == most
        assert parts["keys and values"] == most * each


def most_at_once(engine: Engine, requests):
    most, step = 0, engine.step

    def counted():
        nonlocal most
        found = step()
        most = max(most, len(engine.scheduler.running) + len(found))
        return found

    engine.step = counted
    list(engine.run(requests))
    return most


def test_prompts_that_no_file_holds_have_the_jobs_n(model):
    one, three = (made(model, count=10, sampled=True, n=n)[1] for n in (1, 3))
    assert (one["sequences"], three["sequences"]) == (10, 30)
    assert one["prompt_tokens"] == three["prompt_tokens"] == 160


def test_operations_of_the_full_size():
    config = GPT2Config()
    one = config.flops(Prompts(1, 16, 16), 8)
    assert one == pytest.approx(4.53e9, rel=0.01)
    assert config.flops(Prompts(100, 1600, 16), 8) == pytest.approx(100 * one)


def test_the_plan_reads_no_weights_but_their_header(model, tmp_path):
    before = made(model)
    file = tmp_path / "model" / "model.safetensors"
    raw = file.read_bytes()
    header = 8 + int.from_bytes(raw[:8], "little")
    file.write_bytes(raw[:header] + b"\xff" * (len(raw) - header))  # NaN, all of them
    assert made(model) == before
    assert before[0]["weights file, while they are prepared"] == len(raw)
    file.write_bytes(raw[:-4])
    with pytest.raises(InputError):
        made(model)


def job_of(model, source, **more):
    return GenerateJob(model, str(source), str(source.with_name("out.jsonl")), **more)


def test_prompts_are_counted_as_the_job_would(model, tmp_path):
    lines = [{"id": i, "prompt_token_ids": list(range(1, 2 + i))} for i in range(9)]
    text = "\n".join(json.dumps(line) for line in lines) + '\nnonsense\n{"id": "far", "prompt_token_ids": [301]}\n'
    source = tmp_path / "in.jsonl"
    source.write_text(text)
    found = plan(job_of(model, source, params=SamplingParams(temperature=0, max_tokens=5)))
    assert (found.records, found.counted) == (11, True)
    names = "sequences", "prompt_tokens", "longest"
    assert [found.figures[name] for name in names] == [9, 45, 9]
    assert plan(job_of(model, source, count=4)).records == 4
    several = plan(job_of(model, source, params=SamplingParams(temperature=1, n=3)))
    assert [several.figures[name] for name in names] == [27, 45, 9]


def test_a_record_may_have_completions_of_its_own(model, tmp_path):
    """Sequences, operations and output follow each record's n, not the job's."""
    source, params = tmp_path / "in.jsonl", SamplingParams(temperature=1, max_tokens=5)
    plain = [{"prompt_token_ids": [1, 2]}] * 8
    source.write_text("".join(json.dumps(line) + "\n" for line in plain))
    one = plan(job_of(model, source, params=params))
    source.write_text("".join(json.dumps(line | {"n": 4 if i < 2 else 1}) + "\n" for i, line in enumerate(plain)))
    own = plan(job_of(model, source, params=params))
    assert (one.figures["sequences"], own.figures["sequences"]) == (8, 14)
    assert own.figures["prompt_tokens"] == one.figures["prompt_tokens"] == 16
    assert own.figures["at_once"] == 14
    assert own.flops == pytest.approx(14 / 8 * one.flops, rel=0.01)
    assert own.outputs.bytes > 1.5 * one.outputs.bytes


def test_a_record_may_ask_for_tokens_of_its_own(model, tmp_path):
    """As lines of a batch for OpenAI do."""
    source, line = tmp_path / "in.jsonl", {"prompt_token_ids": [1, 2]}
    source.write_text((json.dumps(line) + "\n") * 8)
    wanted = plan(job_of(model, source, params=SamplingParams(temperature=0, max_tokens=20)))
    source.write_text((json.dumps(line | {"max_tokens": 20}) + "\n") * 8)
    found = plan(job_of(model, source, params=SamplingParams(temperature=0, max_tokens=2)))
    assert found.figures["new_tokens"] == wanted.figures["new_tokens"] == 20
    assert (found.flops, found.peak_memory) == (wanted.flops, wanted.peak_memory)
    lines = [line | {"max_tokens": count} for count in (10, 30)]
    source.write_text("".join(json.dumps(one) + "\n" for one in lines))
    assert plan(job_of(model, source)).figures["new_tokens"] == 20


@pytest.mark.parametrize(("name", "shard_size", "n"), [("in.bin", 7, 1), ("in.bin", 1000, 1), ("in.jsonl", 900, 1),
                                                        ("in.jsonl", 900, 3), ("in.jsonl", 1 << 20, 1),
                                                        ("in.parquet", None, 2)])  # fmt: skip
def test_sequences_at_once_are_of_one_shard(model, tmp_path, rng, monkeypatch, name, shard_size, n):
    prompts, source = rng.integers(0, 301, (200, 16), np.int32), tmp_path / name
    if name == "in.bin":
        prompts.tofile(source)
    elif name == "in.jsonl":
        source.write_text("".join(json.dumps({"prompt_token_ids": p.tolist()}) + "\n" for p in prompts))
    else:
        pa = pytest.importorskip("pyarrow")
        table = pa.table({"prompt_token_ids": prompts.tolist()})
        pytest.importorskip("pyarrow.parquet").write_table(table, source, row_group_size=30)
    params = SamplingParams(temperature=float(n > 1), max_tokens=8, ignore_eos=True, n=n)
    job = job_of(model, source, params=params, settings=Settings(shard_size=shard_size))
    planned, most, step = plan(job).figures["at_once"], 0, Engine.step

    def counted(self):
        nonlocal most
        found = step(self)
        most = max(most, len(self.scheduler.running) + len(found))
        return found

    monkeypatch.setattr(Engine, "step", counted)
    generate(job)
    assert most <= planned <= 1.25 * most + 1


def test_sampling_fields_and_room_in_the_context_are_looked_at(model, tmp_path):
    """As the job does: a bad field costs its record alone, and is counted."""
    own = [{"prompt_token_ids": [1] * 60}, {"top_p": 7}, {"stop": "x"}, {"max_tokens": 99}, {"n": 2}, {"seed": 3}]
    lines = [{"prompt_token_ids": [1]} | one for one in own]
    source = tmp_path / "in.jsonl"
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    job = job_of(model, source)
    whole = plan(job)
    assert whole.figures["sequences"] == 3 and [whole.figures[name] for name in ("bad", "cut", "undrawn")] == [3, 2, 1]
    assert whole.figures["first_bad"] == "top_p: is 7; a number above 0 and at most 1 is wanted"
    done = generate(job)
    assert (done.errors, done.cut, done.undrawn) == (3, 2, 1)
    many, few = (
        replace(job, params=SamplingParams(temperature=0, max_tokens=count), output=str(tmp_path / "o.jsonl"))
        for count in (10**9, 10)
    )
    assert plan(many).peak_memory < 1.1 * plan(few).peak_memory, "no more than the context has room for"


def test_a_plan_has_no_more_new_tokens_than_the_context(model, tmp_path):
    """With and without an input. min_tokens beyond the room was once an error of the plan, and not of the job."""
    source, most = tmp_path / "in.jsonl", 64 - 16
    source.write_text(json.dumps({"prompt_token_ids": [1] * 16}) + "\n")
    params = SamplingParams(temperature=0, max_tokens=1000, min_tokens=100)
    job = job_of(model, source, params=params)
    assert plan(job).figures["new_tokens"] == most
    done = generate(job)
    assert (done.errors, done.tokens) == (0, most)
    assert made(model, tokens=1000)[1]["worker_flops"] == made(model, tokens=most)[1]["worker_flops"]
    assert made(model, tokens=1000)[1]["steps"] == made(model, tokens=most)[1]["steps"]


def test_of_a_long_text_a_sample_is_read(model, tmp_path, bytes_read):
    source = tmp_path / "in.jsonl"
    lines = [{"id": i, "prompt_token_ids": [1] * (1 + i % 7), "other": "x" * 1000} for i in range(20_000)]
    source.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = plan(job_of(model, source))
    assert not found.counted
    assert found.records == pytest.approx(20_000, rel=0.05)
    assert found.figures["prompt_tokens"] == pytest.approx(80_000, rel=0.05)
    assert found.figures["longest"] == 7
    assert bytes_read(source) < source.stat().st_size / 2


def test_what_cannot_be_is_refused(model, tmp_path):
    with pytest.raises(ResourceError, match="bytes; 1,000 are allowed"):
        made(model, batch_memory=1000)
    with pytest.raises(UsageError, match="64 tokens; the context of 64 must"):
        made(model, length=64)
    with pytest.raises(InputError):
        made(str(tmp_path / "none"))


def test_kernels_that_are_not_compiled_are_in_the_peak(model, monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE", str(tmp_path / "empty"))
    cold, _, cold_peak = made(model, count=1)
    monkeypatch.setattr(planning, "is_compiled", lambda *patterns: True)
    warm, _, warm_peak = made(model, count=1)
    name = "compiling kernels, the first time"
    assert (cold[name], warm[name]) == (planning.COMPILING, 0)
    assert cold_peak > warm_peak


def tilewright(*arguments):
    done = subprocess.run([sys.executable, "-m", "tilewright", *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.parametrize("temperature", [pytest.param("0", marks=pytest.mark.long), "1"])
@pytest.mark.parametrize("dtype", [pytest.param("float32", marks=pytest.mark.long), "bfloat16"])
def test_the_peak_is_within_15_percent_of_a_real_run(tmp_path, dtype, temperature):
    """With enough weights and sequences that they, not the program, decide."""
    path, source = str(tmp_path / "model"), tmp_path / "in.bin"
    init_gpt2(path, 3, vocab_size=50257, n_positions=128, n_embd=256, n_layer=4, n_head=4)
    np.random.default_rng(0).integers(0, 50257, (400, 16), np.int32).tofile(source)
    output = str(tmp_path / "out.bin")
    options = ["--model", path, "-i", str(source), "-o", output, "--dtype", dtype, "--max-tokens", "8", "--json"]
    options += ["--restart", "--temperature", temperature]
    run = ["generate", *options]
    tilewright(*run, "-n", "1")  # kernels are on the disk after it
    planned = json.loads(tilewright("plan", "generate", *options))
    real = json.loads(tilewright(*run))
    assert planned["memory"]["compiling kernels, the first time"] == 0
    assert planned["shards"] == real["job"]["shards"] and planned["output_bytes"] == real["job"]["bytes"]
    assert planned["peak_memory"] == pytest.approx(real["peak_memory"], rel=0.15)


def test_the_command_line_says_it_in_words_and_as_one_object(model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = tilewright("plan", "generate", "--model", model, "-n", "100", "--dtype", "bfloat16")
    _, _, peak = made(model, count=100, tokens=16, dtype="bfloat16", sampled=True)
    assert "100 prompts, 1,600 tokens, the longest 16; 16 new ones each" in text
    assert f"{peak:,} bytes" in text
    assert "time: not known" in text and "tilewright ladder matmul" in text
    told = msgspec.json.decode(tilewright("plan", "generate", "--model", model, "-n", "100", "--json"))
    assert told["verb"] == "plan" and told["least_seconds"] is None
    assert told["peak_memory"] == made(model, count=100, tokens=16, sampled=True)[2]
    (tmp_path / "in.jsonl").write_text('{"prompt_token_ids": [1]}\n{"prompt_token_ids": [1], "top_p": 7}\n')
    text = tilewright("plan", "generate", "--model", model, "-i", "in.jsonl", "--max-tokens", "64")
    assert "bad prompts: 1, each gets an error; the first: top_p: is 7; a number" in text
    assert "prompts whose new tokens do not all fit in the model's context: 1\n" in text
    assert "context of 64" in tilewright("plan", "generate", "--model", model, "--max-tokens", "64")
