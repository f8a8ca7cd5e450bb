"""Result files: written, replaced, read, refused."""

import dataclasses
import re
import subprocess

import pytest

from tilewright.bench import libraries, results
from tilewright.bench.report.tables import Table
from tilewright.bench.results import COLUMNS, PEER, Row, commit, one_session, read, save, write_text
from tilewright.errors import InputError, ResourceError


@pytest.fixture(autouse=True)
def at_a_commit(monkeypatch):
    monkeypatch.setattr(results, "commit", lambda: "1a2b3c4")
    monkeypatch.setattr(results, "session", lambda: "first")


def test_what_is_saved_is_read_to_four_digits(tmp_path, row):
    rows = [row("cpu.slow", median_s=0.123456), row("cpu.fast", peer="MKL", peer_ratio=1.5, versus_below=None)]
    assert save(tmp_path, "here-2c", rows) == [tmp_path / "here-2c" / "matmul.csv"]
    first, second = read(tmp_path)
    assert first.median_s == 0.1235
    today = {"commit": "1a2b3c4", "machine": "here-2c", "date": second.date, "session": "first"}
    assert second == dataclasses.replace(rows[1], **today)
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", second.date)


def test_a_peers_row_has_its_version(tmp_path, row, monkeypatch):
    monkeypatch.setattr(libraries, "version", {"torch": "2.9.1", "cupy": "14.0"}.__getitem__)
    monkeypatch.setattr(libraries, "PackageNotFoundError", KeyError)
    names = ["cpu.slow", "MKL", "PyTorch, channels last", "cupy", "lm-eval hf", "mine"]
    save(tmp_path, "here", [row(name, check="passed" if name == "cpu.slow" else PEER) for name in names])
    rows = read(tmp_path)
    assert [row.library for row in rows] == ["", "torch 2.9.1", "torch 2.9.1", "cupy 14.0", "", ""]
    assert list(libraries.versions_note(row.library for row in rows)) == ["Versions: cupy 14.0, torch 2.9.1."]
    assert not list(libraries.versions_note(["", ""]))


def found(tmp_path) -> list[tuple]:
    return [(r.session, r.rung, r.threads, r.dtype, r.median_s) for r in read(tmp_path)]


def in_session(monkeypatch, name: str) -> None:
    monkeypatch.setattr(results, "session", lambda: name)


def test_a_session_of_a_ladder_replaces_one_that_it_covers(tmp_path, row, monkeypatch):
    save(tmp_path, "here", [row("a"), row("b"), row("MKL", check=PEER), row("a", dtype="bfloat16")])
    in_session(monkeypatch, "second")
    save(tmp_path, "here", [row("a", median_s=2.0), row("c")])
    expected = [
        ("first", "a", 1, "bfloat16", 0.5),
        ("second", "a", 1, "float32", 2.0),
        ("second", "c", 1, "float32", 0.5),
    ]
    assert found(tmp_path) == expected
    save(tmp_path, "here", [row("c", median_s=3.0), row("a", threads=2)])  # the session goes on
    assert found(tmp_path)[-3:] == [
        ("second", "a", 1, "float32", 2.0),
        ("second", "c", 1, "float32", 3.0),
        ("second", "a", 2, "float32", 0.5),
    ]


def test_a_session_of_a_part_leaves_the_ladder_whole(tmp_path, row, monkeypatch):
    whole = [row(name, size=size) for size in ("8", "9") for name in "ab"]
    save(tmp_path, "here", whole)
    for name, part in (("fewer rungs", whole[:1]), ("fewer sizes", whole[:2])):
        in_session(monkeypatch, name)
        save(tmp_path, "here", part)
    shown = one_session(read(tmp_path), ["a", "b"])
    assert [row.session for row in read(tmp_path)].count("first") == 4
    assert [(row.rung, row.size, row.session) for row in shown] == [(r.rung, r.size, "first") for r in whole]


def test_what_a_workload_measured_earlier_goes(tmp_path, row, monkeypatch):
    save(tmp_path, "here", [row("a", op="gpt2", size=size) for size in ("course", "batch")] + [row("old", op="gpt2")])
    in_session(monkeypatch, "second")
    save(tmp_path, "here", [row("a", op="gpt2", size="course"), row("new", op="gpt2")])
    assert [(r.session, r.rung, r.size) for r in read(tmp_path)] == [
        ("second", "a", "course"),  # the first size stays the first: README shows it
        ("first", "a", "batch"),
        ("second", "new", "8x8x8-float32"),
    ]


def test_a_peer_of_another_dtype_replaces_only_itself(tmp_path, row, monkeypatch):
    """`bench sentiment` times PyTorch in bfloat16 beside our float32: our bfloat16 rows stay."""
    half = [row("ours", op="sentiment", dtype="bfloat16"), row("peer", op="sentiment", dtype="bfloat16", check=PEER)]
    save(tmp_path, "here", half)
    in_session(monkeypatch, "second")
    save(tmp_path, "here", [row("ours", op="sentiment"), half[1]])
    assert {(r.session, r.rung, r.dtype) for r in read(tmp_path)} == {
        ("first", "ours", "bfloat16"), ("second", "peer", "bfloat16"), ("second", "ours", "float32"),
    }  # fmt: skip


