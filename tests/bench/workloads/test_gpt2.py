"""The bench of text generation: what is wrong is not timed, turns are fair, and every figure adds up."""

import dataclasses
import subprocess
import sys

import numpy as np
import pytest

from tilewright.bench.clocks import cpu as cpu_clock
from tilewright.bench.report import write as report
from tilewright.bench.report.tables import bench_tables
from tilewright.bench.results import PEER, read, save
from tilewright.bench.roofs.limits import Roofs
from tilewright.bench.workloads import gpt2, gpt2_engines
from tilewright.bench.workloads import gpt2_profile as profiling
from tilewright.bench.workloads.gpt2 import Setting, Workload, accuracy, check, compare, reference_logits
from tilewright.bench.workloads.gpt2_engines import Engine, ours
from tilewright.errors import InternalError, UsageError
from tilewright.generation import attention
from tilewright.models import decoder as model_module
from tilewright.models.gpt2 import GPT2Config
from tilewright.ops.core.launch import threads
from tilewright.runtime.convert.models import init_gpt2

CONFIG = GPT2Config(vocab_size=97, n_positions=40, n_embd=48, n_layer=2, n_head=3, eos_token_id=None)
ROOF = Roofs(threads=1, copy_gbytes_s=10.0, gflops={"float32": 50.0, "bfloat16": 50.0})


class Clock:
    """Time that passes where somebody sleeps, and a nanosecond for each look."""

    def __init__(self):
        self.now = 0.0

    def perf_counter(self):
        self.now += 1e-9
        return self.now

    def sleep(self, seconds):
        self.now += seconds


def bench(*given, **options):
    """The rows of all workloads."""
    return [row for part in gpt2.bench(*given, **options) for row in part]


@pytest.fixture(autouse=True)
def clock(monkeypatch):
    monkeypatch.setattr(profiling, "measured_roofs", lambda count: ROOF)
    monkeypatch.setattr(cpu_clock, "rouse", lambda: None)
    monkeypatch.setattr(cpu_clock, "time", made := Clock())
    return made


@pytest.fixture(scope="module")
def setting():
    """Large random weights, so that tokens are well apart; 30 prompts, of which 20 are distinct."""
    rng = np.random.default_rng(0)
    weights = {name: 0.3 * rng.standard_normal(shape, np.float32) for name, shape in CONFIG.tensor_shapes().items()}
    prompts = rng.integers(0, 97, (20, 16), np.int32)
    return Setting(CONFIG, weights, np.concatenate([prompts, prompts[:10]]), 30, against=(), rounds=3)


@pytest.fixture(scope="module")
def engine(setting):
    return ours(CONFIG, setting.weights, "float32")


def test_our_logits_are_the_reference_at_every_position(setting, engine):
    ids = setting.prompts[:3]
    exact = reference_logits(CONFIG, setting.weights, ids, 5)
    assert exact.shape == (3, 5, 97) and exact.std() > 0.5
    for back in range(5):
        found = engine.logits(ids[:, : 16 - 4 + back])
        assert np.abs(found - exact[:, back]).max() < 1e-4


def test_the_check_passes_what_is_right(setting, engine):
    assert 0 < check(setting, engine) < 1e-4


@pytest.mark.parametrize("field", ["logits", "generate"])
def test_the_check_catches_an_engine_that_is_wrong(setting, engine, field):
    def wrong(*arguments):
        return np.roll(getattr(engine, field)(*arguments), 1, axis=1)

    with pytest.raises(InternalError, match="nothing is reported"):
        check(setting, dataclasses.replace(engine, **{field: wrong}))


def test_drawn_tokens_must_be_among_the_best(setting, engine):
    assert check(setting, engine, 50) == check(setting, engine)
    assert (engine.generate(setting.prompts, 8, 0, 50) != engine.generate(setting.prompts, 8, 0)).any()
    with pytest.raises(InternalError, match="nothing is reported"):
        check(setting, dataclasses.replace(engine, generate=lambda *given: engine.generate(*given[:3], 97)), 5)


def test_logits_that_are_not_numbers_are_no_pass(setting, engine):
    broken = dataclasses.replace(engine, logits=lambda prompts: np.full((len(prompts), 97), np.nan, np.float32))
    with pytest.raises(InternalError, match="off by nan"):
        check(setting, broken)


