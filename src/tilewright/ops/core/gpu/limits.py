"""What a block of threads may take on every NVIDIA GPU. Needs neither a GPU nor numba-cuda."""

from collections.abc import Mapping

from tilewright.errors import Refused

THREADS_LIMIT = 1024  # threads of a block
SHARED_LIMIT = 48 << 10  # bytes of shared memory that a block has unless it asks for more
# Threads of a block with one row. On an H100, 65,536 rows of 1,024 took softmax 0.29 ms with 64 threads and 0.41 with
# 256: each barrier waits for the last warp. 1,024 rows of 50,257 took 1.10 ms with 64 and 0.42 with 1,024.
SHORT_ROW, FEW_THREADS, MANY_THREADS = 4096, 64, 1024


def check_block(options: Mapping[str, int], *, threads: int = 1, shared: int = 0) -> None:
    """Raises Refused, naming `options`, if one is no positive integer or the block that they make does not fit a GPU.

    threads: of a block. shared: bytes of static shared memory.
    """
    given = ", ".join(f"{name}={value!r}" for name, value in options.items())
    if not all(isinstance(value, int) and value > 0 for value in options.values()):
        raise Refused(f"{given}: each must be a positive integer")
    if threads > THREADS_LIMIT:
        raise Refused(f"{given}: a block would have {threads:,} threads; the maximum is {THREADS_LIMIT:,}")
    if shared > SHARED_LIMIT:
        raise Refused(f"{given}: a block would use {shared:,} bytes of shared memory; the maximum is {SHARED_LIMIT:,}")


def threads_for_row(C: int) -> int:
    """Threads of a block that reduces one row of C elements. C alone decides, so a row's bits depend on C alone."""
    return FEW_THREADS if C <= SHORT_ROW else MANY_THREADS


def check_threads(block: int, *, power: bool = False) -> None:
    """Raises Refused unless a block can have this number of threads. power: it has to be a power of two."""
    check_block({"block": block}, threads=block)
    if power and block & (block - 1):
        raise Refused(f"block={block}: a tree over the threads of a block needs a power of two")
