"""A network in batches: every record has its own results, in order, whatever the sizes, on both backends."""

import threading
import weakref

import numpy as np
import pytest

from gpu import PLACE
from tilewright.backends.cpu import Cpu
from tilewright.backends.protocol import Network, Operand, Step
from tilewright.errors import UsageError

torch = pytest.importorskip("torch")
cuda = pytest.importorskip("tilewright.backends.cuda")

BACKENDS = {"cpu": Cpu(), "cuda": cuda.Cuda("float32", PLACE)}


def forward(x, number, doubled, above):
    """The first three of eight columns doubled, and the next number; of rows whose other columns are all zero."""
    doubled[:] = 2 * x[:, :3] + x[:, 3:].sum(-1)[:, None]
    above[:] = number + 1


NETWORK = Network(forward, [Operand((8,)), Operand((), "int32")], [Operand((3,)), Operand((), "int32")])


@pytest.fixture(params=list(BACKENDS))
def network(request):
    def prepared(*sizes, slots=2):
        backend = BACKENDS[request.param]
        return backend, backend.batches(NETWORK, sizes, slots)

    prepared.columns = {"cpu": 8, "cuda": 3}[request.param]  # a GPU's rows are padded
    return prepared


def records(n, columns, seed=0):
    x = np.zeros((n, 8), np.float32)
    x[:, :3] = np.random.default_rng(seed).standard_normal((n, 3))
    return x[:, :columns], np.arange(n, dtype=np.int32)


@pytest.mark.parametrize("n", [0, 1, 4, 5, 8, 21])
@pytest.mark.parametrize("sizes", [(4,), (2, 4, 8)])
def test_a_call_of_any_size(network, n, sizes):
    backend, batches = network(*sizes)
    x, number = records(n, network.columns)
    for make in (np.empty, backend.host):
        doubled, above = make((n, 3), np.float32), make((n,), np.int32)
        batches.run([x, number], [doubled, above])
        assert np.array_equal(doubled, 2 * x[:, :3]) and np.array_equal(above, number + 1)


def test_spans_are_requested_one_by_one(network):
    _, batches = network(4)
    x, number = records(10, network.columns)
    doubled, above = np.zeros((10, 3), np.float32), np.zeros(10, np.int32)
    requested = []

    def spans():
        for span in ((0, 3), (7, 9)):
            requested.append(span)
            yield span

    batches.run([x, number], [doubled, above], spans())
    assert requested == [(0, 3), (7, 9)]
    assert above.tolist() == [1, 2, 3, 0, 0, 0, 0, 8, 9, 0]


@pytest.mark.parametrize("sizes", [[], [8], [8, 8, 8, 8, 3], [1, 8, 2, 5, 5, 5, 5, 1]])
@pytest.mark.parametrize("slots", [2, 3])
def test_a_stream_of_batches(network, sizes, slots):
    _, batches = network(8, slots=slots)
    given = [records(size, network.columns, seed) for seed, size in enumerate(sizes)]
    count = 0
    for (x, number), (doubled, above) in zip(given, batches.stream(iter(given)), strict=True):
        assert np.array_equal(doubled, 2 * x[:, :3]) and np.array_equal(above, number + 1)
        count += 1
    assert count == len(sizes)


def test_streams_and_calls_at_once(network):
    """Two streams of one network in turn, and a call between their batches: all have their own results."""
    _, batches = network(8)
    given = [[records(size, network.columns, 10 * size + i) for i in range(5)] for size in (8, 3)]
    streams = [batches.stream(iter(parts)) for parts in given]
    for parts in zip(*given, strict=True):
        found = [next(stream) for stream in streams]
        x, number = records(5, network.columns, seed=99)
        doubled, above = np.empty((5, 3), np.float32), np.empty(5, np.int32)
        batches.run([x, number], [doubled, above])
        assert np.array_equal(doubled, 2 * x[:, :3])
        for (x, number), (doubled, above) in zip(parts, found, strict=True):
            assert np.array_equal(doubled, 2 * x[:, :3]) and np.array_equal(above, number + 1)


def test_a_gpu_starts_the_next_batch_before_results_are_read():
    batches = BACKENDS["cuda"].batches(NETWORK, [8], 2)
    started = []

    def given():
        for i in range(3):
            started.append(i)
            yield records(8, 3)

    found = batches.stream(given())
    next(found)
    assert started == [0, 1]
    next(found)
    assert started == [0, 1, 2]


def test_an_error_of_a_batch_is_raised(network):
    _, batches = network(8)

    def given():
        yield records(3, network.columns)
        raise ValueError("this batch")

    with pytest.raises(ValueError, match="this batch"):
        list(batches.stream(given()))
    x, number = records(3, network.columns)
    ((doubled, _),) = batches.stream([(x, number)])
    assert np.array_equal(doubled, 2 * x[:, :3])


def test_the_largest_batch_gives_its_memory_up():
    batches = BACKENDS["cuda"].batches(NETWORK, [2, 4, 8])
    tried = []

    def work(least):
        tried.append(batches.largest)
        if batches.largest > least:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        return batches.largest

    assert batches.attempt(lambda: work(4)) == 4 and tried == [8, 4]
    with pytest.raises(torch.cuda.OutOfMemoryError):
        batches.attempt(lambda: work(0))
    assert list(batches.slots) == [2]


