"""Random numbers that depend only on the seed, the record's id, the completion and the step."""

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np

ROUNDS = 10
MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))  # golden ratio and sqrt(3) - 1: each round adds them to the key
LOW, WORD = np.uint64(0xFFFFFFFF), np.uint64(32)
BLOCK = 1 << 14  # numbers that are computed at a time: their words fit in an L2 cache


def philox(counters: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Philox4x32-10: counters uint32 (n, 4) and keys uint32 (n, 2) -> random words uint32 (n, 4).

    Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
    """
    words = _philox(*counters.astype(np.uint64).T, *keys.astype(np.uint64).T)
    return np.stack(words, axis=1).astype(np.uint32)


def _philox(
    c0: np.ndarray, c1: np.ndarray, c2: np.ndarray, c3: np.ndarray, k0: np.ndarray, k1: np.ndarray
) -> tuple[np.ndarray, ...]:
    """The four words, uint64. Arguments are uint64 below 2^32, of any shapes that broadcast."""
    for _ in range(ROUNDS):
        a, b = MULTIPLIERS[0] * c0, MULTIPLIERS[1] * c2
        c0, c1, c2, c3 = (b >> WORD) ^ (c1 ^ k0), b & LOW, (a >> WORD) ^ (c3 ^ k1), a & LOW
        k0, k1 = (k0 + WEYL[0]) & LOW, (k1 + WEYL[1]) & LOW
    return c0, c1, c2, c3


def stream(seed: int, record: str | int, index: int) -> np.ndarray:
    """The identifier of a completion's random numbers, uint32 (4,): 128 bits of BLAKE2b of everything that identifies
    it.

    record: its id; 7 and "7" differ. index: which of the n completions.
    """
    return streams_of(seed, [record], [index])[0]


def streams_of(seed: int, records: Iterable[str | int], indices: Sequence[int]) -> np.ndarray:
    """The streams of each of `indices` of each record, uint32 (records * indices, 4)."""
    digests = []
    for record in records:
        end = f"{'text' if isinstance(record, str) else 'int'}/{record}"
        for index in indices:
            name = f"{seed}/{index}/{end}".encode(errors="surrogatepass")
            digests.append(hashlib.blake2b(name, digest_size=16).digest())
    return np.frombuffer(b"".join(digests), "<u4").astype(np.uint32).reshape(-1, 4)


def uniforms(streams: np.ndarray, steps: Sequence[int] | np.ndarray) -> np.ndarray:
    """The numbers of streams uint32 (n, 4) at steps (n,) or (lines, n), float64 of that shape in (0, 1), multiples of
    2**-53.

    A stream's first two words are the key and its others the upper half of the counter, whose lower half is the step.
    """
    steps = np.asarray(steps, np.uint64)
    k0, k1, c2, c3 = np.asarray(streams, np.uint32).astype(np.uint64).T
    lines, drawn = np.atleast_2d(steps), np.empty(steps.shape)
    height = max(1, BLOCK // max(1, lines.shape[1]))
    for first in range(0, len(lines), height):
        some = lines[first : first + height]
        high, low, *_ = _philox(some & LOW, some >> WORD, c2, c3, k0, k1)
        bits = (high << np.uint64(20)) | (low >> np.uint64(12))  # 52 bits: with 53, + 0.5 would round
        np.atleast_2d(drawn)[first : first + height] = (bits.astype(np.float64) + 0.5) * 2.0**-52
    return drawn


def uniform(seed: int, record: str | int, index: int, step: int) -> float:
    """One number in (0, 1), which depends only on this seed, record id, completion and token."""
    return float(uniforms(stream(seed, record, index)[None], [step])[0])
