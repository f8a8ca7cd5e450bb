"""`make demo`: sentiment, text, images and a filtered volume, with models made from a seed, checked and timed."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tilewright.errors import Cancelled, Interrupted

COURSE = Path("../shared/data/course/sentiment_inputs.bin")
SAMPLE = Path(__file__).parent / "data" / "sentences.bin"  # the first 1,024 of the course's sentences
PROMPTS = Path("../shared/data/course/gpt2_input.bin")
CHECKED = 64
GPT2: dict[str, Any] = {"n_layer": 4, "n_embd": 256, "n_head": 4}  # an eighth of the smallest published one
GENERATED, NEW_TOKENS, CHECKED_PROMPTS = 512, 8, 8
DRAWN, CHECKED_IMAGES = 64, 2
VOLUME, CHECKED_PLANES, KERNEL = 128, 4, "gaussian:2"
PICTURES = Path("demo")  # where the images and a slice of the volume stay


def sentences(path: str | None = None) -> tuple[Any, str]:
    """(int32 ids (n, 16), where they come from): the given file, the course's, or the shipped sample."""
    import numpy as np

    from tilewright.formats.course import TokenFile
    from tilewright.models.textcnn import TextCNNConfig

    chosen = Path(path) if path else COURSE if COURSE.exists() else SAMPLE
    config = TextCNNConfig()
    reader = TokenFile(str(chosen), length=config.sequence_length, vocabulary=config.vocab_size)
    return np.concatenate([batch.tokens for batch in reader.batches(1 << 16)]), str(chosen)


def run(say: Callable[[str], None]) -> bool:
    """Make models, run each job, check, and say how fast; True if all checks passed. Two pictures stay in PICTURES.

    Raises Cancelled when it is stopped.
    """
    from tilewright.hardware import cpu
    from tilewright.runtime.signals import stoppable

    ids, source = sentences()
    say(f"tilewright on {cpu().name}, {cpu().cores} cores, vectors of {cpu().lanes} float32")
    try:
        with stoppable(), tempfile.TemporaryDirectory(prefix="tilewright-demo-") as folder:
            report, logits, error = _classified(ids, source, folder, say)
            written, gap = _generated(folder, say)
            drawn, difference = _drawn(folder, say)
            filtered, deviation = _convolved(folder, say)
            _keep_pictures(folder)
    except Interrupted as stop:
        raise Cancelled("the demo was stopped: nothing is left of it") from stop
    rate, total = report.records_per_second, report.seconds["total"]
    say(f"\n{len(ids):,} sentences in {report.seconds['run']:.2f} s: {rate:,.0f} a second (whole run {total:.1f} s,")
    say(f"of which {report.seconds['compile']:.1f} s compiling kernels, the first time only)")
    positive = int((logits[:, 1] > logits[:, 0]).sum())
    say(f"{positive:,} positive, {len(ids) - positive:,} negative (the weights are random)")
    passed = error <= 1e-4
    verdict = "PASS" if passed else "FAIL"
    say(f"check of {CHECKED} sentences against float64: largest error {error:.1e}, 1e-4 is allowed: {verdict}")
    say(f"\n{written.tokens:,} new tokens in {written.seconds['run']:.2f} s: {written.tokens_per_second:,.0f} a second")
    close = gap <= 1e-4
    verdict = "PASS" if close else "FAIL"
    say(f"check of {CHECKED_PROMPTS} prompts against float64: tokens are at most {gap:.1e} below the best: {verdict}")
    told = _told("images", drawn, difference, "images.png"), _told("voxels", filtered, deviation, "volume.png")
    for text, _ in told:
        say(text)
    say("\nNext: tilewright ladder matmul | tilewright generate --help | tilewright doctor")
    return passed and close and all(good for _, good in told)


