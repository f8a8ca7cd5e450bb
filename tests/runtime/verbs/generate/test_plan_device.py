"""The plan for a GPU against what the operations lay out for one, here with the CPU's tensors."""

from types import SimpleNamespace

import pytest

from gpu import PLACE
from tilewright.errors import Refused, ResourceError
from tilewright.models.gpt2 import GPT2Config
from tilewright.ops.attention.operands import DeviceCache
from tilewright.runtime.verbs.generate import plan_device
from tilewright.runtime.verbs.generate.plan import Prompts
from tilewright.runtime.verbs.generate.plan_device import matrix_bytes, plan_on_gpu

torch = pytest.importorskip("torch")
products = pytest.importorskip("tilewright.ops.matmul")
generation = pytest.importorskip("tilewright.generation.cuda.engine")
drawing = pytest.importorskip("tilewright.generation.cuda.drawing")

COURSE, GIB = Prompts(6400, 6400 * 16, 16), 1 << 30


@pytest.mark.usefixtures("simulated_gpu")
@pytest.mark.parametrize(("K", "N", "dtype"), [(37, 50, "float32"), (200, 37, "float32"), (37, 50, "bfloat16")])
def test_a_matrix_takes_what_it_takes(K, N, dtype):
    try:
        packed = products.prepare(torch.ones(K, N, device=PLACE), dtype=dtype)
    except Refused as error:
        pytest.skip(str(error))
    assert packed.data.nbytes == matrix_bytes(K, N, dtype)


def test_lanes_are_those_of_the_engine():
    for name in ("LANES", "LANE", "PROMPT_ROWS", "ROUND", "STEPS"):
        assert getattr(plan_device, name) == getattr(generation, name)


def test_the_courses_job_on_a_large_gpu():
    config = GPT2Config()
    plan = plan_on_gpu(config, COURSE, tokens=8, dtype="bfloat16", memory=139 * GIB)
    assert plan.at_once == COURSE.count
    cache = DeviceCache.on("cpu", 2, config.n_head, 32, config.n_embd // config.n_head, "bfloat16")
    assert plan.keys_values == 7680 // 2 * config.n_layer * (cache.keys.nbytes + cache.values.nbytes)
    assert plan.weights > 2 * 124_439_808  # parameters
    assert plan.peak_memory < 20 * GIB
    assert plan.least_seconds(1e3, 1e9) == pytest.approx(plan.flops / 1e12)
    assert plan.least_seconds(1e9, 1.0) == pytest.approx(plan.moved / 1e9)
    assert set(plan.as_dict()) > {"peak_memory", "moved", "at_once"}


def test_drawn_tokens_take_what_they_are_drawn_with():
    config, lane = GPT2Config(), 2560
    assert plan_device.DRAWN_BYTES == drawing.LOGITS_BYTES
    model = SimpleNamespace(config=config, place=SimpleNamespace(device=torch.device("cpu")))
    draw = drawing.Draw(model, lane, plan_device.STEPS)
    taken = sum(x.nbytes for x in vars(draw).values() if isinstance(x, torch.Tensor))
    greedy, sampled = (
        plan_on_gpu(config, COURSE, tokens=8, dtype="bfloat16", memory=139 * GIB, sampled=chance)
        for chance in (False, True)
    )
    assert sampled.workspace - greedy.workspace == plan_device.drawing(config, lane) == taken
    assert plan_device.drawing(config, 3) < taken


def test_little_memory_means_fewer_at_once_and_none_an_error():
    config = GPT2Config()
    less, plenty = (plan_on_gpu(config, COURSE, tokens=8, dtype="float32", memory=n * GIB) for n in (4, 139))
    assert 0 < less.at_once < COURSE.count
    assert less.moved > plenty.moved
    with pytest.raises(ResourceError, match="keys and values of 32 positions"):
        plan_on_gpu(config, COURSE, tokens=8, dtype="float32", memory=GIB)