def test_workloads(setting):
    every = gpt2.workloads(dataclasses.replace(setting, count=25, workloads=gpt2.WORKLOADS))
    course, batch, single, sampled = every
    assert [workload.size for workload in every] == [
        "course: 16 -> 8",
        "batch: 16 -> 24",
        "single: 16 -> 24",
        "sampled: 16 -> 24",
    ]
    assert [workload.top_k for workload in every] == [1, 1, 1, 50] and sampled.theirs is batch.theirs
    assert [workload.name for workload in gpt2.workloads(setting)] == ["course", "batch", "single"]
    assert (len(course.ours["as given"]), len(course.ours["distinct prompts"]), len(single.theirs)) == (25, 20, 1)
    np.testing.assert_array_equal(course.ours["distinct prompts"], setting.prompts[:20])
    with pytest.raises(UsageError, match="prompts have 40 tokens; the context of 40 must hold one more"):
        gpt2.workloads(dataclasses.replace(setting, prompts=np.zeros((2, 40), np.int32)))


def test_names_that_are_not_known(setting):
    for changed in ({"against": ("tortch",)}, {"workloads": ("curse",)}):
        with pytest.raises(UsageError, match=r"tortch|curse"):
            bench(dataclasses.replace(setting, **changed), dtype="float32", say=lambda text: None)


def sleeper(name, clock, seconds_of, tokens_of):
    """A peer of a known speed: seconds_of(prompts in a batch) for each batch."""

    def generate(prompts, tokens, batch, top_k):
        for first in range(0, len(prompts), batch):
            clock.sleep(seconds_of(len(prompts[first : first + batch])))
        return tokens_of(prompts, tokens)

    return Engine(name, "float32", 0.5, generate)


def test_a_peer_runs_at_its_fastest_batch(clock):
    peer = sleeper("peer", clock, lambda batch: {2: 0.02, 4: 0.02, 8: 0.08}[batch], lambda p, t: np.zeros((len(p), t)))
    workload = Workload("course", 4, {}, np.zeros((8, 3), np.int64), (2, 4, 8, 16))
    assert gpt2.best_batch(peer, workload) == 4
    assert gpt2.best_batch(peer, dataclasses.replace(workload, theirs=np.zeros((1, 3)))) == 1


def test_no_first_call_of_a_peer_is_timed(setting, engine, monkeypatch, clock):
    """A library may compile for each new shape. Here that takes 9 s, and longer for a larger batch."""
    seen = set()

    def generate(prompts, tokens, batch, top_k):
        if (shape := (len(prompts), tokens)) not in seen:
            clock.sleep(9.0 * batch**2)
        seen.add(shape)
        clock.sleep(0.1)
        return engine.generate(prompts, tokens, 0)

    peer = Engine("transformers", "float32", 0.5, generate)
    workload = Workload("course", 4, {}, setting.prompts[:8], (2, 4, 8))
    assert gpt2.best_batch(peer, workload) == 8
    monkeypatch.setattr(gpt2, "ours", lambda config, weights, dtype, device: engine)
    monkeypatch.setitem(gpt2.PEERS, "transformers", lambda config, weights, dtype, device: peer)
    few = dataclasses.replace(setting, against=("transformers",), workloads=("single",))
    _, theirs = bench(few, dtype="float32", say=lambda text: None)
    assert theirs.high_s == pytest.approx(0.1)


def test_rows_beside_a_peer_of_known_speed(setting, engine, monkeypatch, clock):
    """A peer takes 0.1 s for 20 prompts of 8 tokens, and we take 0.05 s."""

    def half_as_long(prompts, tokens, batch, top_k):
        clock.sleep(0.05)
        return engine.generate(prompts, tokens, batch, top_k)

    slowed = dataclasses.replace(engine, generate=half_as_long)
    peer = sleeper("transformers", clock, lambda batch: 0.1, lambda p, t: engine.generate(p, t, 0))
    monkeypatch.setattr(gpt2, "ours", lambda config, weights, dtype, device: slowed)
    monkeypatch.setitem(gpt2.PEERS, "transformers", lambda config, weights, dtype, device: peer)
    lines = []
    few = dataclasses.replace(setting, against=("transformers",), workloads=("course",))
    given, distinct, theirs = bench(few, dtype="float32", say=lines.append)
    assert [row.rung for row in (given, distinct, theirs)] == ["as given", "distinct prompts", "transformers"]
    assert (given.rows, distinct.rows, theirs.rows) == (240, 160, 160)
    assert given.check.startswith("passed") and theirs.check == PEER
    assert (given.peer_ratio, distinct.peer_ratio) == (pytest.approx(3.0), pytest.approx(2.0))
    assert theirs.peer == "distinct prompts" and theirs.peer_ratio == pytest.approx(0.5)
    assert theirs.label == "batch 20; 2.00 to 2.00 x" and theirs.one_off_s == 0.5
    assert any("transformers" in line and "batch 20" in line for line in lines)
    (table,) = bench_tables([given, distinct, theirs])
    ratio = table.header.index("tilewright is x times as fast")
    assert table.rows[1][ratio] == table.rows[2][ratio] == "2.00"