def _classified(ids: Any, source: str, folder: str, say: Callable[[str], None]) -> tuple[Any, Any, float]:
    """(report, float32 logits (n, 2), the largest error of CHECKED of them against float64)."""
    import numpy as np

    from tilewright.bench.sentiment import reference_logits
    from tilewright.formats.validate import largest_error
    from tilewright.runtime.job import ClassifyJob, classify
    from tilewright.runtime.load import read_weights
    from tilewright.runtime.models import init_textcnn

    model, given, output = (os.path.join(folder, name) for name in ("params.bin", "inputs.bin", "outputs.bin"))
    ids.tofile(given)
    start = time.perf_counter()
    init_textcnn(model, 1)
    say(f"\nA TextCNN at the course's full size, 801 MB, from seed 1: made in {time.perf_counter() - start:.1f} s")
    say(f"{len(ids):,} real sentences of 16 words: {source}\n")
    report = classify(ClassifyJob(model=model, input=given, output=output), lambda line: say(f"  {line}"))
    logits = np.fromfile(output, np.float32).reshape(-1, 2)
    config, weights = read_weights(model)
    some = np.linspace(0, len(ids) - 1, CHECKED).astype(int)
    return report, logits, largest_error(logits[some], reference_logits(config, weights, ids[some]))


def _generated(folder: str, say: Callable[[str], None]) -> tuple[Any, float]:
    """(report, how far a chosen token is below the best float64 logit, at most)."""
    import numpy as np

    from tilewright.bench.gpt2 import random_prompts, reference_logits
    from tilewright.models.gpt2 import GPT2Config
    from tilewright.runtime.generate import GenerateJob, generate
    from tilewright.runtime.load import read_weights
    from tilewright.runtime.models import init_gpt2

    model, given, output = (os.path.join(folder, name) for name in ("gpt2", "prompts.bin", "tokens.bin"))
    real = PROMPTS.exists()
    prompts = np.fromfile(PROMPTS, np.int32).reshape(-1, 16) if real else random_prompts(GPT2Config(), GENERATED)
    prompts = np.ascontiguousarray(prompts[:GENERATED], np.int32)
    prompts.tofile(given)
    init_gpt2(model, 1, **GPT2)
    sizes = ", ".join(f"{name[2:]} {size}" for name, size in GPT2.items())
    say(
        f"\nA GPT-2 with random weights ({sizes}), {len(prompts)} {'real' if real else 'random'} prompts of 16 tokens\n"
    )
    report = generate(GenerateJob(model=model, input=given, output=output), lambda line: say(f"  {line}"))
    tokens = np.fromfile(output, np.int32).reshape(-1, NEW_TOKENS)[:CHECKED_PROMPTS]
    config, weights = read_weights(model)
    texts = np.hstack([prompts[:CHECKED_PROMPTS], tokens])[:, :-1]
    exact = reference_logits(config, weights, texts, NEW_TOKENS)
    chosen = np.take_along_axis(exact, tokens[:, :, None].astype(np.int64), axis=2)[..., 0]
    return report, float((exact.max(axis=2) - chosen).max())


def _drawn(folder: str, say: Callable[[str], None]) -> tuple[Any, float]:
    """(report, the largest error of CHECKED_IMAGES against float64). A grid is left in the folder."""
    import numpy as np

    from tilewright.bench.dcgan_reference import reference_images
    from tilewright.models.dcgan import noise
    from tilewright.runtime.draw import DrawJob, draw
    from tilewright.runtime.load import read_weights

    model, output, image = (os.path.join(folder, name) for name in ("dcgan", "images.npy", "images.png"))
    _smooth_dcgan(model)
    say(f"\nA DCGAN at the course's size with random but smooth weights, {DRAWN} images of random noise\n")
    job = DrawJob(model=model, input=None, output=output, image=image, count=DRAWN, seed=1)
    report = draw(job, lambda line: say(f"  {line}"))
    config, weights = read_weights(model)
    exact = reference_images(config, weights, noise(1, 0, CHECKED_IMAGES, config.z_size))
    return report, float(np.abs(np.load(output, mmap_mode="r")[:CHECKED_IMAGES] - exact).max())


