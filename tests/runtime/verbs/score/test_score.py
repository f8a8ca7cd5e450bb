"""`tilewright score` end to end: the model's own scores in any shards, bad lines, cuts, Parquet, plan and resume."""

import json
import os
import shutil

import numpy as np
import pytest

from gpt2_models import save
from tilewright.cli import main
from tilewright.errors import InternalError, ResourceError, UsageError
from tilewright.generation.language_model import LanguageModel
from tilewright.runtime.jobs.merge import verify
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.load import load
from tilewright.runtime.verbs.score import ScoreJob, score
from tilewright.runtime.verbs.score.plan import plan

LONG = "a text that is longer than the context of sixty-four bytes, which are its tokens"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A model whose tokens are bytes, and its 64 positions; a file of good and bad lines."""
    path, rng = tmp_path_factory.mktemp("score"), np.random.default_rng(3)
    save(path / "gpt2")
    lines = []
    for i in range(30):
        context = f"question {i}:"
        lines += [{"context": context, "continuation": f" answer {n}"} for n in rng.integers(0, 1000, 3)]
        lines.append({"prompt_token_ids": rng.integers(0, 256, 9).tolist(), "continuation_token_ids": [int(i)]})
        lines.append({"text": f"text number {i}"})
    bad = [{"text": ""}, {"context": "a"}, {"continuation": "a"}, {"text": "a", "context": "b"}, {"text": LONG},
           {"context": [1], "continuation": [257]}, {"context": "a", "prompt": "b", "continuation": "c"},
           {"context": "a", "continuation": ""}]  # fmt: skip
    lines = [{"id": f"r{i}", **line} for i, line in enumerate(lines[:40] + bad + lines[40:])]
    lines[90]["id"] = "r3"
    (path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def job_of(place, output, input="in.jsonl", settings=(), **options):
    return ScoreJob(
        str(place / "gpt2"), str(place / input), str(output), settings=Settings(**dict(settings)), **options
    )


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_the_scores_are_those_of_the_model_and_bad_lines_have_their_errors(place, tmp_path):
    report = score(job_of(place, tmp_path / "out.jsonl"))
    given, found = lines_of(place / "in.jsonl"), lines_of(tmp_path / "out.jsonl")
    errors = {line["id"]: (line["error"]["field"], line["error"]["message"]) for line in found if "error" in line}
    assert [line["id"] for line in found] == [line["id"] for line in given]
    assert (report.records, report.errors, len(errors)) == (len(given), 9, 9)
    assert errors.pop("r3") == ("id", "'r3' is also the id of an earlier record")
    assert list(errors.values())[:7] == [
        ("text", "the text has no token; at least one is wanted"),
        ("continuation", "is missing; the record has id, context"),
        ("context", "is missing; the record has id, continuation"),
        ("text", "is given together with context; a text alone has neither"),
        ("text", f"the text has {len(LONG)} tokens; the model reads 64 at once, all but the last; allow it to be cut "
                 "(truncate=True, --truncate on the command line), or give fewer tokens"),
        ("continuation[0]", errors["r45"][1]),
        ("context", "is given together with prompt; one of them is wanted"),
    ]  # fmt: skip
    assert "257" in errors["r45"][1]
    model = load(place / "gpt2")
    good = [(line, answer) for line, answer in zip(given, found, strict=True) if "error" not in answer]
    for line, answer in good[:25]:
        pair = (
            line.get("context", line.get("prompt_token_ids")),
            line.get("continuation", line.get("continuation_token_ids")),
        )
        (wanted,) = model.score([line.get("text", pair)])
        values = np.array(answer["token_logprobs"], np.float32)
        assert values.tobytes() == np.array(wanted.logprobs, np.float32).tobytes()
        assert (answer["token_ids"], answer["logprob"], answer["is_greedy"]) == (
            wanted.token_ids, wanted.logprob, wanted.is_greedy,
        )  # fmt: skip
    assert report.tokens == sum(len(answer["token_ids"]) for _, answer in good)


def test_shards_threads_memory_and_switches_change_no_byte(place, tmp_path):
    score(job_of(place, tmp_path / "one.jsonl"))
    wanted = (tmp_path / "one.jsonl").read_bytes()
    for settings, options in (
        ({"shard_size": 700}, {}), ({"shard_size": 300, "threads": 1}, {"batch_memory": 200_000}),
        ({"without": frozenset({"prefix-sharing"})}, {}),
    ):  # fmt: skip
        output = tmp_path / "out.jsonl"
        report = score(job_of(place, output, settings={**settings, "restart": True}, **options))
        assert output.read_bytes() == wanted and verify(str(output)).intact
        assert report.job["shards"] > 1 or "shard_size" not in settings


def test_a_part_is_resumed_by_the_whole_job(place, tmp_path):
    output = tmp_path / "out.jsonl"
    score(job_of(place, output, settings={"shard_size": 700, "part": (0, 3)}))
    assert not output.exists()
    report = score(job_of(place, output, settings={"shard_size": 700}))
    assert 0 < report.computed < report.records
    score(job_of(place, tmp_path / "one.jsonl"))
    assert output.read_bytes() == (tmp_path / "one.jsonl").read_bytes()
    assert score(job_of(place, output)).computed == 0, "it is finished"
    with pytest.raises(UsageError, match="truncate"):
        score(job_of(place, output, truncate=True))


@pytest.mark.long
def test_workers_write_the_same_bytes(place, tmp_path):
    score(job_of(place, tmp_path / "one.jsonl"))
    score(job_of(place, tmp_path / "two.jsonl", settings={"workers": 2, "shard_size": 700}))
    assert (tmp_path / "one.jsonl").read_bytes() == (tmp_path / "two.jsonl").read_bytes()


def test_parquet_in_and_out_and_text_in(place, tmp_path):
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [{"id": i, "context": "a question", "continuation": f" {i}"} for i in range(50)]
    pq.write_table(pa.Table.from_pylist(rows), tmp_path / "in.parquet", row_group_size=20)
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    for input, output in (("in.parquet", "p.jsonl"), ("in.jsonl", "j.jsonl"), ("in.parquet", "out.parquet")):
        score(ScoreJob(str(place / "gpt2"), str(tmp_path / input), str(tmp_path / output)))
    assert (tmp_path / "p.jsonl").read_bytes() == (tmp_path / "j.jsonl").read_bytes()
    found = pq.read_table(tmp_path / "out.parquet").to_pylist()
    for row, line in zip(found, lines_of(tmp_path / "p.jsonl"), strict=True):
        assert (row["id"], row["logprob"], row["is_greedy"]) == (line["id"], line["logprob"], line["is_greedy"])
        assert np.array(row["token_logprobs"], np.float32).tolist() == np.array(line["token_logprobs"], "f4").tolist()
        assert row["token_ids"] == line["token_ids"] and row["cut"] is row["error"] is None
    (tmp_path / "in.txt").write_text("one text\n\nanother\n")
    score(ScoreJob(str(place / "gpt2"), str(tmp_path / "in.txt"), str(tmp_path / "t.jsonl")))
    assert [line["id"] for line in lines_of(tmp_path / "t.jsonl")] == [1, 3]


@pytest.mark.parametrize("name", ["in.jsonl", "in.csv", "in.parquet"])
def test_a_named_field_is_scored_and_others_pass_through(place, tmp_path, name):
    """Alone, without the context beside it. One record is bad, and one has the id of another shard's: they keep their
    fields, too."""
    rows = [{"id": f"s{i}", "answer": f"answer {i}", "label": f"l{i}", "context": "data"} for i in range(9)]
    rows[2]["answer"], rows[8]["id"] = "", "s0"
    path = tmp_path / name
    if name == "in.parquet":
        pa = pytest.importorskip("pyarrow")
        pytest.importorskip("pyarrow.parquet").write_table(pa.Table.from_pylist(rows), path)
    elif name == "in.csv":
        path.write_text("id,answer,label,context\n" + "".join(",".join(row.values()) + "\n" for row in rows))
    else:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"content_field": "answer", "keep": (("label", "gold"), ("context", "context"))}
    size = {} if name == "in.parquet" else {"shard_size": 60}
    report = score(job_of(place, tmp_path / "out.jsonl", path, size, **options))
    found = lines_of(tmp_path / "out.jsonl")
    assert report.errors == 2 and (report.job["shards"] > 2 or not size)
    names = ["id", "gold", "context"]
    assert [*found[0]] == [*names, "logprob", "is_greedy", "token_ids", "token_logprobs"]
    assert [*found[8]] == [*found[2]] == [*names, "error"] and found[2]["error"]["field"] == "answer"
    assert [(line["gold"], line["context"]) for line in found] == [(f"l{i}", "data") for i in range(9)]
    wanted = load(place / "gpt2").score([row["answer"] for row in rows[3:8]])
    assert [line["logprob"] for line in found[3:8]] == [each.logprob for each in wanted]


def test_kept_columns_of_a_table(place, tmp_path):
    """With the names that the completions of generate have, too: many sets of questions have `choices`."""
    pq = pytest.importorskip("pyarrow.parquet")
    rows = [{"id": i, "text": "a", "choices": ["a", "b"], "custom_id": i, "logprobs": [0.5]} for i in range(4)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    keep = tuple((name, name) for name in ("choices", "custom_id", "logprobs"))
    score(job_of(place, tmp_path / "out.parquet", tmp_path / "in.jsonl", keep=keep))
    found = pq.read_table(tmp_path / "out.parquet").to_pylist()
    kept = ("id", "choices", "custom_id", "logprobs")
    assert [[row[name] for name in kept] for row in found] == [[row[name] for name in kept] for row in rows]
    assert all(row["token_logprobs"] for row in found)


def test_long_texts_are_cut_where_that_is_wanted(place, tmp_path):
    (tmp_path / "in.jsonl").write_text(
        json.dumps({"text": LONG}) + "\n" + json.dumps({"context": LONG, "continuation": " b"}) + "\n"
    )
    said = []
    job = ScoreJob(str(place / "gpt2"), str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), truncate=True)
    report = score(job, said.append)
    alone, pair = lines_of(tmp_path / "out.jsonl")
    assert len(alone["token_ids"]) == len(LONG) and "cut" not in alone
    assert pair["cut"] == len(LONG) + 1 - 64 and len(pair["token_ids"]) == 2 and report.cut == 2
    assert "2 of 2 texts are longer than the model's context of 64 tokens and were cut" in said


@pytest.mark.parametrize(("change", "says"), [
    ({"output": "out.txt"}, "cannot hold log-probabilities"),
    ({"output": "out.bin"}, "cannot hold log-probabilities"),
    ({"input": "in.bin"}, "a .bin file holds token ids of texts of one length"),
    ({"prefix_token": 257}, "--prefix-token is 257; the model's tokens are 0 to 256"),
    ({"settings": {"device": "cuda"}}, ""),
    ({"settings": {"rungs": {"sample": "cpu.buckets"}}}, "it has no effect: score runs"),
    ({"settings": {"without": frozenset({"kv-cache"})}}, "it has no effect on score"),
])  # fmt: skip
def test_what_cannot_be_done_is_refused_before_the_work(place, tmp_path, change, says):
    (place / "in.bin").write_bytes(bytes(64))
    change = {"output": "out.jsonl", **change}
    with pytest.raises((UsageError, ResourceError)) as error:
        score(job_of(place, tmp_path / change.pop("output"), **change))
    assert says in str(error.value) and os.listdir(tmp_path) == []


def test_too_many_errors_end_the_job(place, tmp_path):
    with pytest.raises(InternalError, match="are bad and 2 are allowed"):
        score(job_of(place, tmp_path / "out.jsonl", settings={"max_errors": 2}))
    with pytest.raises(ResourceError, match="Allow more memory"):
        score(job_of(place, tmp_path / "other.jsonl", batch_memory=100))


def test_the_plan_is_that_of_the_run_and_writes_nothing(place, tmp_path, monkeypatch, capsys):
    job = job_of(place, tmp_path / "out.jsonl", settings={"shard_size": 700})
    found = plan(job)
    assert os.listdir(tmp_path) == [] and found.begun.state == "new"
    report = score(job)
    assert found.begun.cut.shards == report.job["shards"] and found.records == report.records
    assert found.figures["tokens_scored"] == pytest.approx(report.tokens, rel=0.05) and found.figures["bad"] == 9
    assert plan(job).begun.state == "finished"
    shutil.rmtree(tmp_path / "out.jsonl.job")
    with pytest.raises(SystemExit) as caught:
        main(
            ["plan", "score", "-p", str(place / "gpt2"), "-i", str(place / "in.jsonl"), "-o", str(tmp_path / "x.jsonl")]
        )
    assert caught.value.code in (0, None)
    text = capsys.readouterr().out
    assert "158 texts, " in text and "of them scored; about 9 bad texts" in text and "expected peak" in text


def test_a_mask_beside_tokens_is_an_error_and_token_ids_may_stand_in_a_table(place, tmp_path):
    """The mask was ignored, so that padding was scored. In a table `continuation_token_ids` was no list."""
    (tmp_path / "in.jsonl").write_text('{"tokens": [1, 2], "attention_mask": [1, 1]}\n'
                                       '{"tokens": [1, 2, 0], "attention_mask": [1, 1, 0]}\n')  # fmt: skip
    score(job_of(place, tmp_path / "out.jsonl", tmp_path / "in.jsonl"))
    good, bad = lines_of(tmp_path / "out.jsonl")
    assert good["token_ids"] == [1, 2] and bad["error"]["field"] == "attention_mask"
    (tmp_path / "in.csv").write_text('prompt_token_ids,continuation_token_ids\n"[1, 2]","[3]"\n')
    score(job_of(place, tmp_path / "csv.jsonl", tmp_path / "in.csv"))
    assert lines_of(tmp_path / "csv.jsonl")[0]["token_ids"] == [3]


def test_a_token_that_the_tokenizer_puts_before_texts_is_not_scored(place, tmp_path):
    """As OPT's does. It was scored as the first token of a text alone, and of a continuation without a context."""
    plain, folder = load(place / "gpt2"), tmp_path / "gpt2"
    shutil.copytree(place / "gpt2", folder)
    fields = json.loads((folder / "tokenizer.json").read_text())

    def putting(token: int) -> LanguageModel:
        first = {"SpecialToken": {"id": "S", "type_id": 0}}
        texts = [{"Sequence": {"id": name, "type_id": 0}} for name in "AB"]
        special = {"S": {"id": "S", "ids": [token], "tokens": ["S"]}}
        fields["post_processor"] = {"type": "TemplateProcessing", "single": [first, texts[0]],
                                    "pair": [first, *texts], "special_tokens": special}  # fmt: skip
        (folder / "tokenizer.json").write_text(json.dumps(fields))
        return load(folder)

    a, b = plain.tokenizer.encode("a"), plain.tokenizer.encode("b")
    texts = ["ab", ("", "ab"), (" ", "ab"), ([], "ab"), ("", b)]
    model = putting(256)  # the end-of-text token
    assert model.tokenizer.encode("ab") == [256, *a, *b]
    assert list(model.score(texts)) == list(plain.score(texts))
    assert list(model.score([("a", "b"), (a, "b")])) == list(plain.score([([256, *a], b), (a, b)]))
    model = putting(7)
    assert list(model.score(texts)) == list(plain.score(texts, prefix_token=7))
    assert list(model.score(texts, prefix_token=256)) == list(plain.score(texts))
    (tmp_path / "in.txt").write_text("ab\n")
    score(ScoreJob(str(folder), str(tmp_path / "in.txt"), str(tmp_path / "out.jsonl")))
    (wanted,) = plain.score(["ab"], prefix_token=7)
    assert lines_of(tmp_path / "out.jsonl")[0]["logprob"] == wanted.logprob


def test_a_table_gives_the_lines_of_json(place, tmp_path):
    pairs = [{"id": f"r{i}", "context": f"question {i},", "continuation": f' "{i}"'} for i in range(6)]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(pair) + "\n" for pair in pairs))
    quoted = ['"' + '","'.join(value.replace('"', '""') for value in pair.values()) + '"' for pair in pairs]
    (tmp_path / "in.csv").write_text("\n".join(["id,context,continuation", *quoted]) + "\n")
    found = []
    for name in ("in.jsonl", "in.csv"):
        score(job_of(place, tmp_path / f"{name}.out.jsonl", tmp_path / name))
        found.append(lines_of(tmp_path / f"{name}.out.jsonl"))
    assert found[0] == found[1] and all("logprob" in line for line in found[0])
