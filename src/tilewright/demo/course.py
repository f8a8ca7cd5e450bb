"""The demo's second half: four jobs of student reports at full size, with random weights, timed and checked.

"The course" is a university course on high-performance computing. tilewright began with five of its reports.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tilewright.demo import Clock, Say

SAMPLE = Path(__file__).parent.parent / "data" / "sentences.bin"  # the first 1,024 sentences of the course
SEED = 1
LIMIT = 1e-4  # the largest allowed error against float64
PROMPTS, NEW_TOKENS, IMAGES, VOLUME, TAPS = 128, 8, 500, 64, 3
CHECKED = {"sentences": 8, "prompts": 2, "images": 2}
MOST_BYTES = 1_800_000_000  # bytes that the TextCNN or the GPT-2 takes, most of them in its float64 check
RUNS = 20  # of a volume, which takes less than a millisecond; the fastest counts
ABOUT = """
Four jobs at full size in float32, with random weights and fewer records. They come from student reports of a
university course on high-performance computing. Each line compares this machine with the rate that a report
published for its own program on the GPUs of a cluster, and with the fastest published rate that is known"""


def course_file(name: str) -> Path:
    """One of the course's inputs, if it exists: in ./course, or in the folder that TILEWRIGHT_COURSE names."""
    return Path(os.environ.get("TILEWRIGHT_COURSE") or "course").expanduser() / name


def sentences(path: str | None = None) -> tuple[Any, str]:
    """(int32 ids (n, 16), where they come from): the given file, the course's file, or the sample in the package."""
    import numpy as np

    from tilewright.formats.course import TokenFile
    from tilewright.models.textcnn import TextCNNConfig

    course = course_file("sentiment_inputs.bin")
    chosen = Path(path) if path else course if course.exists() else SAMPLE
    config = TextCNNConfig()
    reader = TokenFile(str(chosen), length=config.sequence_length, vocabulary=config.vocab_size)
    return np.concatenate([batch.tokens for batch in reader.batches(1 << 16)]), str(chosen)


def sentiment(say: Say, clock: Clock) -> bool:
    """Classify sentences of the course with its TextCNN. The time includes the token table."""
    import numpy as np

    from tilewright.bench.workloads.sentiment import reference_logits
    from tilewright.formats.validate import largest_error
    from tilewright.models.initial import random_textcnn
    from tilewright.models.textcnn import TextCNN, TextCNNConfig

    ids, config = sentences(str(SAMPLE))[0], TextCNNConfig()
    say(f"\nsentiment: {len(ids):,} sentences of 16 words, a TextCNN of 200 M weights")
    if not _fits(say):
        return True
    weights = random_textcnn(config.tensor_shapes(), SEED)
    model = TextCNN(config, weights)
    with clock.compiling():
        model.logits(ids[:1])
    start = time.perf_counter()
    logits = model.logits(ids)
    rate = len(ids) / (time.perf_counter() - start)
    some = np.linspace(0, len(ids) - 1, CHECKED["sentences"]).astype(int)
    error = largest_error(logits[some], reference_logits(config, weights, ids[some]))
    _rates(say, f"{rate:,.0f} sentences/s", "12,545 on 16 GPUs", "37,060 on 16 GPUs")
    return _checked(say, f"{len(some)} sentences: largest error", error)


