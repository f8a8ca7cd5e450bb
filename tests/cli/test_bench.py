"""What the workloads of `tilewright bench` share: saving, and the peers that are named."""

import pytest

from tilewright.bench import libraries
from tilewright.bench.noise import Watch
from tilewright.bench.results import Row, read
from tilewright.cli import bench
from tilewright.hardware import machine_name


def test_a_part_is_saved_before_the_next_is_measured(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def parts():
        yield [Row("dcgan", "tilewright", "100 records", "float32", 1, 100, 2.0, 2.0, 2.0, 3)]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bench.saved(parts(), bench.Dcgan(save=True), Watch())
    assert [row.rung for row in read(tmp_path / "results", machine_name(), "dcgan")] == ["tilewright"]


@pytest.mark.parametrize("given", [["bench", "dcgan"], ["ladder", "softmax"]], ids=" ".join)
def test_results_that_cannot_be_saved_are_not_measured(given, run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "results").write_text("a file")
    code, out, err = run(*given, "--save")
    assert code == 4 and "results cannot be saved" in err and "leave out --save" in err and not out


@pytest.mark.parametrize(
    ("workload", "names"),
    [("sentiment", "torch"), ("gpt2", "transformers, ctranslate2, openvino"), ("dcgan", "torch, openvino"),
     ("convolve", "scipy, torch, halide, opencv"), ("embed", "torch, openvino"), ("score", "torch, lm-eval")],
)  # fmt: skip
def test_an_unknown_peer_ends_the_command_with_the_names_of_the_others(workload, names, run):
    code, _, err = run("bench", workload, "--against", "tortch")
    assert code == 2 and f"there is no peer 'tortch' here; choose from {names}, or none" in " ".join(err.split())


def test_a_named_peer_that_is_not_installed_ends_the_command(run, monkeypatch):
    monkeypatch.setattr(libraries, "version_of", lambda name: "")
    code, _, err = run("bench", "dcgan", "--against", "openvino")
    assert code == 2 and "openvino is not installed; in a clone of tilewright: pip install -e '.[peers]'" in err


def test_the_versions_of_the_peers_are_said(capsys):
    rows = [Row("dcgan", name, "9 records", "float32", 1, 9, 2.0, 2.0, 2.0, 3, check="peer") for name in ("SciPy", "x")]
    bench.finish(rows, bench.Dcgan(), Watch())
    assert f"Versions: {libraries.version_of('scipy')}.\n" in "".join(capsys.readouterr())
