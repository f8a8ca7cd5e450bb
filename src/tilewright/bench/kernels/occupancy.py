"""How many threads of a kernel can be resident on a multiprocessor of a GPU at once."""

from typing import Any, NamedTuple

REGISTER_UNIT = 256  # warps get registers in multiples of this number
REGISTERS = 65536  # of a multiprocessor, from compute capability 5.0 on
SCHEDULERS = 4  # of a multiprocessor
RESERVED = 1024  # bytes of shared memory that the system reserves per block, from compute capability 8.0 on
SHARED_UNIT = 128  # blocks get shared memory in multiples of this number of bytes
BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24}  # most blocks per multiprocessor; others have 32


class Limits(NamedTuple):
    """The limits of one multiprocessor: threads, registers, bytes of shared memory, blocks; threads per warp; bytes of
    shared memory reserved per block."""

    threads: int
    registers: int
    shared: int
    blocks: int
    warp: int = 32
    reserved: int = RESERVED


class Block(NamedTuple):
    """One block of threads: its number of threads, registers per thread, bytes of shared memory."""

    threads: int
    registers: int
    shared: int


def limits(device: Any) -> Limits:
    """The limits of a device, from its properties in torch."""
    capability = device.major, device.minor
    return Limits(
        device.max_threads_per_multi_processor,
        REGISTERS,
        device.shared_memory_per_multiprocessor,
        BLOCKS.get(capability, 32),
        reserved=RESERVED if capability >= (8, 0) else 0,
    )


def occupancy(block: Block, limit: Limits) -> float:
    """Resident threads divided by the maximum of a multiprocessor, 0 to 1. Source: NVIDIA's occupancy calculator."""
    warps = -(-block.threads // limit.warp)
    a_warp = -(-max(block.registers, 1) * limit.warp // REGISTER_UNIT) * REGISTER_UNIT
    shared = -(-(block.shared + limit.reserved) // SHARED_UNIT) * SHARED_UNIT
    # each of the four schedulers has a quarter of the registers
    by_registers = limit.registers // SCHEDULERS // a_warp * SCHEDULERS // warps
    by_shared = limit.shared // shared if shared else limit.blocks
    blocks = min(limit.blocks, limit.threads // (warps * limit.warp), by_registers, by_shared)
    return blocks * warps * limit.warp / limit.threads
