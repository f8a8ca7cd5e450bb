"""The course's volumes and kernels: C's rand() without srand() fills them, inputs first, then the kernel."""

from itertools import islice

import numpy as np

RAND_MAX = 2**31 - 1
CASES = {  # number: (volume's sizes, kernel's size, are all numbers one?)
    1: ((64, 64, 64), 3, True),
    2: ((64, 64, 64), 3, False),
    3: ((128, 128, 128), 5, False),
    4: ((32, 64, 64), 5, False),
    5: ((32, 64, 32), 3, False),
}
TOLERANCE = 1e-4  # absolute or relative, as the course checks


def rand(seed: int = 1):
    """glibc's rand(): the additive generator TYPE_3, r[i] = r[i - 3] + r[i - 31] modulo 2**32, without the last bit."""
    state = [seed]
    for _ in range(30):
        state.append(16807 * state[-1] % RAND_MAX)
    state += state[:3]
    at = len(state)
    while True:
        state.append((state[at - 3] + state[at - 31]) & 0xFFFFFFFF)
        if at >= 344:  # the first 310 are thrown away
            yield state[at] >> 1
        at += 1


def course_case(number: int) -> tuple[np.ndarray, np.ndarray]:
    """(volume, kernel) of one of the five cases, float32."""
    sizes, K, ones = CASES[number]
    if ones:
        return np.ones(sizes, np.float32), np.ones((K, K, K), np.float32)
    count = int(np.prod(sizes))
    drawn = np.array(list(islice(rand(), count + K**3)), np.float32) / np.float32(RAND_MAX)
    return drawn[:count].reshape(sizes), drawn[count:].reshape(K, K, K)


def text(array: np.ndarray, *header: int) -> str:
    """The one line of a course file: "D H W " of a volume, or the header given ("K " of a kernel), then "%f "."""
    return "".join(f"{n} " for n in header or array.shape) + "".join(
        f"{value:.6f} " for value in array.ravel().tolist()
    )
