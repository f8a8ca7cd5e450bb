"""TextCNN on a GPU (TILEWRIGHT_GPU=1), else its kernels as Python: logits against float64, and a sentence's bits in
every company."""

import numpy as np
import pytest

from gpu import ON_GPU, PLACE
from tilewright.bench.workloads.sentiment import reference_logits
from tilewright.errors import ResourceError, UsageError
from tilewright.formats.validate import largest_error
from tilewright.models import textcnn
from tilewright.models.initial import random_textcnn
from tilewright.models.textcnn import TextCNN, TextCNNConfig
from tilewright.ops.core.ladder import using

torch = pytest.importorskip("torch")
cuda = pytest.importorskip("tilewright.backends.cuda")
pytestmark = pytest.mark.usefixtures("simulated_gpu")

SIZES = (
    {"vocab_size": 3000, "sequence_length": 16, "hidden_size": 1024, "num_filters": 200, "kernel_sizes": (3, 5, 9)}
    if ON_GPU
    else {"vocab_size": 12, "sequence_length": 4, "hidden_size": 8, "num_filters": 6, "kernel_sizes": (1, 3)}
)
CONFIG = TextCNNConfig(**SIZES, hidden_sizes=(64, 32) if ON_GPU else (7,), num_labels=3, id2label={})
CRITIC = TextCNNConfig(  # as the model of that name: longer than its kernels, one linear layer, a padding id
    vocab_size=8000 if ON_GPU else 12, sequence_length=64 if ON_GPU else 10, hidden_size=96 if ON_GPU else 6,
    num_filters=64 if ON_GPU else 5, hidden_sizes=(), pad_token_id=0,
)  # fmt: skip
WEIGHTS = random_textcnn(CONFIG.tensor_shapes(), seed=3)
COUNT = 2300 if ON_GPU else 20
IDS = ((np.random.default_rng(5).zipf(1.2, (COUNT, CONFIG.sequence_length)) - 1) % CONFIG.vocab_size).astype(np.int32)
TOLERANCE = {"float32": 5e-5, "float16": 0.02, "bfloat16": 0.1}
DTYPES = list(TOLERANCE) if ON_GPU else ["float32"]
FAST = {} if ON_GPU else {"matmul": "simt.register"}  # in the simulator


@pytest.fixture(autouse=True)
def small_batches(monkeypatch):
    """Where kernels run as Python."""
    if not ON_GPU:
        monkeypatch.setitem(textcnn.SIZES, "cuda", (4,))


def placed(dtype: str = "float32", memory: int | None = None, config=CONFIG, weights=WEIGHTS):
    return TextCNN(config, weights, dtype=dtype, table_memory=memory, device=cuda.Cuda(dtype, PLACE))


@pytest.mark.parametrize("dtype", DTYPES)
def test_logits_against_float64_and_bits_in_every_company(dtype, rng):
    with using(**FAST):
        model = placed(dtype)
        logits = model.logits(IDS)
        assert logits.dtype == np.float32 and logits.shape == (COUNT, 3)
        assert largest_error(logits, reference_logits(CONFIG, WEIGHTS, IDS)) < TOLERANCE[dtype]
        for size in (0, 1, 17, 200, COUNT) if ON_GPU else (0, 1):
            chosen = rng.permutation(COUNT)[:size]
            assert model.logits(IDS[chosen]).tobytes() == logits[chosen].tobytes(), f"a batch of {size}"
        assert model.tokens.settled, "no token of the last call was new"
        model.tokens.forget()
        assert model.logits(IDS[:1]).tobytes() == logits[:1].tobytes()
        model.tokens.settled = True  # it is not: the other sentences have other tokens
        assert model.logits(IDS).tobytes() == logits.tobytes(), "after a run as if there were none"
        again = placed(dtype)
        assert again.logits(IDS[:3]).tobytes() == logits[:3].tobytes(), "another table, other slots"


