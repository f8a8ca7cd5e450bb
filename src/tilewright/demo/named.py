"""The demo's first half: the models that come with the package, and a filtered volume."""

from __future__ import annotations

import re
import time
from bisect import bisect_left
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.errors import UsageError
from tilewright.formats.atomic import AtomicFile

if TYPE_CHECKING:
    from tilewright.demo import Clock, Say

SEED = 1
NEW_TOKENS = 96
FACES = (3, 8)  # rows and columns of the grid
VOLUME, KERNEL = 128, "gaussian:2"
REVIEWS = (  # written for the demo: critic was not trained on them
    ("positive", "A warm, funny and beautifully acted film that stays with you for days."),
    ("negative", "The plot makes no sense and the jokes fall flat."),
    ("positive", "One of the smartest thrillers in years, told with wit and real feeling."),
    ("negative", "Two dull hours of noise, without a single idea of its own."),
    ("positive", "The young lead is a wonder, and the ending is quietly moving."),
    ("negative", "It wants to be shocking and ends up merely boring."),
    ("positive", "An inventive, generous comedy with heart."),
    ("positive", "I laughed until I cried."),
)


def shipped(name: str) -> Any:
    """The package's own model of that name, whatever the current directory contains."""
    from tilewright.runtime.load import load
    from tilewright.runtime.named_models import FOLDER

    return load(FOLDER / name)


def poet_for(prompt: str) -> Any:
    """The poet. Raises UsageError for a prompt that it cannot continue. The message counts words, not tokens."""
    poet, example = shipped("poet"), 'as in --prompt "My lord,"'
    if not prompt.strip():
        raise UsageError("the prompt is empty", remedy=f"give some words, {example}")
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        what = f"the prompt is no valid text: its character {error.start + 1} is not UTF-8"
        raise UsageError(what, remedy=f"type it again, {example}") from error
    ends = [word.end() for word in re.finditer(r"\S+", prompt)]

    def is_too_long(end: int) -> bool:
        return len(poet.tokenizer.encode(prompt[:end])) >= poet.config.context

    if is_too_long(len(prompt)):
        fitting = bisect_left(ends, True, key=is_too_long)
        count = f"{len(ends):,} word{'s' if len(ends) > 1 else ''}"
        most = f"the first {fitting:,} of them fill" if fitting else "the first of them is longer than"
        raise UsageError(f"the prompt is too long: it has {count}, and {most} the poet's context",
                         remedy=f"give fewer words, {example}")  # fmt: skip
    return poet


def verse(say: Say, clock: Clock, poet: Any, prompt: str) -> None:
    """Print how poet continues the prompt."""
    from tilewright.generation.sampling import SamplingParams

    params = SamplingParams(max_tokens=NEW_TOKENS, temperature=0.6, top_p=0.95, seed=SEED)
    with clock.compiling():  # three tokens run every kernel: the prompt's, the first token's, a later token's
        list(poet.generate([prompt], SamplingParams(max_tokens=3, ignore_eos=True, seed=SEED)))
    start = time.perf_counter()
    found = next(iter(poet.generate([prompt], params))).outputs[0]
    seconds = time.perf_counter() - start
    lines = (prompt + found.text).splitlines()
    least = max(1, len(prompt.splitlines()))
    if found.finish_reason == "length" and len(lines) > least:
        lines.pop()  # it was cut in the middle
    while len(lines) > least and (not lines[-1].strip() or lines[-1].endswith(":")):
        lines.pop()  # the name of a speaker without a line
    say(f"\npoet continues a line ({len(found.token_ids)} tokens in {seconds:.2f} s)\n")
    for line in lines:
        say(f"    {line}".rstrip())


def reviews(say: Say, clock: Clock, path: Path) -> None:
    """Print how critic judges REVIEWS, which are written to `path`, one per line."""
    critic = shipped("critic")
    meant, texts = zip(*REVIEWS, strict=True)
    with clock.compiling():
        critic.classify(texts[:1])
    start = time.perf_counter()
    answers = critic.classify(texts)
    seconds = time.perf_counter() - start
    right = sum(answer["label"] == label for answer, label in zip(answers, meant, strict=True))
    say(f"\ncritic reads {len(REVIEWS)} reviews, {right} of them correctly ({seconds:.3f} s)\n")
    for text, answer in zip(texts, answers, strict=True):
        say(f"    {answer['label']}  {answer['score']:.2f}  {text}")
    with AtomicFile(path) as file:
        file.write("".join(f"{text}\n" for text in texts).encode())


def faces(say: Say, clock: Clock, path: Path) -> None:
    """Draw a grid of faces with portraits."""
    from tilewright.formats.images import pixels
    from tilewright.models.noise import noise

    portraits, (rows, columns) = shipped("portraits"), FACES
    z = noise(SEED, 0, rows * columns, portraits.config.z_size)
    with clock.compiling():
        portraits.generate(z)
    start = time.perf_counter()
    images = portraits.generate(z)  # (n, H, W, 3)
    seconds = time.perf_counter() - start
    _, H, W, channels = images.shape
    grid = pixels(images).reshape(rows, columns, H, W, channels).swapaxes(1, 2)
    _write_picture(path, grid.reshape(rows * H, columns * W, channels))
    say(f"\nportraits draws {len(images)} faces ({seconds:.3f} s): {path}")


def volume(say: Say, clock: Clock, path: Path) -> None:
    """Smooth a noisy volume, and draw a plane of both, side by side."""
    import numpy as np

    from tilewright.ops.conv3d import conv3d
    from tilewright.runtime.verbs.convolve.kernels import kernel_of, prepared_float32

    noisy, kernel = shells(VOLUME), prepared_float32(kernel_of(KERNEL))
    with clock.compiling():
        conv3d(noisy, kernel)
    start = time.perf_counter()
    smooth = conv3d(noisy, kernel)
    seconds = time.perf_counter() - start
    pair = np.hstack([array[VOLUME // 2] for array in (noisy, smooth)])  # (VOLUME, 2 * VOLUME)
    _write_picture(path, (255 * np.clip(pair, 0, 1)).astype(np.uint8)[:, :, None])
    say(f"a volume of {VOLUME}^3 voxels smoothed by {KERNEL} ({seconds:.3f} s), a plane before and after: {path}")


def shells(size: int) -> Any:
    """float32 (size, size, size), about 0 to 1: waves around a point, under noise."""
    import numpy as np

    z, y, x = np.ogrid[-1 : 1 : size * 1j, -1 : 1 : size * 1j, -1 : 1 : size * 1j]
    waves = 0.5 + 0.3 * np.cos(24 * np.sqrt((x - 0.3) ** 2 + (y + 0.2) ** 2 + z**2))
    return (waves + 0.25 * np.random.default_rng(SEED).standard_normal(waves.shape)).astype(np.float32)


def _write_picture(path: Path, canvas: Any) -> None:
    """Write uint8 (height, width, 1 or 3) as PNG."""
    from tilewright.formats.images import write_png

    with AtomicFile(path) as file:
        write_png(file, canvas)
