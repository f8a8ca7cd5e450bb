"""A GPU's limits, measured: copies, multiply-adds in registers, the vendor library's large products, copies from and to
the host."""

from functools import cache

from tilewright.bench.clocks.cuda import CudaClock, torch_on_a_gpu
from tilewright.bench.measure import interleave
from tilewright.bench.roofs.limits import Roofs
from tilewright.ops.matmul.problem import DEVICE_DTYPES, Case

SIZE = 8192  # rows and columns of a product
COPIED = 2 << 30  # bytes: much larger than the L2 cache
LINKED = 256 << 20  # bytes copied between host and GPU
RUNS = 5


@cache
def roofs() -> Roofs:
    """Measure the limits: some seconds, once per process. Raises ResourceError if there is no GPU.

    The float32 limit is the rate of multiply-adds in registers. A kernel that runs on matrix units may exceed it.
    """
    torch = torch_on_a_gpu()
    source = torch.randn(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    calls = {"copy": lambda: target.copy_(source)} | _links(torch) | _products(torch)
    adds, flops = _multiply_adds(torch)
    timings = interleave(calls | {"adds": adds}, CudaClock(), runs=RUNS)
    best = {name: min(timing.rounds) for name, timing in timings.items()}
    rates = {dtype: 2 * SIZE**3 / best[dtype] / 1e9 for dtype in DEVICE_DTYPES}
    rates["float32"] = max(rates["float32"], flops / best["adds"] / 1e9)
    links = {name: LINKED / best[name] / 1e9 for name in ("to the GPU", "from the GPU", "pageable to the GPU")}
    return Roofs(0, 2 * COPIED / best["copy"] / 1e9, rates, link_gbytes_s=links)


def _products(torch) -> dict:
    """The rate of the vendor library's products, for each accuracy class."""
    from tilewright.bench.peers.matmul import vendor

    operands = {name: torch.randn(SIZE, SIZE, device="cuda") for name in "ab"}
    return {dtype: vendor(Case(SIZE, SIZE, SIZE, dtype), operands) for dtype in DEVICE_DTYPES}


def _links(torch) -> dict:
    """The rates of copies between host and GPU."""
    there = torch.empty(LINKED, dtype=torch.uint8, device="cuda")
    pinned = torch.ones(LINKED, dtype=torch.uint8, pin_memory=True)
    pageable = torch.ones(LINKED, dtype=torch.uint8)
    return {
        "to the GPU": lambda: there.copy_(pinned, non_blocking=True),
        "from the GPU": lambda: pinned.copy_(there, non_blocking=True),
        "pageable to the GPU": lambda: there.copy_(pageable),
    }


def _multiply_adds(torch):
    """(call, operations): multiply-adds that stay in registers."""
    from tilewright.bench.roofs.multiply_adds import BLOCK, STEPS, multiply_adds

    block, steps = BLOCK.value, STEPS.value
    programs = 64 * torch.cuda.get_device_properties(0).multi_processor_count
    numbers = torch.rand(programs * block, device="cuda")
    return lambda: multiply_adds[(programs,)](numbers, 0.999, 1e-3), 2 * programs * block * steps
