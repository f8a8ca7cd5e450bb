"""Each optimisation can be switched off: a switch that keeps the bits is held to it, the others to float64."""

import json

import numpy as np
import pytest

from dcgan_models import SMALL, random_noise
from dcgan_models import random_weights as dcgan_weights
from gpt2_models import TINY, random_weights, save
from tilewright.bench.workloads.dcgan_reference import reference_images
from tilewright.bench.workloads.sentiment import reference_logits
from tilewright.cli import main
from tilewright.errors import UsageError, WrongType
from tilewright.formats.validate import largest_error
from tilewright.generation.sampling import SamplingParams
from tilewright.models.dcgan import DCGAN
from tilewright.models.gpt2 import GPT2, GPT2Config
from tilewright.models.initial import random_textcnn
from tilewright.models.textcnn import TextCNN, TextCNNConfig
from tilewright.ops.core.ladder import using
from tilewright.runtime import trials
from tilewright.runtime.convert.models import init_dcgan, init_textcnn
from tilewright.runtime.fingerprint import as_called, fingerprint
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.load import load
from tilewright.switches import JOBS, OPTIMISATIONS, check_switches, rungs_without

TEXT = TextCNNConfig(vocab_size=60, sequence_length=8, hidden_size=16, num_filters=12, kernel_sizes=(3, 5),
                     hidden_sizes=(8,))  # fmt: skip
GREEDY = SamplingParams(temperature=0, max_tokens=8, logprobs=2)


@pytest.fixture(scope="module", name="prompts")
def _prompts():
    """Prompts of many lengths, some equal, some with a prefix in common."""
    rng = np.random.default_rng(4)
    root, lengths = rng.integers(0, TINY["vocab_size"], 20), rng.integers(1, 20, 12)
    own = [rng.integers(0, TINY["vocab_size"], length) for length in lengths]
    return [*own, *(np.concatenate([root[:length], own[i][:2]]) for i, length in enumerate(lengths)), root, root]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize(
    "without",
    [{"kv-cache"}, {"prefix-sharing"}, {"kv-cache", "prefix-sharing"}],
    ids=lambda names: " ".join(sorted(names)),
)
@pytest.mark.parametrize("params", [GREEDY, SamplingParams(max_tokens=7, n=2)], ids=["greedy", "drawn"])
def test_completions_keep_their_bits(prompts, dtype, without, params, monkeypatch):
    config = GPT2Config(**TINY)
    weights, rows = random_weights(config, 0), []
    forward = GPT2.forward

    def counting(model, batch, work):
        rows.append(len(batch.ids))
        return forward(model, batch, work)

    monkeypatch.setattr(GPT2, "forward", counting)
    wanted = repr(list(GPT2(config, weights, dtype=dtype).generate(prompts, params)))
    computed = sum(rows)
    rows.clear()
    model = GPT2(config, weights, dtype=dtype, without=frozenset(without))
    assert repr(list(model.generate(prompts, params))) == wanted
    assert sum(rows) > computed * (3 if without == {"kv-cache", "prefix-sharing"} else 1), "nothing was switched off"


def test_without_a_cache_a_pass_has_a_bounded_number_of_rows(prompts, monkeypatch):
    config, rows = GPT2Config(**TINY), []
    forward = GPT2.forward

    def counting(model, batch, work):
        rows.append(len(batch.ids))
        return forward(model, batch, work)

    monkeypatch.setattr(GPT2, "forward", counting)
    monkeypatch.setattr("tilewright.generation.scheduler.Scheduler.recomputed", 90)
    list(GPT2(config, random_weights(config, 0), without=frozenset({"kv-cache"})).generate(prompts, GREEDY))
    assert max(rows) <= 90


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_images_without_folding_are_within_the_classes_bound(dtype):
    weights, z = dcgan_weights(SMALL), random_noise(SMALL, 9)
    images = DCGAN(SMALL, weights, dtype=dtype, without=frozenset({"folding"})).generate(z)
    assert np.abs(images - reference_images(SMALL, weights, z)).max() < {"float32": 1e-5, "bfloat16": 0.2}[dtype]
    assert images.tobytes() != DCGAN(SMALL, weights, dtype=dtype).generate(z).tobytes(), "nothing was switched off"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_without_the_token_table_are_within_the_classes_bound(dtype, rng):
    weights, ids = random_textcnn(TEXT.tensor_shapes(), seed=3), rng.integers(0, 60, (20, 8), np.int32)
    model = TextCNN(TEXT, weights, dtype=dtype, without=frozenset({"token-table"}))
    assert model.convolutions.rung == "cpu.gather"
    wanted = reference_logits(TEXT, weights, ids)
    assert largest_error(model.logits(ids), wanted) < {"float32": 5e-5, "bfloat16": 0.1}[dtype]


