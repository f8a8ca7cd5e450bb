"""Plans for a GPU against the arrays that its backend allocates, here tensors on the CPU; no kernel runs."""

import numpy as np
import pytest

from bert_models import saved
from dcgan_models import random_weights
from gpu import PLACE
from tilewright.backends import footprint
from tilewright.backends.footprint import CONTEXT, CONTEXT_WITHOUT_GRAPHS, record_bytes
from tilewright.errors import Refused, ResourceError
from tilewright.hardware import gpus
from tilewright.models import textcnn
from tilewright.models.bert import Bert
from tilewright.models.dcgan import DCGAN, SLOTS, DCGANConfig, doubling
from tilewright.models.gpt2 import GPT2
from tilewright.models.textcnn import TextCNN
from tilewright.runtime.convert.models import init_dcgan, init_gpt2, init_textcnn
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.load import read_weights
from tilewright.runtime.verbs.classify import ClassifyJob
from tilewright.runtime.verbs.classify.plan import plan as plan_classify
from tilewright.runtime.verbs.convolve import ConvolveJob, slabs
from tilewright.runtime.verbs.convolve.kernels import kernel_of
from tilewright.runtime.verbs.convolve.plan import plan as plan_convolve
from tilewright.runtime.verbs.convolve.tiles import Tiling
from tilewright.runtime.verbs.draw import DrawJob, draw
from tilewright.runtime.verbs.draw.plan import plan as plan_draw
from tilewright.runtime.verbs.embed import EmbedJob
from tilewright.runtime.verbs.embed.plan import plan as plan_embed
from tilewright.runtime.verbs.generate import GenerateJob
from tilewright.runtime.verbs.generate.plan import plan_made

torch = pytest.importorskip("torch")
cuda = pytest.importorskip("tilewright.backends.cuda")
pytestmark = pytest.mark.usefixtures("simulated_gpu")

GIB = 1 << 30
ON_GPU = Settings(device="cuda")
TEXT = {"vocab_size": 50, "sequence_length": 16, "hidden_size": 64, "num_filters": 40, "kernel_sizes": (3, 5),
        "hidden_sizes": (32,)}  # fmt: skip
GENERATOR = DCGANConfig(z_size=6, size=4, channels=16, layers=doubling((8, 3), 5))


def parts_of(found):
    return {part.name: part.bytes for part in found.parts}


def tensors_of(thing, seen):
    """Every tensor that an object of ours holds, views of one memory once."""
    if isinstance(thing, torch.Tensor):
        seen[thing.untyped_storage().data_ptr()] = thing.untyped_storage().nbytes()
    elif isinstance(thing, dict):
        for part in thing.values():
            tensors_of(part, seen)
    elif isinstance(thing, (list, tuple)):
        for part in thing:
            tensors_of(part, seen)
    elif type(thing).__module__.startswith("tilewright.") and not callable(thing):
        names = [name for kind in type(thing).__mro__ for name in getattr(kind, "__slots__", ())]
        for part in [*getattr(thing, "__dict__", {}).values(), *(getattr(thing, name) for name in names)]:
            tensors_of(part, seen)
    return seen


