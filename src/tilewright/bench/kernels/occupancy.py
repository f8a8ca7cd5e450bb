"""How many threads of a kernel a multiprocessor of a GPU holds at once."""

from typing import Any, NamedTuple

REGISTER_UNIT = 256  # registers are given to warps in units of so many
REGISTERS = 65536  # of a multiprocessor, from compute capability 5.0 on
SCHEDULERS = 4  # of a multiprocessor
RESERVED = 1024  # bytes of shared memory that the system takes of each block, from compute capability 8.0 on
SHARED_UNIT = 128  # bytes in which shared memory is given to blocks
BLOCKS = {(7, 5): 16, (8, 6): 16, (8, 7): 16, (8, 9): 24}  # most blocks per multiprocessor, where not 32


class Limits(NamedTuple):
    """Of one multiprocessor: threads, registers, bytes of shared memory, blocks; threads per warp; bytes of shared
    memory reserved per block."""

    threads: int
    registers: int
    shared: int
    blocks: int
    warp: int = 32
    reserved: int = RESERVED


class Block(NamedTuple):
    """Of one block of threads: its threads, registers per thread, bytes of shared memory."""

    threads: int
    registers: int
    shared: int


def limits(device: Any) -> Limits:
    """Of the device whose torch properties these are."""
    capability = device.major, device.minor
    return Limits(
        device.max_threads_per_multi_processor,
        REGISTERS,
        device.shared_memory_per_multiprocessor,
        BLOCKS.get(capability, 32),
        reserved=RESERVED if capability >= (8, 0) else 0,
    )


def occupancy(block: Block, limit: Limits) -> float:
    """Resident threads over the most that a multiprocessor can hold, 0 to 1. Source: NVIDIA's occupancy calculator."""
    warps = -(-block.threads // limit.warp)
    a_warp = -(-max(block.registers, 1) * limit.warp // REGISTER_UNIT) * REGISTER_UNIT
    shared = -(-(block.shared + limit.reserved) // SHARED_UNIT) * SHARED_UNIT
    # each of the four schedulers has a quarter of the registers
    by_registers = limit.registers // SCHEDULERS // a_warp * SCHEDULERS // warps
    by_shared = limit.shared // shared if shared else limit.blocks
    blocks = min(limit.blocks, limit.threads // (warps * limit.warp), by_registers, by_shared)
    return blocks * warps * limit.warp / limit.threads