def test_sizes_that_do_not_fit_are_left_out():
    def scarce(*arrays):
        if len(arrays[0]) > least:
            raise torch.cuda.OutOfMemoryError("CUDA out of memory")
        forward(*arrays)

    least, backend = 4, cuda.Cuda("float32", PLACE)
    backend.graph = lambda call, pool=None: (call(), call)[1]  # as on a GPU, where it runs once before it is captured
    assert list(backend.batches(NETWORK._replace(forward=scarce), [2, 4, 8]).slots) == [2, 4]
    least = 1
    with pytest.raises(torch.cuda.OutOfMemoryError):
        backend.batches(NETWORK._replace(forward=scarce), [2, 4])


class Model:
    """Stands for a model whose weights a network reads."""


@pytest.mark.parametrize("name", BACKENDS)
def test_batches_of_a_freed_model_are_refused(name):
    """A CUDA graph reads the addresses of its weights: after the model was freed they hold something else."""
    model, backend = Model(), {"cpu": Cpu(), "cuda": cuda.Cuda("float32", PLACE)}[name]
    backend.graph = lambda call, pool=None: lambda: None  # a graph is replayed whatever became of the model
    batches = backend.batches(NETWORK._replace(owner=weakref.ref(model)), [8], 2)
    x, number = records(3, {"cpu": 8, "cuda": 3}[name])
    results = np.zeros((3, 3), np.float32), np.zeros(3, np.int32)
    batches.run([x, number], results)
    assert len(list(batches.stream([(x, number)] * 3))) == 3
    del model
    for call in (lambda: batches.run([x, number], results), lambda: list(batches.stream([(x, number)]))):
        with pytest.raises(UsageError, match=r"batches was freed, and they read its weights\. Store"):
            call()


@pytest.mark.parametrize("attempted", [False, True])
def test_a_gpu_serves_several_threads_one_after_another(attempted):
    """They use the same slots: another thread's inputs must not arrive between a copy and the kernels that read it."""
    found = []

    def other() -> None:
        found.append(batches.lock.acquire(blocking=False))

    def forward_beside_another_thread(*arrays):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        forward(*arrays)

    network = NETWORK._replace(forward=forward_beside_another_thread)
    batches = cuda.Cuda("float32", "cpu").batches(network, [4])
    found.clear()
    x, number = records(8, 3)
    doubled, above = np.zeros((8, 3), np.float32), np.zeros(8, np.int32)

    def work() -> None:
        batches.run([x, number], [doubled, above])

    batches.attempt(work) if attempted else work()
    assert found == [False, False] and np.array_equal(doubled, 2 * x)


@pytest.mark.parametrize("name", BACKENDS)
@pytest.mark.parametrize("streamed", [False, True])
def test_batches_hold_their_model_while_they_run(name, streamed):
    """Another thread may delete it between two launches: here the first one does."""
    models, freed = [Model()], []
    own = weakref.ref(models[0])

    def dropping(*arrays):
        models.clear()
        freed.append(own() is None)
        forward(*arrays)

    batches = BACKENDS[name].batches(NETWORK._replace(forward=dropping, owner=own), [8], 2)
    x, number = records(20, {"cpu": 8, "cuda": 3}[name])
    doubled, above = np.zeros((20, 3), np.float32), np.zeros(20, np.int32)
    if streamed:
        parts = [(x[i : i + 8], number[i : i + 8]) for i in (0, 8, 16)]
        found = [above.copy() for _, above in batches.stream(parts)]
        assert np.array_equal(np.concatenate(found), number + 1)
    else:
        batches.run([x, number], [doubled, above])
        assert np.array_equal(above, number + 1) and np.array_equal(doubled, 2 * x[:, :3])
    assert freed == [False] * 3 and own() is None


@pytest.mark.parametrize("sizes", [(128, 1024, 8192), (128,), (128, 1024)])
@pytest.mark.parametrize("n", [0, 1, 127, 129, 1000, 1024, 1025, 7168, 8191, 8193, 20000])
def test_pieces_hold_every_record_once(n, sizes):
    pieces = list(cuda.pieces(5, 5 + n, sizes))
    assert [start for start, _, _ in pieces] == [5 + sum(count for *_, count in pieces[:i]) for i in range(len(pieces))]
    assert sum(count for *_, count in pieces) == n
    assert all(1 <= count <= size in sizes for _, size, count in pieces)
    assert len(pieces) <= 1 or n > max(count for *_, count in pieces)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_pipeline_runs_each_step(name):
    backend = BACKENDS[name]
    pipeline, x, out = backend.pipeline(3), np.arange(10, dtype=np.float32), np.zeros(10, np.float32)
    slots = [backend.empty((2,)) for _ in range(3)]
    pipeline.wait()
    for number, first in enumerate(range(0, 10, 2)):
        rows, array = slice(first, first + 2), slots[number % 3]

        def double(array=array):
            array[:] = 2 * array

        pipeline.queue(Step([(x[rows], array)], double, [(array, out[rows])]), number % 3)
    pipeline.wait()
    assert np.array_equal(out, 2 * x)


@pytest.mark.parametrize("name", BACKENDS)
def test_a_workspace_reuses_its_buffers(name):
    work = BACKENDS[name].workspace(wide=100)
    first = work.take("wide", 2, 3)
    first[:] = 1
    again = work.take("wide", 3, 2)
    assert again.shape == (3, 2) and (again == 1).all()
    assert len(work.buffers["wide"]) == 400 and len(work.take("narrow", 1, 5, "uint8")[0]) == 5
    work.take("wide", 20, 20)
    assert len(work.buffers["wide"]) == 1600


def test_another_class_is_refused():
    with pytest.raises(UsageError, match="dtype is 'float64'; on a GPU it must be one of float32, bfloat16"):
        cuda.Cuda("float64", "cpu")