def text(say: Say, clock: Clock) -> bool:
    """Continue prompts with GPT-2, greedily."""
    import numpy as np

    from tilewright.bench.workloads.gpt2 import random_prompts, random_weights, reference_logits
    from tilewright.generation.sampling import SamplingParams
    from tilewright.models.gpt2 import GPT2, GPT2Config

    config = GPT2Config()
    say(f"\ntext: {PROMPTS} prompts of 16 tokens, {NEW_TOKENS} new ones each, a GPT-2 of 124 M weights")
    if not _fits(say):
        return True
    weights, prompts = random_weights(config, SEED), random_prompts(config, PROMPTS)
    model = GPT2(config, weights)
    params = SamplingParams(temperature=0, max_tokens=NEW_TOKENS, ignore_eos=True)
    with clock.compiling():
        list(model.generate(list(prompts[:1]), SamplingParams(temperature=0, max_tokens=2)))
    start = time.perf_counter()
    found = list(model.generate(list(prompts), params))
    rate = PROMPTS * NEW_TOKENS / (time.perf_counter() - start)
    some = CHECKED["prompts"]
    tokens = np.array([one.outputs[0].token_ids for one in found[:some]])  # (some, NEW_TOKENS)
    exact = reference_logits(config, weights, np.hstack([prompts[:some], tokens])[:, :-1], NEW_TOKENS)
    chosen = np.take_along_axis(exact, tokens[:, :, None], axis=2)[..., 0]
    _rates(say, f"{rate:,.0f} tokens/s", "439 on 16 GPUs", "65,000 on 16 GPUs")
    return _checked(
        say, f"{some} prompts: tokens below the best logit by at most", float((exact.max(2) - chosen).max())
    )


def images(say: Say, clock: Clock) -> bool:
    """Draw images from noise with the course's generator."""
    import numpy as np

    from tilewright.bench.workloads.dcgan import random_weights
    from tilewright.bench.workloads.dcgan_reference import reference_images
    from tilewright.models.dcgan import DCGAN, DCGANConfig
    from tilewright.models.noise import noise

    config = DCGANConfig()
    say(f"\nimages: {IMAGES} of 64 x 64 pixels, a DCGAN of 5 M weights")
    weights, z = random_weights(config, SEED), noise(SEED, 0, IMAGES, config.z_size)
    model = DCGAN(config, weights)
    with clock.compiling():
        model.generate(z[:1])
    start = time.perf_counter()
    drawn = model.generate(z)
    rate = IMAGES / (time.perf_counter() - start)
    some = CHECKED["images"]
    error = float(np.abs(drawn[:some] - reference_images(config, weights, z[:some])).max())
    _rates(say, f"{rate:,.0f} images/s", "10,413 on 8 GPUs")
    return _checked(say, f"{some} images: largest error", error)


def volume(say: Say, clock: Clock) -> bool:
    """Convolve the course's second volume, of random numbers, with a random kernel."""
    import numpy as np

    from tilewright.ops.conv3d import conv3d
    from tilewright.ops.conv3d.reference import conv3d as reference

    say(f"\nvolume: {VOLUME}^3 voxels under a kernel of {TAPS}^3")
    rng = np.random.default_rng(SEED)
    given, kernel = rng.random((VOLUME,) * 3, np.float32), rng.random((TAPS,) * 3, np.float32)
    with clock.compiling():
        conv3d(given, kernel)
    seconds = []
    for _ in range(RUNS):
        start = time.perf_counter()
        filtered = conv3d(given, kernel)
        seconds.append(time.perf_counter() - start)
    _rates(say, f"{min(seconds) * 1e3:.3f} ms", "0.038 ms, its kernel alone, on one GPU")
    return _checked(say, "all voxels: largest error", float(np.abs(filtered - reference(given, kernel)).max()))


def _fits(say: Say) -> bool:
    """Whether one of the large models fits into memory. If not, a line says that the job is left out."""
    from tilewright.hardware import available_memory

    free = available_memory()
    if free < MOST_BYTES:
        say(f"    left out: it takes {MOST_BYTES / 1e9:.1f} GB of memory, and {free / 1e9:.1f} GB are free")
    return free >= MOST_BYTES


def _rates(say: Say, here: str, first: str, fastest: str | None = None) -> None:
    say(f"    {here} here; the report's program {first}{f', the fastest known {fastest}' if fastest else ''}")


def _checked(say: Say, what: str, error: float) -> bool:
    passed = error <= LIMIT
    say(f"    checked against float64, {what} {error:.1e}, {LIMIT:.0e} is allowed: {'PASS' if passed else 'FAIL'}")
    return passed
