"""A GPU's limits, measured: copies, multiply-adds in registers, the vendor's largest products, the link to the host.

The CPU's are in `tilewright.bench.roofs`.
"""

from dataclasses import asdict, dataclass
from functools import cache

from tilewright.bench.device import interleave, torch_on_a_gpu
from tilewright.ops.matmul.problem import DEVICE_DTYPES, Case

SIZE = 8192  # of a square product
COPIED = 2 << 30  # bytes: far beyond L2
LINKED = 256 << 20  # bytes over the host link
RUNS = 5


@dataclass(frozen=True)
class Roofs:
    """What this GPU was measured to do.

    copy_gbytes_s counts bytes read and written. gflops: by accuracy class; float32's is that of its multiply-adds,
    which what runs on matrix units instead may pass. link_gbytes_s: pinned memory to the GPU, from it, and pageable
    memory to it.
    """

    copy_gbytes_s: float
    gflops: dict[str, float]
    link_gbytes_s: dict[str, float]

    def seconds(self, flops: float, nbytes: float, dtype: str) -> float:
        """The least time for that many operations and bytes."""
        return max(flops / self.gflops[dtype], nbytes / self.copy_gbytes_s) / 1e9

    def report(self) -> dict:
        """Ready for JSON."""
        return asdict(self)


@cache
def roofs() -> Roofs:
    """Measure them: some seconds, once a process. Raises ResourceError without a GPU."""
    torch = torch_on_a_gpu()
    source = torch.randn(COPIED // 4, device="cuda")
    target = torch.empty_like(source)
    calls = {"copy": lambda: target.copy_(source)} | _links(torch) | _products(torch)
    adds, flops = _multiply_adds(torch)
    best = {name: min(timing.rounds) for name, timing in interleave(calls | {"adds": adds}, runs=RUNS).items()}
    rates = {dtype: 2 * SIZE**3 / best[dtype] / 1e9 for dtype in DEVICE_DTYPES}
    rates["float32"] = max(rates["float32"], flops / best["adds"] / 1e9)
    links = {name: LINKED / best[name] / 1e9 for name in ("to the GPU", "from the GPU", "pageable to the GPU")}
    return Roofs(2 * COPIED / best["copy"] / 1e9, rates, links)


def _products(torch) -> dict:
    """The vendor's products of each class."""
    from tilewright.bench.gpu.matmul import vendor

    operands = {name: torch.randn(SIZE, SIZE, device="cuda") for name in "ab"}
    return {dtype: vendor(Case(SIZE, SIZE, SIZE, dtype), operands) for dtype in DEVICE_DTYPES}


def _links(torch) -> dict:
    """Copies over the host link."""
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
    from tilewright.bench.multiply_adds import BLOCK, STEPS, multiply_adds

    block, steps = BLOCK.value, STEPS.value
    programs = 64 * torch.cuda.get_device_properties(0).multi_processor_count
    numbers = torch.rand(programs * block, device="cuda")
    return lambda: multiply_adds[(programs,)](numbers, 0.999, 1e-3), 2 * programs * block * steps
