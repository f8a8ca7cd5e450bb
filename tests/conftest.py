"""Shared by all tests: reproducible random numbers, and GPU kernels run as Python unless TILEWRIGHT_GPU=1."""

import gc
import os
import signal
import sys
import zlib
from contextlib import nullcontext, suppress

if os.environ.get("TILEWRIGHT_GPU") != "1":  # before numba and triton are imported, which read these once
    os.environ |= {"NUMBA_ENABLE_CUDASIM": "1", "TRITON_INTERPRET": "1"}
# without saved bytecode, a quarter of the CPU time of tests that start processes is compiling our modules again
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

import numpy as np
import pytest

MANY_FILES = 200
ASKING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)  # to stop
# Files that take longest. xdist's workers take files from one queue, so they end together if these are first.
# test_every_rung.py compiles most kernels for CPUs. Meanwhile the other two workers run the files up to the gap, which
# need none of them or few: two processes that need the same kernel at the same time would both compile it. The first
# three after the gap compile the most kernels of their own.
FIRST = (
    "ops/test_every_rung.py", "runtime/jobs/test_local.py", "ops/test_sample_gpu.py", "runtime/jobs/test_mpi.py",
    "ops/test_matmul_gpu.py", "simd/test_cache.py", "runtime/convert/test_state_dict.py", "ops/test_rows_gpu.py",
    "formats/test_zarr_chunks.py", "runtime/jobs/test_run.py", "ops/test_swept.py", "formats/test_jsonl.py",
    "test_layout.py", "ops/test_sentiment_gpu.py", "bench/test_climb_gpu.py", "formats/test_safetensors.py",
    "formats/test_zarr_volumes.py", "ops/test_conv3d_gpu.py", "formats/test_prompts.py",
    "formats/test_tokenizer_patterns.py", "formats/test_lines.py", "formats/test_hostile_tokenizers.py",
    "runtime/jobs/test_directory.py", "runtime/jobs/test_lease.py", "ops/test_conv_transpose2d_gpu.py",
    "ops/test_attention_gpu.py", "ops/test_matmul_argmax_gpu.py", "test_messages.py", "ops/test_logprob_gpu.py",
    "test_types.py",

    "ops/test_matmul.py", "runtime/test_random_models.py", "generation/test_engine.py", "docs/test_tutorials.py",
    "test_mutants.py", "runtime/jobs/test_disks_and_races.py", "runtime/verbs/convolve/test_convolve.py",
    "runtime/verbs/test_shards.py", "generation/cuda/test_engine_gpu.py", "runtime/jobs/test_verbs_killed.py",
    "cli/test_plan.py", "bench/workloads/test_gpt2.py", "runtime/jobs/test_forged.py", "cli/test_names.py",
    "runtime/process/test_bus_errors.py", "runtime/verbs/generate/test_plan.py", "runtime/test_forced_rungs.py",
    "runtime/verbs/test_wrong_models.py", "runtime/jobs/test_unchanged.py", "runtime/verbs/generate/test_generate.py",
    "bench/job_ladders/test_run.py", "runtime/process/test_signals.py", "ops/test_conv_transpose2d.py",
    "runtime/verbs/embed/test_embed.py", "test_demo.py", "models/test_textcnn_gpu.py",
)  # fmt: skip


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Garbage is collected once, when all tests are: half a million objects are made, and nearly all of them stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


@pytest.fixture(scope="module")
def quick_interpreter():
    """Triton's interpreter without its repetitions, unless TILEWRIGHT_GPU=1."""
    from simulator import patched_once

    with patched_once() if os.environ.get("TILEWRIGHT_GPU") != "1" else nullcontext():
        yield


@pytest.fixture(scope="module")
def simulated_gpu(quick_interpreter):
    """Torch tensors on the CPU run the GPU's kernels as Python, unless TILEWRIGHT_GPU=1."""
    from simulator import in_turns
    from tilewright.ops.core.gpu.tensors import gpu_kernels_on_the_cpu

    if os.environ.get("TILEWRIGHT_GPU") == "1":
        yield
        return
    with gpu_kernels_on_the_cpu(), in_turns():
        yield


@pytest.fixture(scope="module", autouse=True)
def few_open_files():
    """What a test leaves open may be garbage that only a collection closes. Systems often allow 1,024 open files."""
    yield
    if os.path.isdir("/proc/self/fd") and len(os.listdir("/proc/self/fd")) > MANY_FILES:
        gc.collect()


@pytest.fixture
def rng(request) -> np.random.Generator:
    """A generator seeded by the test's own name: the same numbers in every run and order."""
    return np.random.default_rng(zlib.crc32(request.node.nodeid.encode()))


def pytest_configure(config):
    """However the tests were started: what `nohup`, `&` or `trap ''` of a shell leave ignored, and masks leave blocked,
    is inherited by every process that a test starts. A script of bash cannot even handle such a signal."""
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for number in ASKING:
        if signal.getsignal(number) == signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    config.option.loadscopereorder = (
        False  # xdist's workers take files in the order of FIRST, not of their tests' number
    )
    with suppress(ImportError):
        from hypothesis import settings

        settings.register_profile("long", max_examples=500)  # five times as many as by default
        if config.option.markexpr != "not long":
            settings.load_profile("long")


def pytest_collection_modifyitems(items):
    """The files of FIRST are run first, all others in the order of their names."""
    order = {f"tests/{name}": n for n, name in enumerate(FIRST)}
    items.sort(key=lambda item: order.get(item.nodeid.partition("::")[0], len(order)))


def pytest_collection_finish():
    """What collecting the tests has made stays: the garbage collector need not search it again and again."""
    gc.collect()
    remember_the_exempt()
    gc.freeze()


def remember_the_exempt():
    """`gc.get_freeze_count` visits all exempt objects: 900,000 here, for 0.1 s, and each job in this process calls it.
    From now on it does so once after each `gc.freeze` or `gc.unfreeze`."""
    count, known = gc.get_freeze_count, []

    def remembered() -> int:
        if not known:
            known.append(count())
        return known[0]

    def forgetting(change):
        def changed() -> None:
            known.clear()
            change()

        return changed

    gc.get_freeze_count = remembered
    gc.freeze, gc.unfreeze = forgetting(gc.freeze), forgetting(gc.unfreeze)


def pytest_sessionfinish():
    """Libraries whose objects are still there when Python ends report leaks."""
    gc.unfreeze()


@pytest.fixture(autouse=True)
def signals_stay():
    """A test leaves no signal ignored or blocked: the next ones would start processes that cannot be asked to stop."""
    before = unheard_signals()
    yield
    after = unheard_signals()
    assert after == before, f"this test leaves signals otherwise: {before} before, {after} after"


def unheard_signals():
    """Those of ASKING that this process ignores or blocks, in the main thread."""
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    return {number.name for number in ASKING if number in blocked or signal.getsignal(number) == signal.SIG_IGN}
