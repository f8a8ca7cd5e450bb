"""`make demo`: the whole sentiment job on real sentences, with a model made from a seed, checked and timed.

`python -m tilewright.demo`.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

COURSE = Path("../shared/data/course/sentiment_inputs.bin")
SAMPLE = Path(__file__).parent / "data" / "sentences.bin"  # the first 1,024 of the course's sentences
LENGTH = 16
CHECKED = 64


def sentences(path: str | None = None) -> tuple[Any, str]:
    """(int32 ids (n, 16), where they come from): the given file, the course's, or the shipped sample."""
    import numpy as np

    from tilewright.formats.course import TokenFile
    from tilewright.models.textcnn import TextCNNConfig

    chosen = Path(path) if path else COURSE if COURSE.exists() else SAMPLE
    config = TextCNNConfig()
    reader = TokenFile(str(chosen), length=config.sequence_length, vocabulary=config.vocab_size)
    return np.concatenate([batch.tokens for batch in reader.batches(1 << 16)]), str(chosen)


def main() -> None:
    """Make a model, classify, check, and say how fast."""
    from tilewright.bench.sentiment import error_of, reference_logits
    from tilewright.hardware import cpu
    from tilewright.runtime.job import ClassifyJob, classify
    from tilewright.runtime.load import read_weights
    from tilewright.runtime.models import init_textcnn

    say = print
    ids, source = sentences()
    say(f"tilewright on {cpu().name}, {cpu().cores} cores, vectors of {cpu().lanes} float32")
    with tempfile.TemporaryDirectory(prefix="tilewright-demo-") as folder:
        model, output = os.path.join(folder, "params.bin"), os.path.join(folder, "outputs.bin")
        source_file = os.path.join(folder, "inputs.bin")
        ids.tofile(source_file)
        start = time.perf_counter()
        init_textcnn(model, 1)
        say(f"\nA TextCNN at the course's full size, 801 MB, from seed 1: made in {time.perf_counter() - start:.1f} s")
        say(f"{len(ids):,} real sentences of 16 words: {source}\n")
        report = classify(ClassifyJob(model=model, input=source_file, output=output), lambda line: say(f"  {line}"))
        import numpy as np

        logits = np.fromfile(output, np.float32).reshape(-1, 2)
        config, weights = read_weights(model)
        some = np.linspace(0, len(ids) - 1, CHECKED).astype(int)
        error = error_of(logits[some], reference_logits(config, weights, ids[some]))
    rate, total = report.records_per_second, report.seconds["total"]
    say(f"\n{len(ids):,} sentences in {report.seconds['run']:.2f} s: {rate:,.0f} a second (whole run {total:.1f} s,")
    say(f"of which {report.seconds['compile']:.1f} s compiling kernels, the first time only)")
    positive = int((logits[:, 1] > logits[:, 0]).sum())
    say(f"{positive:,} positive, {len(ids) - positive:,} negative (the weights are random)")
    verdict = "PASS" if error <= 1e-4 else "FAIL"
    say(f"check of {CHECKED} sentences against float64: largest error {error:.1e}, 1e-4 is allowed: {verdict}")
    say("\nNext: tilewright ladder matmul | tilewright classify --help | tilewright doctor")
    sys.exit(verdict != "PASS")


if __name__ == "__main__":
    main()