def test_every_switch_is_refused_where_it_has_no_effect():
    refused = 0
    for name, found in OPTIMISATIONS.items():
        for verb in JOBS:
            for device in ("cpu", "cuda"):
                if verb in found.verbs and device in found.devices:
                    check_switches(verb, {name}, device, "float32")
                    continue
                refused += 1
                with pytest.raises(UsageError, match=f"{name}; it has no effect on {verb} in float32 on {device}"):
                    check_switches(verb, {name}, device, "float32")
    assert refused > 20


def test_a_gpu_has_no_16_bit_convolution_without_a_table():
    with pytest.raises(UsageError, match="no kernel computes bfloat16 on cuda without a token table"):
        check_switches("classify", {"token-table"}, "cuda", "bfloat16")


def test_names_are_checked(tmp_path):
    weights = random_textcnn(TEXT.tensor_shapes(), seed=3)
    with pytest.raises(WrongType, match="a set of names is wanted"):
        TextCNN(TEXT, weights, without="token-table")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="must be one of pinned, overlap"):
        check_switches("draw", {"fold"}, "cpu", "float32")
    with pytest.raises(UsageError, match="the token table is switched off"):
        TextCNN(TEXT, weights, table_memory=1 << 20, without=frozenset({"token-table"}))
    with using(embedding_conv1d="cpu.gather_add"), pytest.raises(UsageError, match="Give only one"):
        TextCNN(TEXT, weights, without=frozenset({"token-table"}))
    init_dcgan(str(tmp_path / "m"), 3, z_size=3, size=2, channels=(4, 3), kernel=4)
    with pytest.raises(UsageError, match="without is kv-cache; it has no effect on draw"):
        load(str(tmp_path / "m"), device="cpu", without={"kv-cache"})
    assert not load(str(tmp_path / "m"), device="cpu", without={"folding"}).folds
    assert load("critic", device="cpu", without={"token-table"}).convolutions.rung == "cpu.gather"


def test_the_fingerprint_has_the_switches_that_may_change_bits():
    settings = Settings(without=frozenset({"folding", "graphs"}))
    assert fingerprint("draw", settings, "float32")["without"] == ["folding"]
    assert "without" not in fingerprint("draw", Settings(without=frozenset({"graphs"})), "float32")
    table = as_called(Settings(device="cpu", without=frozenset({"token-table"})))
    assert table.rungs == {"embedding_conv1d": "cpu.gather"}
    assert rungs_without({"token-table"}, "cpu", table.rungs) == table.rungs
    with pytest.raises(UsageError, match="Give only one"):
        rungs_without({"token-table"}, "cpu", {"embedding_conv1d@1": "cpu.gather_add"})


@pytest.fixture(name="run")
def _run(tmp_path, monkeypatch, capsys):
    """run(*words) -> (exit code, stdout, stderr), beside a model of each kind and an input for it."""
    save(tmp_path / "gpt2")
    init_textcnn(str(tmp_path / "textcnn"), 3, vocab_size=50, sequence_length=6, hidden_size=8, num_filters=5,
                 kernel_sizes=(2, 3), hidden_sizes=(7,))  # fmt: skip
    init_dcgan(str(tmp_path / "dcgan"), 3, z_size=3, size=2, channels=(4, 3), kernel=4)
    (tmp_path / "lines.txt").write_text("the cat\nthe dog\nthe dog\n")
    np.random.default_rng(1).integers(0, 50, (4, 6), np.int32).tofile(tmp_path / "ids.bin")
    np.save(tmp_path / "v.npy", np.ones((5, 6, 7), np.float32))
    monkeypatch.chdir(tmp_path)

    def call(*words):
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([*words, "--device", "cpu"])
        return caught.value.code or 0, *capsys.readouterr()

    return call


