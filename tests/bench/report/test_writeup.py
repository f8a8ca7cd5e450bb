"""The report of a machine: from its rows alone, the same bytes each time."""

import xml.etree.ElementTree as ET

import pytest

from tilewright.bench import results
from tilewright.bench.report.write import ladders
from tilewright.bench.report.writeup import write_writeup
from tilewright.bench.results import save
from tilewright.cli import main
from tilewright.errors import InputError


@pytest.fixture
def saved(tmp_path, row, monkeypatch):
    """results/ with a ladder, a job, a sweep, workers and the steps of a job on one machine, and rows of another."""
    monkeypatch.setattr(results, "commit", lambda: "1a2b3c4")
    point = {"op": "sweep_matmul", "label": "", "check": "passed"}
    rows = [
        row("cpu.memory", gflops=1.0), row("cpu.packed", gflops=43.25, versus_below=43.25), row("MKL", check="peer"),
        row("tilewright", op="dcgan", size="9 images", rows=9, peer="torch", peer_ratio=3.0),
        row("cpu.packed", **point, point="threads=1"), row("cpu.packed", **point, point="threads=2", median_s=0.26),
        row("local, 1", op="scaling", size="gpt2, 5 prompts", label="1", versus_below=1.0, point=""),
        row("local, 2", op="scaling", size="gpt2, 5 prompts", label="2", versus_below=1.9, point=""),
        row("naive", op="job_sentiment", size="5 sentences", label="", versus_below=None),
        row("tiles", op="job_sentiment", size="5 sentences", label="", versus_below=4.0, median_s=0.125),
    ]  # fmt: skip
    save(tmp_path / "results", "made-up-2c", rows)
    save(tmp_path / "results", "nvidia-h200", [row("tile.limbs", threads=0)])
    return tmp_path / "results"


def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_the_same_rows_give_the_same_bytes(saved, tmp_path):
    write_writeup(saved, ["made-up-2c"], tmp_path / "a", ladders())
    write_writeup(saved, ["made-up-2c"], tmp_path / "b", ladders())
    assert contents(tmp_path / "a") == contents(tmp_path / "b")
    assert write_writeup(saved, ["made-up-2c"], tmp_path / "a", ladders()) == []


def test_every_file_of_rows_has_its_section(saved, tmp_path):
    write_writeup(saved, ["made-up-2c"], tmp_path / "w", ladders())
    text = (tmp_path / "w/writeup.md").read_text()
    assert text.startswith("# Measurements of Made Up, 2 cores\n")
    assert [line for line in text.splitlines() if line.startswith("##")] == [
        "## Kernels", "### matmul", "## Jobs", "### Images", "## Job ladders", "### Steps of sentiment", "## Sweeps",
        "### matmul, float32: threads", "## Scaling", "### Workers",
    ]  # fmt: skip
    for sentence in (
        "* The machine has 2 cores.",
        "* float32: cpu.packed runs 43.2 times as fast as cpu.vectors. Its idea: operands packed",
        "* 9 images, tilewright, float32, 1 thread: 18 images/s. It runs 3.00 times as fast as PyTorch.",
        "the speed-up ends at 2 threads, 1.92 times as fast as one: the machine has 2 cores. Amdahl's serial",
        "local: 2 workers run 1.90 times as fast as one, 95% of linear.",
        "* tiles runs 4.00 times as fast as naive.",
        "| 16 GPUs | 16 GPUs of that cluster | 12,545 |",
    ):
        assert sentence in text
    assert "tile.limbs is" not in text, "a row of another machine"


def test_links_and_the_page(saved, tmp_path):
    write_writeup(saved, ["made-up-2c"], tmp_path / "w", ladders())
    text = (tmp_path / "w/writeup.md").read_text()
    links = {part.partition(")")[0] for part in text.split("](")[1:]}
    drawn = {f"figures/{path.name}" for path in (tmp_path / "w/figures").iterdir()}
    assert links == drawn and len(drawn) >= 4
    for name in drawn:
        ET.fromstring((tmp_path / "w" / name).read_text())  # noqa: S314 - our own text
    page = (tmp_path / "w/writeup.html").read_text()
    assert page.count("<svg") >= len(drawn) and "<title>Measurements of Made Up, 2 cores</title>" in page
    for outside in ("<link", "<img", "@import", "url(", "src=", 'href="http', "fetch(", "import("):
        assert outside not in page


def test_a_machine_without_rows(saved, tmp_path):
    with pytest.raises(InputError, match=r"no rows of nowhere; machines with rows: made-up-2c, nvidia-h200"):
        write_writeup(saved, ["nowhere"], tmp_path / "w", ladders())
    assert not (tmp_path / "w").exists()


def test_the_command(saved, tmp_path, capsys):
    for said in ("wrote 6 figures in", "nothing to change"):
        with pytest.raises(SystemExit) as ended:
            main(["writeup", str(tmp_path / "w"), "--results", str(saved), "--machine", "made-up-2c"])
        assert not ended.value.code and said in capsys.readouterr().out