def test_a_peer_may_draw_others_where_chance_is_meant(setting, engine, monkeypatch, clock):
    draws = iter(range(100))
    peer = sleeper("transformers", clock, lambda batch: 0.1, lambda p, t: np.full((len(p), t), next(draws)))
    monkeypatch.setattr(gpt2, "ours", lambda config, weights, dtype, device: engine)
    monkeypatch.setitem(gpt2.PEERS, "transformers", lambda config, weights, dtype, device: peer)
    few = dataclasses.replace(setting, against=("transformers",), workloads=("sampled",))
    mine, theirs = bench(few, dtype="float32", say=lambda text: None)
    assert mine.rung == "20 prompts" and mine.check.startswith("passed") and "differ" not in theirs.label


def test_a_peer_that_is_missing_is_a_line(setting, monkeypatch):
    def missing(config, weights, dtype, device):
        raise ImportError("No module named 'ctranslate2'")

    monkeypatch.setitem(gpt2.PEERS, "ctranslate2", missing)
    lines = []
    few = dataclasses.replace(setting, against=("ctranslate2",), workloads=("single",))
    rows = bench(few, dtype="float32", say=lines.append)
    assert "ctranslate2: unavailable - No module named 'ctranslate2'" in lines
    assert [row.rung for row in rows] == ["1 prompt"] and rows[0].peer is None


def test_only_a_close_call_explains_a_difference(setting, engine):
    prompts = setting.prompts[:4]
    right = engine.generate(prompts, 8, 4)
    workload = Workload("course", 8, {"distinct prompts": prompts}, prompts, (4,))
    wrong = right.copy()
    wrong[2, 5] = (wrong[2, 5] + 1) % 97
    compare(setting, workload, {"distinct prompts": right, "peer": wrong}, ["peer"])  # it is the peer that errs
    with pytest.raises(InternalError, match="token 5 of prompt 2"):
        compare(setting, workload, {"distinct prompts": wrong, "peer": right}, ["peer"])


def test_accuracy_of_bfloat16_is_told_beside_float32(setting):
    engines = [ours(CONFIG, setting.weights, dtype) for dtype in ("float32", "bfloat16")]
    exact, rounded = accuracy(setting, engines, lambda text: None)
    assert exact.label == "0; 0; 100.0%; 100.0%"
    worst, mean, *_ = (float(part.rstrip("%")) for part in rounded.label.split("; "))
    assert 0 < mean < worst
    (table,) = bench_tables([exact, rounded])
    assert table.rows[0][-4:] == ("0", "0", "100.0%", "100.0%")


def test_the_profile_names_every_operation_and_adds_up(setting, engine):
    called = [(model_module, "matmul"), (model_module, "layernorm"), (attention, "attend"), (attention, "append")]
    originals = [getattr(module, name) for module, name in called]
    prompts = setting.prompts[:5]
    rows = profiling.cpu_profile(
        lambda: engine.generate(prompts, 3, 0), size="5 prompts", dtype="float32", vocabulary=CONFIG.vocab_size
    )
    by_name = {row.rung: row for row in rows}
    assert {"matmul 48x144", "matmul 48x192", "matmul 192x48", "append", "layernorm", "embedding"} < set(by_name)
    assert by_name["matmul 48x144"].rows == CONFIG.n_layer * 3 and rows[-1].rung == profiling.REST
    assert by_name["LM head 48x97"].rows == 3
    assert by_name["attention, prompts"].rows == 1  # the last layer looks from the last positions alone
    assert by_name["attention, one position"].rows == 1 + 2 * CONFIG.n_layer
    matrix = by_name["matmul 48x192"]
    assert matrix.gflops * matrix.median_s * 1e9 == pytest.approx(2 * 48 * 192 * (5 * 16 + 5 + 4 * 5), rel=0.1)
    assert sum(float(row.label.rstrip("%")) for row in rows) == pytest.approx(100, abs=1)
    assert all(row.roof_share > 0 for row in rows if row.roof_share is not None)
    assert [getattr(module, name) for module, name in called] == originals


