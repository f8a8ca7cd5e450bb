"""Scores of given texts on a GPU (TILEWRIGHT_GPU=1), else by its kernels as Python: those of transformers, and the same
bits alone, together, without shared prefixes and in halved passes."""

import numpy as np
import pytest

import tilewright as tw
from gpt2_models import peer, peer_logits
from gpu import ON_GPU, PLACE, round_fma_once, widen_bfloat16
from tilewright.generation import language_model, scoring
from tilewright.models.gpt2 import GPT2, GPT2Config, own_name
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.named_models import model_path
from tilewright.runtime.verbs.score import ScoreJob, score

torch = pytest.importorskip("torch")
cuda = pytest.importorskip("tilewright.backends.cuda")
pytestmark = pytest.mark.usefixtures("simulated_gpu")

SMALL = {"vocab_size": 211, "n_positions": 80, "n_embd": 64, "n_layer": 2, "n_head": 2}
V = SMALL["vocab_size"]
BOUND = {"float32": 2e-4, "bfloat16": 0.15, "float16": 0.02}  # of a log-probability; they are about 5
DTYPES = list(BOUND) if ON_GPU else ["bfloat16"]
rarely = pytest.mark.long if not ON_GPU else pytest.mark.filterwarnings("default")  # half a minute as Python
on_a_gpu = pytest.mark.skipif(not ON_GPU, reason="it takes a GPU: TILEWRIGHT_GPU=1")


@pytest.fixture(autouse=True)
def a_gpu(monkeypatch):
    widen_bfloat16(monkeypatch)
    round_fma_once(monkeypatch)
    monkeypatch.setattr(language_model, "backend", lambda device, dtype, without: cuda.Cuda(dtype, PLACE, without))


def like(other, dtype, without=frozenset()) -> GPT2:
    """Ours on the GPU, with the configuration and weights of transformers' model."""
    fields = {name: value for name, value in other.config.to_dict().items() if name in GPT2Config.__struct_fields__}
    arrays = {own_name(name): parameter.detach().numpy() for name, parameter in other.named_parameters()}
    return GPT2(GPT2Config(**fields), arrays, dtype=dtype, device="cuda", without=without)


def records(rng, count: int) -> list:
    """Pairs of all lengths, questions with several answers, single tokens, and texts alone."""
    found = []
    for i in range(count):
        context = rng.integers(0, V, int(rng.integers(1, 50))).tolist()
        found += [(context, rng.integers(0, V, int(n)).tolist()) for n in rng.integers(1, 25, 3)]
        found += [(context, [int(rng.integers(0, V))])] * 2 if i % 3 else []
        found += [rng.integers(0, V, int(rng.integers(1, 81))).tolist()]
    return found


def as_bits(scores) -> list[tuple]:
    return [(s.token_ids, np.array(s.logprobs, np.float32).tobytes(), s.logprob, s.is_greedy, s.cut) for s in scores]


@rarely
@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_against_transformers_and_bits_in_every_company(dtype, rng, monkeypatch):
    other, given = peer(**SMALL), records(rng, 20 if ON_GPU else 1)
    model = like(other, dtype)
    together = list(model.score(given, prefix_token=3))
    for record, found in zip(given, together, strict=True):
        context, continuation = record if isinstance(record, tuple) else ([3], record)
        logits = peer_logits(other, np.array([*context, *continuation][:-1]))[len(context) - 1 :].astype(np.float64)
        values = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
        values = values[np.arange(len(continuation)), continuation]
        assert np.abs(np.array(found.logprobs) - values).max() <= BOUND[dtype]
        assert dtype != "float32" or found.is_greedy == (logits.argmax(axis=1) == continuation).all()
    some = range(len(given)) if ON_GPU else (1, len(given) - 1)
    for i in some:
        assert as_bits(model.score([given[i]], prefix_token=3)) == as_bits([together[i]]), i
    unshared = like(other, dtype, without={"prefix-sharing"})
    monkeypatch.setitem(scoring.ROWS, "cuda", 90)
    assert as_bits(unshared.score(given, prefix_token=3)) == as_bits(together)


@rarely
def test_a_pass_is_halved_until_it_fits(rng, monkeypatch):
    given = [rng.integers(0, V, n).tolist() for n in (9, 30, 31)]
    model, forward, seen = like(peer(**SMALL), "bfloat16"), GPT2.forward, []
    wanted = as_bits(model.score(given, prefix_token=3))

    def short(self, batch, work):
        if len(batch.ids) > 40:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        seen.append(len(batch.ids))
        return forward(self, batch, work)

    monkeypatch.setattr(GPT2, "forward", short)
    monkeypatch.setitem(scoring.ROWS, "cuda", 128)
    assert as_bits(model.score(given, prefix_token=3)) == wanted and sum(seen) == 70


@on_a_gpu
def test_a_whole_job(tmp_path):
    """From any shards the same bytes, which are the model's scores."""
    lines = [f"to be or not to be, {i * i}" for i in range(300)]
    (tmp_path / "in.txt").write_text("\n".join(lines) + "\n")
    for number, options in enumerate(({}, {"shard_size": 700})):
        out, settings = tmp_path / f"{number}.jsonl", Settings(device="cuda", **options)
        job = ScoreJob(model_path("poet"), str(tmp_path / "in.txt"), str(out), settings=settings)
        assert score(job).records == 300
    assert (tmp_path / "0.jsonl").read_bytes() == (tmp_path / "1.jsonl").read_bytes()
    found = [one.logprob for one in tw.load("poet", device="cuda").score(lines[:9])]
    here = [one.logprob for one in tw.load("poet", device="cpu").score(lines[:9])]
    assert np.abs(np.array(found) - here).max() < 1e-2
