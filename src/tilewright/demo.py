"""`make demo`: sentiment of real sentences, then text from prompts, with models made from a seed, checked and timed."""

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
    """Make a model, classify, check, and say how fast; True if the check passed. Nothing is left on the disk.

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
    say("\nNext: tilewright ladder matmul | tilewright generate --help | tilewright doctor")
    return passed and close


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