def _smooth_dcgan(path: str) -> None:
    """A generator whose kernels are all one bell, each times a random number: its images are patches of colour, where
    those of independent taps would be noise."""
    import msgspec
    import numpy as np

    from tilewright.formats.blocks import blocks_of
    from tilewright.formats.models import write_model
    from tilewright.runtime.load import read_weights
    from tilewright.runtime.models import init_dcgan

    init_dcgan(f"{path}.bin", 1)
    config, weights = read_weights(f"{path}.bin")
    bell = np.array([1, 4, 6, 4, 1], np.float32) / 8  # taps of both parities sum to 1: sizes of numbers stay
    for name, kernel in weights.items():
        if kernel.ndim == 4:
            weights[name] = np.multiply.outer(np.outer(bell, bell), kernel.sum(axis=(0, 1)) / 2)
    tensors = [(name, array.shape, blocks_of(array)) for name, array in weights.items()]
    write_model(path, msgspec.to_builtins(config, str_keys=True), tensors)


def _convolved(folder: str, say: Callable[[str], None]) -> tuple[Any, float]:
    """(report, the largest error of CHECKED_PLANES against float64). Their first is left in the folder, with what it
    was before beside it."""
    import numpy as np

    from tilewright.formats.images import write_png
    from tilewright.ops.conv3d.reference import conv3d
    from tilewright.runtime.convolve import ConvolveJob, convolve
    from tilewright.runtime.kernels import kernel_of

    given, output = (os.path.join(folder, name) for name in ("volume.npy", "filtered.npy"))
    volume = _shells()
    np.save(given, volume)
    say(f"\nA volume of {VOLUME}^3 noisy voxels, smoothed by {KERNEL}\n")
    report = convolve(ConvolveJob(input=given, kernel=KERNEL, output=output), lambda line: say(f"  {line}"))
    filtered, kernel = np.load(output), kernel_of(KERNEL)
    middle, (before, after) = VOLUME // 2, (halo[0] for halo in kernel.halo)
    around = volume[middle - before : middle + CHECKED_PLANES + after]
    weights = kernel.weights if kernel.lines is None else kernel.lines
    exact = conv3d(around, weights)[before : before + CHECKED_PLANES]
    pair = np.hstack([array[middle] for array in (volume, filtered)])
    with open(os.path.join(folder, "volume.png"), "wb") as file:
        write_png(file, (255 * np.clip(pair, 0, 1)).astype(np.uint8)[:, :, None])
    return report, float(np.abs(filtered[middle : middle + CHECKED_PLANES] - exact).max())


def _shells() -> Any:
    """float32 (VOLUME, VOLUME, VOLUME), about 0 to 1: waves around a point, under noise."""
    import numpy as np

    z, y, x = np.ogrid[-1 : 1 : VOLUME * 1j, -1 : 1 : VOLUME * 1j, -1 : 1 : VOLUME * 1j]
    waves = 0.5 + 0.3 * np.cos(24 * np.sqrt((x - 0.3) ** 2 + (y + 0.2) ** 2 + z**2))
    noise = np.random.default_rng(1).standard_normal(waves.shape, np.float32)
    return (waves + 0.25 * noise).astype(np.float32)


def _keep_pictures(folder: str) -> None:
    """Moves them to where they stay."""
    import shutil

    PICTURES.mkdir(exist_ok=True)
    for name in ("images.png", "volume.png"):
        shutil.copyfile(os.path.join(folder, name), PICTURES / name)


def _told(unit: str, report: Any, error: float, name: str) -> tuple[str, bool]:
    """(how fast, how right and where to look; whether the check passed)."""
    verdict = "PASS" if error <= 1e-4 else "FAIL"
    speed = f"{report.records:,} {unit} in {report.seconds['run']:.3f} s: {report.records_per_second:,.0f} a second"
    check = f"check against float64: largest error {error:.1e}, 1e-4 is allowed: {verdict}"
    return f"\n{speed}\n{check}\nto look at: {PICTURES / name}", error <= 1e-4