def placed(make, dtype):
    try:
        return make(cuda.Cuda(dtype, PLACE))
    except Refused as error:
        pytest.skip(str(error))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_weights_of_gpt2(tmp_path, dtype, monkeypatch):
    init_gpt2(str(tmp_path / "m"), 3, vocab_size=301, n_positions=64, n_embd=192, n_layer=2, n_head=3)
    config, weights = read_weights(str(tmp_path / "m"))
    monkeypatch.setattr("tilewright.generation.language_model.backend", lambda *given: cuda.Cuda(given[1], PLACE))
    model = placed(lambda backend: GPT2(config, weights, dtype=dtype, device="cuda"), dtype)
    held = sum(tensors_of([model.wte, model.wpe, model.layers, model.norm, model.head], {}).values())
    found = plan_made(
        GenerateJob(str(tmp_path / "m"), "", "", settings=Settings(device="cuda", dtype=dtype)), gpu_memory=80 * GIB
    )
    assert parts_of(found)["weights"] == pytest.approx(held, rel=0.01)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_weights_table_and_slots_of_textcnn(tmp_path, rng, dtype, monkeypatch):
    monkeypatch.setitem(textcnn.SIZES, "cuda", (4, 8))
    init_textcnn(str(tmp_path / "m"), 3, **TEXT)
    config, weights = read_weights(str(tmp_path / "m"))
    model = placed(lambda backend: TextCNN(config, weights, dtype=dtype, device=backend), dtype)
    rng.integers(0, 50, (40, 16), np.int32).tofile(tmp_path / "in.bin")
    job = ClassifyJob(str(tmp_path / "m"), str(tmp_path / "in.bin"), str(tmp_path / "out.bin"),
                      settings=Settings(device="cuda", dtype=dtype))  # fmt: skip
    found = plan_classify(job, 80 * GIB)
    table = model.convolutions.state
    held = sum(tensors_of([model.convolutions.table, table.weights, model.linears], {}).values())
    assert parts_of(found)["weights"] == pytest.approx(held, rel=0.02)
    assert parts_of(found)["token table"] == table.cache.nbytes
    assert found.figures["table_rows"] == table.capacity == 50
    slots = [[*slot.inputs, *slot.outputs] for slots in model.batches.slots.values() for slot in slots]
    inputs, outputs = config.operands
    assert sum(one.nbytes for slot in slots for one in slot) == (4 + 8) * record_bytes([*inputs, *outputs])
    assert found.figures["batch"] == 40 and parts_of(found)["CUDA"] == CONTEXT


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_the_weights_of_an_encoder(tmp_path, dtype):
    saved("bert", 1, tmp_path / "m", hidden_size=192, num_attention_heads=2, intermediate_size=200)
    (tmp_path / "in.txt").write_text("a good film\n" * 30)
    config, weights = read_weights(tmp_path / "m")
    model = placed(lambda backend: Bert(config, weights, dtype=dtype, device=backend), dtype)
    parts = [model.words, model.positions, model.norm, model.layers, model.dense, model.classifier]
    held = sum(tensors_of(parts, {}).values())
    paths = str(tmp_path / "m"), str(tmp_path / "in.txt")
    settings = Settings(device="cuda", dtype=dtype)
    for found in (
        plan_classify(ClassifyJob(*paths, str(tmp_path / "o.jsonl"), settings=settings), 80 * GIB),
        plan_embed(EmbedJob(*paths, str(tmp_path / "o.npy"), settings=settings), 80 * GIB),
    ):
        assert parts_of(found)["weights"] == pytest.approx(held, rel=0.02)
        assert parts_of(found)["rows of a pass"] == 150 * config.row_bytes(dtype, "cuda")
        assert found.total_memory is None and found.device == "cuda"
    with pytest.raises(ResourceError, match="a batch of 1 takes"):
        plan_embed(EmbedJob(*paths, str(tmp_path / "o.npy"), settings=settings), CONTEXT_WITHOUT_GRAPHS)


def test_a_table_takes_what_the_reserve_leaves_and_large_batches_are_left_out(tmp_path, rng):
    init_textcnn(str(tmp_path / "m"), 3, **TEXT)
    rng.integers(0, 50, (40, 16), np.int32).tofile(tmp_path / "in.bin")
    job = ClassifyJob(str(tmp_path / "m"), str(tmp_path / "in.bin"), str(tmp_path / "out.bin"), settings=ON_GPU)
    plenty = plan_classify(job, 80 * GIB)
    entry = plenty.figures["table_bytes"] // 50
    few = plan_classify(job, CONTEXT + parts_of(plenty)["weights"] + 60 * entry)
    assert (few.figures["table_rows"], plenty.figures["table_rows"]) == (30, 50)
    assert parts_of(few)["batches"] < parts_of(plenty)["batches"]
    with pytest.raises(ResourceError, match="holds the rows of 0 tokens; a sentence has 16"):
        plan_classify(job, CONTEXT)
    job.table_memory = 20 * entry
    assert plan_classify(job, 80 * GIB).figures["table_rows"] == 20


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("outputs", [("images", "invalid"), ("pixels", "invalid")])
def test_the_weights_buffers_and_slots_of_dcgan(dtype, outputs):
    model = placed(lambda backend: DCGAN(GENERATOR, random_weights(GENERATOR), dtype=dtype, device=backend, batch=5),
                   dtype)  # fmt: skip
    held = sum(tensors_of([model.projection, model.layers], {}).values())
    assert GENERATOR.memory(dtype, "cuda").prepared == pytest.approx(held, rel=0.1, abs=2000)
    batches = model.batches_of(*outputs)
    tensors = [one for slots in batches.slots.values() for slot in slots for one in (*slot.inputs, *slot.outputs)]
    assert len(tensors) == SLOTS * 3
    even, odd = GENERATOR.between
    for name, elements in (("even", even), ("odd", odd)):
        model.work.take(name, 1, elements, model.backend.between)
    if "images" not in outputs:
        model.work.take("images", 5, 16 * 16 * 3)
    taken = sum(one.nbytes for one in (*tensors, *model.work.buffers.values()))
    planned = 5 * GENERATOR.gpu_bytes(dtype, outputs)
    padding = 5 * SLOTS * 4 * (model.columns - GENERATOR.z_size)  # of the noise
    split = 2 * (16 + 64) * 4 * 64 if dtype == "float32" else 0  # 64 limbs of 4 bytes a pixel, twice
    assert planned - taken == 5 * split - padding


