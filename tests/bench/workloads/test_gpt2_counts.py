"""Counted work of a decoder on a GPU; PyTorch's operations on tensors of the CPU stand in for the kernels."""

import numpy as np
import pytest

from gpt2_models import TINY, random_weights
from tilewright.bench.roofs.limits import Roofs
from tilewright.bench.workloads import gpt2_profile
from tilewright.bench.workloads.gpt2_counts import HEAD, MATMUL, ONE, PROMPTS, Work, counting
from tilewright.generation import language_model
from tilewright.generation.sampling import SamplingParams
from tilewright.models import decoder
from tilewright.models.gpt2 import GPT2, GPT2Config

torch = pytest.importorskip("torch")
cuda = pytest.importorskip("tilewright.backends.cuda")
attention = pytest.importorskip("tilewright.generation.cuda.attention")


@pytest.fixture
def model(monkeypatch):
    """A tiny model whose kernels are stand-ins."""
    from gpt2_stand_ins import StandIns

    stand_ins = StandIns()
    for name in ("embedding", "layernorm", "matmul", "matmul_argmax", "prepare", "prepare_argmax"):
        monkeypatch.setattr(decoder, name, getattr(stand_ins, name))
    for name in ("checked_spans", "append", "attend", "append_and_attend"):
        monkeypatch.setattr(attention, name, getattr(stand_ins, name))
    monkeypatch.setattr(language_model, "backend", lambda device, dtype, without: cuda.Cuda(dtype, "cpu", without))
    config = GPT2Config(**TINY)
    return GPT2(config, random_weights(config), device="cuda", without=frozenset({"graphs"}))


def test_the_operations_of_prompts_and_of_new_tokens(model):
    config, params = model.config, SamplingParams(temperature=0, max_tokens=4, ignore_eos=True)
    prompts = np.random.default_rng(0).integers(0, config.vocab_size, (8, 5))
    before = decoder.matmul, attention.attend
    list(model.generate(prompts, params))  # the decode state makes a step when it is made
    with counting() as found:
        list(model.generate(prompts, params))
    assert (decoder.matmul, attention.attend) == before
    C, layers, steps = config.n_embd, config.n_layer, 3
    each = 2 * 12 * C * C  # of a token and a layer: qkv, projection, and two of the MLP
    rows = 8 * 5 + 8 * steps  # 8 is a rounded number of rows, so none is padded
    last = 8 * 5 - 8  # rows of the prompts that the last layer computes for qkv only
    assert found[MATMUL].flops == each * layers * rows - last * 2 * 9 * C * C
    assert found[HEAD].flops == 2 * C * config.vocab_size * 8 * 4
    seen = sum(5 + i for i in range(1, steps + 1))
    assert found[ONE].flops == 4 * C * layers * 8 * seen
    assert found[PROMPTS].flops == 4 * C * 8 * ((layers - 1) * 15 + 5)
    assert all(work.nbytes > 0 for work in found.values()) and {"layernorm", "embedding", "append"} <= set(found)


def test_a_row_of_the_profile_has_its_rates(monkeypatch):
    roof = Roofs(threads=0, copy_gbytes_s=100.0, gflops={"float32": 1000.0})
    monkeypatch.setattr(gpt2_profile, "measured_roofs", lambda count: roof)
    row = gpt2_profile._gpu_row(MATMUL, 7, 2.0, 0.5, Work(1e12, 1e9), "size", "float32")
    assert (row.gflops, row.gbytes_s, row.roof_share, row.rows, row.label) == (500.0, 0.5, 0.5, 7, "50.0%")
    idle = gpt2_profile._gpu_row(gpt2_profile.IDLE, 1, 0.0, 0.0, Work(), "size", "float32")
    assert idle.gflops is None and idle.roof_share is None and idle.roof_gflops == 1000.0


def test_a_kernel_that_waits_has_only_the_time_after_the_kernels_ahead():
    kernels = [("b", 2.0, 9.0), ("a", 0.0, 5.0), ("c", 3.0, 4.0), ("d", 11.0, 12.0)]
    found = gpt2_profile.own_times([(name, start * 1e6, end * 1e6) for name, start, end in kernels])
    assert found == [("a", 5.0), ("b", 4.0), ("c", 0.0), ("d", 1.0)]
