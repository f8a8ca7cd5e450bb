"""What engines declare, against what they lay out: for a GPU, here with the CPU's tensors."""

from types import SimpleNamespace

import pytest

from gpu import PLACE
from tilewright.backends.footprint import cached, matrix, peak_of
from tilewright.errors import Refused, ResourceError
from tilewright.generation import memory
from tilewright.generation.memory import Prompts, Wanted, on_cpu, on_gpu
from tilewright.models.gpt2 import GPT2Config
from tilewright.models.gpt_neox import GPTNeoXConfig
from tilewright.ops.attention.operands import DeviceCache
from tilewright.ops.core.ladder import using

torch = pytest.importorskip("torch")
products = pytest.importorskip("tilewright.ops.matmul")
attention = pytest.importorskip("tilewright.generation.cuda.attention")
engine = pytest.importorskip("tilewright.generation.cuda.engine")
lanes = pytest.importorskip("tilewright.generation.cuda.lanes")
drawing = pytest.importorskip("tilewright.generation.cuda.drawing")

CONFIG = GPT2Config()
COURSE, GIB = Prompts(6400, 6400 * 16, 16), 1 << 30


def declared(dtype, gib, **more):
    """Of the course's job on a GPU of so much memory."""
    return on_gpu(CONFIG, COURSE, Wanted(8, dtype, gib * GIB, **more))


def part(found, name):
    return {one.name: one.bytes for one in found.parts}[name]


@pytest.mark.usefixtures("simulated_gpu")
@pytest.mark.parametrize(("K", "N", "dtype"), [(37, 50, "float32"), (200, 37, "float32"), (37, 50, "bfloat16")])
def test_a_matrix_takes_what_it_takes(K, N, dtype):
    try:
        packed = products.prepare(torch.ones(K, N, device=PLACE), dtype=dtype)
    except Refused as error:
        pytest.skip(str(error))
    assert packed.data.nbytes == matrix(K, N, dtype, "cuda").prepared


def test_lanes_are_those_of_the_engine():
    for module, names in ((lanes, ("LANES", "LANE", "PROMPT_ROWS", "ROUND", "STEPS")),
                          (attention, ("SHARE",))):  # fmt: skip
        for name in names:
            assert getattr(memory, name) == getattr(module, name)


def test_the_courses_job_on_a_large_gpu():
    found = declared("bfloat16", 139)
    assert found.at_once == COURSE.count
    cache = DeviceCache.on("cpu", 2, CONFIG.n_head, 32, CONFIG.n_embd // CONFIG.n_head, "bfloat16")
    assert part(found, "keys and values") == 7680 // 2 * CONFIG.n_layer * (cache.keys.nbytes + cache.values.nbytes)
    assert part(found, "weights") > 2 * 124_439_808  # parameters
    rows = lanes.LANE * (COURSE.longest + 1)  # a pass has the prompts of one lane at most
    assert part(found, "workspace") < 1.1 * rows * CONFIG.row_bytes("bfloat16", "cuda")
    assert peak_of(found.parts) < 20 * GIB
    assert found.moved > found.steps * part(found, "weights")


def test_products_in_float32_split_their_operands(monkeypatch):
    """The bytes that are declared per row are those of the limbs that a layer's products allocate."""
    launch, rows = pytest.importorskip("tilewright.ops.gemm.tile.launch"), 5
    monkeypatch.setattr(launch, "start", lambda *given: None)
    sizes = []
    for K in (CONFIG.n_embd, CONFIG.n_embd, CONFIG.n_embd, 4 * CONFIG.n_embd):
        packed = SimpleNamespace(data=torch.zeros(1, 2 * K, dtype=torch.bfloat16))
        operand = SimpleNamespace(plain=lambda K=K: torch.zeros(rows, K))
        sizes.append(launch.left_limbs(operand, packed).nbytes)
    assert rows * CONFIG.operand_bytes("float32") == cached(sizes) == rows * 4 * 5 * CONFIG.n_embd
    assert CONFIG.operand_bytes("bfloat16") == CONFIG.operand_bytes("float16") == 0


def test_a_captured_prefill_has_operands_of_its_own():
    """A prefill is captured if a lane gets prompts of the same lengths again."""
    each = CONFIG.operand_bytes("float32")

    def captured(count, tokens, dtype="float32"):
        return part(on_gpu(CONFIG, Prompts(count, tokens, 16), Wanted(8, dtype, 139 * GIB)), "captured graphs")

    once, again = lanes.LANES * lanes.LANE, 5 * lanes.LANES * lanes.LANE
    assert captured(again, again * 16) == lanes.LANE * (16 + 1) * each > 600 << 20
    assert captured(once, once * 16) == captured(again, again * 15) == lanes.LANE * each
    assert captured(again, again * 16, "bfloat16") == 0


def test_drawn_tokens_take_what_they_are_drawn_with():
    lane = 2560
    assert memory.DRAWN_BYTES == drawing.LOGITS_BYTES
    draw = drawing.Drawing(SimpleNamespace(sizes=CONFIG.sizes), "cpu", lane, memory.STEPS)
    taken = sum(x.untyped_storage().nbytes() for x in vars(draw).values() if isinstance(x, torch.Tensor))
    assert draw.nbytes == taken
    greedy, sampled = (declared("bfloat16", 139, drawn=chance) for chance in (False, True))
    more = part(sampled, "workspace") - part(greedy, "workspace")
    assert more == memory.drawing(CONFIG.vocab_size, lane) == taken
    assert memory.drawing(CONFIG.vocab_size, 3) < taken


def test_little_memory_means_fewer_at_once_and_none_an_error():
    less, plenty = (declared("float32", gib) for gib in (4, 139))
    assert 0 < less.at_once < COURSE.count
    assert less.moved > plenty.moved
    with pytest.raises(ResourceError, match="keys and values for 32 positions"):
        declared("float32", 1)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_rows_of_an_output_matrix_stay_if_the_screened_search_needs_them(dtype):
    """The rung computes rows again that 8 bits do not decide. A tied matrix has the rows of the embedding."""
    sizes = {
        "vocab_size": 1000,
        "hidden_size": 64,
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "intermediate_size": 64,
    }
    rows, layout = {}, "cpu.packed" if dtype == "float32" else "cpu.widened"  # on every CPU; tiles are not screened
    for tied in (True, False):
        config = GPTNeoXConfig(**sizes, tie_word_embeddings=tied)
        for rung in ("cpu.screened", "cpu.logits"):
            with using(matmul=layout, matmul_argmax=rung):
                found = on_cpu(config, Prompts(4, 16, 4), Prompts(4, 16, 4), Wanted(8, dtype, GIB), 100)
            rows[tied, rung] = part(found, "embedding and output rows, mapped")
    once = 4 * 1000 * 64
    with using(matmul=layout, matmul_argmax="cpu.screened"):
        greedy, drawn = (
            on_cpu(config, Prompts(4, 16, 4), Prompts(4, 16, 4), Wanted(8, dtype, GIB, drawn=drawn), 100).moved
            for drawn in (False, True)
        )
    assert greedy < drawn, "8 bits take fewer bytes than matmul's weights"
    assert rows.pop((False, "cpu.screened")) == 2 * once
    assert set(rows.values()) == {once}