def test_the_profile_leaves_no_trace_where_the_run_fails():
    before = dict(vars(model_module))
    with pytest.raises(ZeroDivisionError), profiling.profiled(ROOF, "float32", 97):
        assert vars(model_module)["matmul"] is not before["matmul"]
        raise ZeroDivisionError
    assert dict(vars(model_module)) == before


def test_results_are_kept_and_shown(setting, tmp_path):
    few = dataclasses.replace(setting, workloads=("single",), profile=True)
    rows, name = bench(few, dtype="float32", say=lambda text: None), gpt2.model_name(CONFIG)
    save(tmp_path / "results", "made-up-2c", rows)
    marks = "".join(f"<!-- bench:{op} -->\n<!-- /bench:{op} -->\n" for op in ("gpt2", "gpt2_profile"))
    (tmp_path / "README.md").write_text(marks)
    report.write(tmp_path)
    text = (tmp_path / "README.md").read_text()
    assert "gpt2; made-up-2c" in text and f"| {name}, single: 16 -> 24 | 1 prompt | float32 | passed" in text
    assert "| LM head 48x97 | 24 |" in text
    assert "LM head 48x97" in (tmp_path / "results" / "report.html").read_text()
    assert [line.split()[0] for line in bench_tables(rows)[0].text().splitlines()] == ["gpt2;", "workload", f"{name},"]


def test_the_command_line_measures_and_saves(tmp_path):
    init_gpt2(str(tmp_path / "model"), 3, vocab_size=97, n_positions=40, n_embd=48, n_layer=2, n_head=3)
    command = ["bench", "gpt2", "--model", "model", "--against", "none", "--only", "course,single", "-n", "9"]
    done = subprocess.run(
        [sys.executable, "-m", "tilewright", *command, "--rounds", "1", "--save"],
        capture_output=True, text=True, cwd=tmp_path, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "prompts: random numbers" in done.stdout and "distinct prompts" in done.stdout
    assert {row.rung: row.rows for row in read(tmp_path / "results")} == {
        "as given": 72,
        "distinct prompts": 72,
        "1 prompt": 24,
    }


def test_transformers_and_its_bfloat16_run_the_same_model(setting, engine):
    pytest.importorskip("transformers", reason="the peer is not installed")
    prompts = setting.prompts[:6]
    with threads(1):
        peer = gpt2_engines.transformers(CONFIG, setting.weights, "float32")
        np.testing.assert_array_equal(peer.generate(prompts, 8, 4), engine.generate(prompts, 8, 0))
        assert np.abs(peer.logits(prompts) - engine.logits(prompts)).max() < 1e-4
        assert (
            check(setting, peer, 50) < 1e-4 and (peer.generate(prompts, 8, 4, 50) != peer.generate(prompts, 8, 4)).any()
        )
        rounded = gpt2_engines.transformers(CONFIG, setting.weights, "bfloat16")
        assert np.abs(rounded.logits(prompts) - engine.logits(prompts)).max() > 1e-3


def test_ctranslate2_runs_the_same_model(setting, engine):
    pytest.importorskip("ctranslate2", reason="the peer is not installed")
    pytest.importorskip("transformers", reason="the converter needs it")
    peer = gpt2_engines.ctranslate2(CONFIG, setting.weights)
    found, expected = peer.generate(setting.prompts[:6], 8, 4), engine.generate(setting.prompts[:6], 8, 0)
    assert found.shape == expected.shape and (found == expected).mean() > 0.9  # its end-of-text token is never chosen
    assert (peer.generate(setting.prompts[:6], 8, 4, 50) != found).any()
    with pytest.raises(UsageError, match="no bfloat16"):
        gpt2_engines.ctranslate2(CONFIG, setting.weights, "bfloat16")


def test_pytorch_with_a_static_cache_runs_the_same_model(setting, engine):
    pytest.importorskip("torch", reason="the peer is not installed")
    from tilewright.bench.workloads.gpt2_torch import StaticGPT2

    model = StaticGPT2(CONFIG, setting.weights, "float32", device="cpu")
    np.testing.assert_array_equal(model.generate(setting.prompts, 8, 4), engine.generate(setting.prompts, 8, 0))
    assert check(setting, Engine("torch", "float32", 0.0, model.generate), 50) == 0.0
    assert (model.generate(setting.prompts, 8, 4, 50) != model.generate(setting.prompts, 8, 4)).any()
