"""Peak memory of a job, and of one with 20 times the input: it grows by less than 10 %, but for what a grid keeps."""

import json
import subprocess
import sys

import numpy as np
import pytest

from gpt2_models import save
from tilewright.formats.images import check_grid
from tilewright.runtime.convert.models import init_dcgan, init_textcnn

pytestmark = pytest.mark.long
pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

RUN = """
import sys
from tilewright.cli import main
from tilewright.runtime.reports import peak_memory
try:
    main(sys.argv[1:])
except SystemExit as end:
    assert not end.code, end.code
sys.stderr.write(f"\\npeak {peak_memory()}\\n")
"""
CASES = [
    *(("classify", source, "jsonl") for source in ("txt", "jsonl", "parquet")),
    ("classify", "jsonl", "parquet"),
    *(("generate", "jsonl", output) for output in ("jsonl", "parquet")),
    *(("draw", "seed", output) for output in ("npy", "txt", "/", "png", "bmp")),
    ("draw", "npy", "npy"),
    *(("convolve", "npy", output) for output in ("npy", "zarr", "nii.gz")),
]
# more than a batch, or the tiles that --memory holds, which is memory that all jobs take
RECORDS = {"classify": 20_000, "generate": 2_000, "draw": 600, "convolve": 600}
OPTIONS = {"generate": ("--max-tokens", 2), "convolve": ("--kernel", "box:3", "--memory", "320M")}
IMAGE = (16, 16, 3)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    path = tmp_path_factory.mktemp("growth")
    init_textcnn(str(path / "classify"), 3, vocab_size=50, sequence_length=6, hidden_size=8, num_filters=5,
                 kernel_sizes=(2, 3), hidden_sizes=(7,))  # fmt: skip
    init_dcgan(str(path / "draw"), 3, z_size=3, size=IMAGE[0] // 2, channels=(4, IMAGE[2]), kernel=4)
    save(path / "generate")
    return path


def write(place, verb, form, count):
    """An input of so many records, made once."""
    path = place / f"{verb}.{count}.{form}"
    if path.exists():
        return path
    rng = np.random.default_rng(count)
    if verb == "draw":
        np.save(path, rng.standard_normal((count, 3)).astype(np.float32))
        return path
    if verb == "convolve":
        np.save(path, np.resize(rng.integers(0, 99, 1 << 20, np.uint8), (count, 128, 128)))  # planes
        return path
    if verb == "generate":
        path.write_text(
            "".join(json.dumps({"id": f"p{i}", "prompt": f"the cat {i % 91}"}) + "\n" for i in range(count))
        )
        return path
    tokens = rng.integers(0, 50, (count, 6), np.int32)
    if form == "txt":
        path.write_text("".join(f"the cat {i % 91}\n" for i in range(count)))
    else:
        rows = [{"id": f"s{i}", "tokens": row} for i, row in enumerate(tokens.tolist())]
        if form == "parquet":
            pq.write_table(pa.Table.from_pylist(rows), path, row_group_size=RECORDS[verb])
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def peak(place, verb, source, output, count):
    """Bytes, of a process of its own."""
    target = place / f"{verb}.{source}.{count}.out{'.' * (output != '/')}{output}"
    given = ("-n", count) if source == "seed" else ("-i", write(place, verb, source, count))
    model = "critic" if (verb, source) == ("classify", "txt") else place / verb  # the small one has no words
    options = (*OPTIONS.get(verb, ()), *(("--model", model) if verb != "convolve" else ()))
    command = (verb, *given, "-o", target if output != "/" else f"{target}/", *options, "--threads", "1")
    done = subprocess.run([sys.executable, "-c", RUN, *map(str, command)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return int(done.stderr.rpartition("peak ")[2])


@pytest.mark.parametrize(("verb", "source", "output"), CASES)
def test_twenty_times_the_input(place, verb, source, output):
    count = RECORDS[verb]
    peak(place, verb, source, output, 10)  # which may compile
    few, many = (peak(place, verb, source, output, n) for n in (count, 20 * count))
    kept = [check_grid("", n, IMAGE, f".{output}") for n in (count, 20 * count) if output in ("png", "bmp")] or (0, 0)
    print(f"{verb} {source} -> {output}: {few >> 20} and {many >> 20} MiB, {many / few - 1:+.1%}")
    assert many - kept[1] < 1.1 * (few - kept[0]), (few, many, kept)