def test_little_memory_beside_the_batches(monkeypatch):
    """Rows are made in the memory of the largest batch, or there is none for them."""
    sizes = textcnn.SIZES["cuda"] if ON_GPU else (2, 3)
    monkeypatch.setitem(textcnn.SIZES, "cuda", sizes)
    with using(**FAST):
        wanted = placed().logits(IDS[:2])
        model = placed()
        table, slots = model.tokens.table, model.batches.slots
        assert list(slots) == list(sizes)
        build = table._build

        def short(*some):
            if len(slots) > short.least:
                raise torch.cuda.OutOfMemoryError("CUDA out of memory")
            build(*some)

        short.least = 1
        monkeypatch.setattr(table, "_build", short)
        assert model.logits(IDS[:2]).tobytes() == wanted.tobytes() and list(slots) == [min(sizes)]
        short.least = 0
        with pytest.raises(torch.cuda.OutOfMemoryError):
            model.logits(IDS)


def test_slots_are_free_where_rows_could_not_be_made(monkeypatch):
    """Else a token that has another slot by now would lose it when its old one is reused."""
    # two models are there together; with all batches they need GBs, which tests beside this one may have taken
    monkeypatch.setitem(textcnn.SIZES, "cuda", textcnn.SIZES["cuda"][:1])
    with using(**FAST):
        table = placed(memory=placed().tokens.table.token_bytes * CONFIG.sequence_length).tokens.table
        first, second = (np.arange(CONFIG.sequence_length, dtype=np.int32)[None] + i for i in (0, 3))
        assert table.capacity == CONFIG.sequence_length and table._replace(first)

        def short(*_):
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")

        with monkeypatch.context() as patch:
            patch.setattr(table, "_build", short)
            with pytest.raises(torch.cuda.OutOfMemoryError):
                table._replace(second)
        taken = np.flatnonzero(table.token_at >= 0)
        assert 0 < len(taken) < table.capacity
        assert table.slot_of[table.token_at[taken]].tolist() == taken.tolist()


def test_padding_is_a_token_like_others(rng):
    weights = random_textcnn(CRITIC.tensor_shapes(), seed=8)
    ids = rng.integers(1, CRITIC.vocab_size, (5, CRITIC.sequence_length), np.int32)
    for row, length in enumerate((0, 1, 4, CRITIC.sequence_length)):
        ids[row, length:] = CRITIC.pad_token_id
    with using(**FAST):
        model = placed(config=CRITIC, weights=weights)
        logits = model.logits(ids)
        assert largest_error(logits, reference_logits(CRITIC, weights, ids)) < TOLERANCE["float32"]
        assert model.logits(ids[2:3]).tobytes() == logits[2:3].tobytes()


def test_little_memory_for_the_table_changes_no_bits():
    table_bytes = (
        (CONFIG.sequence_length + 2) * sum(CONFIG.kernel_sizes) * -(-CONFIG.num_filters // 32) * 128
    )  # two tokens more than a sentence has
    some = IDS[:300] if ON_GPU else IDS[:6]
    with using(**FAST):
        model = placed(memory=table_bytes)
        assert model.logits(some).tobytes() == placed().logits(some).tobytes()
        assert model.convolutions.state.built > model.convolutions.state.capacity, "this test wants rows to be dropped"
        with pytest.raises(ResourceError, match="a token table of 100 bytes"):
            placed(memory=100)


@pytest.mark.skipif(not ON_GPU, reason="it takes a GPU: TILEWRIGHT_GPU=1")
def test_a_device_by_name():
    model = TextCNN(CONFIG, WEIGHTS, device="cuda")
    here = TextCNN(CONFIG, WEIGHTS)
    assert largest_error(model.logits(IDS), here.logits(IDS)) < TOLERANCE["float32"]
    sentence = IDS[0].tolist()
    assert model.classify([sentence])[0]["label"] == here.classify([sentence])[0]["label"]
    with pytest.raises(UsageError, match="ids has shape"):
        model.logits(IDS[:, :4])
    wrong = IDS.copy()
    wrong[7, 3] = CONFIG.vocab_size
    with pytest.raises(UsageError, match=r"ids\[7, 3\] is 3000"):
        model.logits(wrong)