def test_the_session_with_most_peers_then_rungs_is_shown_and_the_latest_of_equals(row):
    def of(session, *names):
        return [row(name, session=session, check=PEER if name == "MKL" else "passed") for name in names]

    older, newer = of("1", "a", "b", "gone"), of("2", "a", "b")
    assert one_session([*older, *newer], "ab") == newer  # what is no rung any more does not count
    assert one_session([*older, *of("2", "a")], "ab") == older
    beside = of("0", "b", "MKL")
    assert one_session([*beside, *older], "ab") == beside
    assert one_session(of("1", "gone"), "ab") == []


def test_files_without_the_later_columns_are_read(tmp_path, row):
    path, *_ = save(tmp_path, "here", [row("a")])
    path.write_text("".join(line.rsplit(",", 4)[0] + "\n" for line in path.read_text().splitlines()))
    assert [(r.rung, r.session, r.noise, r.point) for r in read(tmp_path)] == [("a", "", "", "")]


def test_machines_and_operations_have_their_own_files(tmp_path, row):
    save(tmp_path, "b", [row("x"), row("x", op="embedding")])
    save(tmp_path, "a", [row("x")])
    assert [(r.machine, r.op) for r in read(tmp_path)] == [("a", "matmul"), ("b", "embedding"), ("b", "matmul")]


def test_no_results_are_no_rows(tmp_path):
    assert read(tmp_path / "nowhere") == []


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "no result file"),
        ("", "no result file"),
        (",".join(COLUMNS) + "\nmatmul,x\n", "no result file"),
        (",".join(COLUMNS) + "\n" + ",".join(["fast"] * len(COLUMNS)) + "\n", "line 2: not a measurement: .*'fast'"),
        (",".join(COLUMNS) + "\n" + "x" * 200_000 + "\n", "no CSV file: field larger"),
    ],
    ids=["other columns", "empty", "short row", "no number", "huge cell"],
)
def test_a_file_of_something_else_is_refused_by_name(tmp_path, text, message):
    path = tmp_path / "here" / "matmul.csv"
    path.parent.mkdir()
    path.write_text(text)
    with pytest.raises(InputError, match=rf"matmul\.csv.*{message}"):
        read(tmp_path)


def test_an_unwritable_place_is_named(tmp_path, row):
    (tmp_path / "here").write_text("a file where a folder should be")
    with pytest.raises(ResourceError, match="here"):
        save(tmp_path, "here", [row("a")])


def test_the_same_text_leaves_the_file_alone(tmp_path):
    path = tmp_path / "new" / "file"
    assert write_text(path, "one")
    before = path.stat()
    assert not write_text(path, "one")
    assert path.stat().st_ino == before.st_ino
    assert write_text(path, "two")
    assert path.read_text() == "two"


def test_every_column_is_a_field_of_row():
    assert [field.name for field in dataclasses.fields(Row)] == COLUMNS


def test_the_commit_is_gits(monkeypatch):
    monkeypatch.undo()
    assert re.fullmatch(r"[0-9a-f]{7,}(-dirty)?|unknown", commit())


@pytest.mark.parametrize(("status", "expected"), [("", "1a2b3c4"), (" M src/x.py", "1a2b3c4-dirty")])
def test_a_changed_tree_is_dirty(monkeypatch, status, expected):
    monkeypatch.undo()
    answers = {"ls-files": "", "rev-parse": "1a2b3c4\n", "status": status}

    def run(words, **options):
        return subprocess.CompletedProcess(words, 0, stdout=answers[words[3]])

    monkeypatch.setattr(subprocess, "run", run)
    assert commit() == expected


def test_outside_a_checkout_the_commit_is_unknown(monkeypatch):
    monkeypatch.undo()

    def run(words, **options):
        raise subprocess.CalledProcessError(128, words)

    monkeypatch.setattr(subprocess, "run", run)
    assert commit() == "unknown"


@pytest.mark.parametrize(
    ("column", "cell"), [("median_s", "nan"), ("gflops", "inf"), ("rung", "a\nb"), ("label", "\0")]
)
def test_a_cell_that_would_break_a_table_is_refused(tmp_path, row, column, cell):
    save(tmp_path, "here", [row("a")])
    path = tmp_path / "here" / "matmul.csv"
    values = dict(zip(COLUMNS, path.read_text().splitlines()[1].split(","), strict=True)) | {column: f'"{cell}"'}
    path.write_text(",".join(COLUMNS) + "\n" + ",".join(values.values()) + "\n")
    with pytest.raises(InputError, match=r"matmul\.csv, line 2: not a measurement|no CSV file|no result file"):
        read(tmp_path)


def test_html_in_a_result_stays_text():
    mark = "<!-- /ladder:matmul --><script>|"
    text = Table(mark, ("a", "b"), ((mark, "16 -> 8, x < 3"),), 1, (mark,)).markdown()
    assert text.count("<") == 1 and "16 -> 8, x < 3" in text and "\\|" in text.splitlines()[-3]