GENERATE = ("generate", "-p", "gpt2", "-i", "lines.txt", "-o", "out.txt", "--max-tokens", "3", "--temperature", "0")
CLASSIFY = ("classify", "-p", "textcnn", "-i", "ids.bin", "-o", "out.bin")
DRAW = ("draw", "-p", "dcgan", "-n", "2", "-o", "out.npy")


def test_a_job_without_a_cache_writes_the_same_file_and_resumes(run, tmp_path):
    assert run(*GENERATE)[0] == 0
    wanted = (tmp_path / "out.txt").read_bytes()
    code, out, _ = run(*GENERATE, "--without", "kv-cache", "--without", "prefix-sharing")
    assert code == 0 and "kv-cache, prefix-sharing\n" in out, "the banner names them"
    assert "Nothing to do" in out, "these switches keep the bits, so this is the same job"
    assert run(*GENERATE, "--without", "kv-cache", "--without", "prefix-sharing", "--restart")[0] == 0
    assert (tmp_path / "out.txt").read_bytes() == wanted


@pytest.mark.parametrize(("command", "name"), [(DRAW, "folding"), (CLASSIFY, "token-table")], ids=["draw", "classify"])
def test_a_switch_that_may_change_bits_makes_another_job(run, command, name):
    assert run(*command, "--without", name)[0] == 0
    assert "Nothing to do" in run(*command, "--without", name)[1]
    code, _, errors = run(*command)
    assert code == 2 and "the job was begun with other settings or inputs" in errors


def test_plan_counts_the_recomputed_prefixes(run, monkeypatch):
    monkeypatch.setattr(trials, "LEAST_SECONDS", 0.0)

    def flops(*more):
        code, out, _ = run("plan", *GENERATE, "--json", *more)
        assert code == 0
        return json.loads(out)["flops"]

    text = run("plan", *GENERATE, "--without", "kv-cache")[1]
    assert "rate: not known: there is no similar job" in text
    assert run(*GENERATE)[0] == 0 and "rate: about" in run("plan", *GENERATE)[1]
    assert "rate: not known" in run("plan", *GENERATE, "--without", "kv-cache")[1], "that job had a cache"
    assert run(*GENERATE, "--without", "kv-cache", "--restart")[0] == 0
    assert "rate: about" in run("plan", *GENERATE, "--without", "kv-cache")[1]
    assert "rate: not known" in run("plan", *GENERATE)[1], "that job had none"
    assert flops("--without", "kv-cache") > 1.5 * flops() == 1.5 * flops("--without", "prefix-sharing")


REFUSED = [
    (GENERATE, ("--without", "graphs"), "--without is graphs; it has no effect on generate in float32 on cpu. Leave "
     "it out; here the switches are kv-cache, prefix-sharing"),
    (GENERATE, ("--without", "folding"), "has no effect on generate"),
    (("plan", *GENERATE), ("--without", "graphs"), "it has no effect on generate"),
    (("plan", "generate", "-p", "gpt2", "-n", "3"), ("--without", "graphs"), "it has no effect on generate"),
    (("plan", *CLASSIFY), ("--without", "token-table"), "plan counts the work and the memory of a job with its token"),
    (CLASSIFY, ("--without", "token-table", "--keep-table"), "--keep-table has no effect without the token table"),
    (CLASSIFY, ("--without", "token-table", "--table-memory", "1M"), "--table-memory has no effect without the token"),
    (CLASSIFY, ("--without", "token-table", "--rung", "embedding_conv1d=cpu.gather_add"), "give only one of the two"),
    (DRAW, ("--without", "nothing"), "--without"),
    (("convolve", "-i", "v.npy", "--kernel", "box:3", "-o", "out.npy"), ("--without", "pinned"), "effect on convolve"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "more", "words"), REFUSED, ids=[" ".join((c[0], *m)) for c, m, _ in REFUSED])
def test_a_switch_without_effect_is_refused_before_the_work(run, tmp_path, command, more, words):
    before = sorted(tmp_path.iterdir())
    code, _, errors = run(*command, *more)
    assert code == 2 and words.lower() in errors.lower() and sorted(tmp_path.iterdir()) == before
