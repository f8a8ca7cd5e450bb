"""Random numbers that depend only on the seed, the record's id, the completion and the step."""

import hashlib
from collections.abc import Sequence

import numpy as np

ROUNDS = 10
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))  # golden ratio and sqrt(3) - 1: each round adds them to the key
LOW, WORD = np.uint64(0xFFFFFFFF), np.uint64(32)


def philox(counters: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Philox4x32-10: counters uint32 (n, 4) and keys uint32 (n, 2) -> random words uint32 (n, 4).

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    c0, c1, c2, c3 = counters.astype(np.uint64).T
    k0, k1 = keys.astype(np.uint64).T
    for _ in range(ROUNDS):
        a, b = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (b >> WORD) ^ c1 ^ k0, b & LOW, (a >> WORD) ^ c3 ^ k1, a & LOW
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return np.stack([c0, c1, c2, c3], axis=1).astype(np.uint32)


def stream(seed: int, record: str | int, index: int) -> np.ndarray:
    """The identifier of a completion's random numbers, uint32 (4,): 128 bits of BLAKE2b of everything that identifies
    it.

    record: its id; 7 and "7" differ. index: which of the n completions.
    """
    name = f"{seed}/{index}/{'text' if isinstance(record, str) else 'int'}/{record}".encode(errors="surrogatepass")
    return np.frombuffer(hashlib.blake2b(name, digest_size=16).digest(), "<u4").astype(np.uint32)


def uniforms(streams: np.ndarray, steps: Sequence[int] | np.ndarray) -> np.ndarray:
    """The numbers of streams uint32 (n, 4) at steps (n,), float64 (n,) in (0, 1), multiples of 2**-53.

    A stream's first two words are the key and its others the upper half of the counter, whose lower half is the step.
    """
    streams, steps = np.asarray(streams, np.uint32), np.asarray(steps, np.uint64)
    counters = np.column_stack([steps & LOW, steps >> WORD, streams[:, 2:]]).astype(np.uint32)
    words = philox(counters, streams[:, :2]).astype(np.uint64)
    bits = (words[:, 0] << np.uint64(20)) | (words[:, 1] >> np.uint64(12))  # 52 bits: with 53, + 0.5 would round
    return (bits.astype(np.float64) + 0.5) * 2.0**-52


def uniform(seed: int, record: str | int, index: int, step: int) -> float:
    """One number in (0, 1), which depends only on this seed, record id, completion and token."""
    return float(uniforms(stream(seed, record, index)[None], [step])[0])