def test_a_batch_of_images_is_halved_until_it_fits(tmp_path):
    init_dcgan(str(tmp_path / "m"), 3)
    job = DrawJob(str(tmp_path / "m"), None, str(tmp_path / "out.npy"), count=4096, settings=ON_GPU)
    little = CONTEXT + GIB // 2
    plenty, few = plan_draw(job, 80 * GIB), plan_draw(job, little)
    assert (plenty.figures["batch"], few.figures["batch"]) == (1024, 256)
    assert few.peak_memory <= little < plenty.peak_memory
    assert plenty.total_memory is None and plenty.device == "cuda"
    with pytest.raises(ResourceError, match="a batch of 1 takes"):
        plan_draw(job, 1 << 20)


@pytest.mark.parametrize("kernel", ["laplace", "box:3", "gaussian:3"])
def test_slabs_of_a_volume(tmp_path, monkeypatch, kernel):
    """Three in flight, each with its result."""
    taps = kernel_of(kernel).shape
    made, backend = [], cuda.Cuda("float32", PLACE)
    monkeypatch.setattr(backend, "empty", lambda shape: made.append(4 * int(np.prod(shape))) or torch.empty(shape))
    monkeypatch.setattr(slabs, "conv3d", lambda x, prepared, mode, out: out.zero_())
    prepared = type("Prepared", (), {"sizes": taps})()
    tiling = Tiling((60, 48, 40), (60, 48, 40), *kernel_of(kernel).halo)
    monkeypatch.setattr(slabs, "SLAB", 1 << 19)
    block, out = np.zeros(tiling.block, np.float32), np.empty(tiling.tile, np.float32)
    slabs.through(prepared, backend)(block, out)
    planes = slabs.planes_of(tiling, taps)
    planned = slabs.slabs_bytes(kernel_of(kernel), tiling, planes)
    between = 0 if kernel == "box:3" and tiling.block[2] % 4 == 0 else planned
    assert sum(made) <= planned <= sum(made) + between
    assert len(made) == 2 * slabs.IN_FLIGHT


def test_slabs_are_halved_until_they_fit_and_limits_are_the_operations(tmp_path):
    np.save(tmp_path / "in.npy", np.zeros((40, 128, 128), np.float32))
    job = ConvolveJob(str(tmp_path / "in.npy"), "box:3", str(tmp_path / "out.npy"), memory=GIB, settings=ON_GPU)
    plenty = plan_convolve(job, 80 * GIB).peak_memory
    few = plan_convolve(job, plenty - 1).peak_memory
    context = footprint.CONTEXT_WITHOUT_GRAPHS
    assert context + (plenty - context) // 4 < few < plenty
    launch = pytest.importorskip("tilewright.ops.conv3d.simt.launch")
    assert (slabs.QUAD, slabs.FUSED) == (launch.QUAD, launch.FUSED)


def test_without_a_gpu_the_job_itself_is_refused_as_before(tmp_path):
    if gpus():
        pytest.skip("there is a GPU")
    init_dcgan(str(tmp_path / "m"), 3, z_size=5, channels=(8, 4, 3))
    job = DrawJob(str(tmp_path / "m"), None, str(tmp_path / "out.npy"), count=4, settings=ON_GPU)
    assert plan_draw(job, 80 * GIB).device == "cuda"
    for refused in (plan_draw, draw):
        with pytest.raises(ResourceError, match="there is no GPU to run on"):
            refused(job)
