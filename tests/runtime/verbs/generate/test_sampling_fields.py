"""Every documented sampling field of vLLM, OpenAI and transformers, in every kind of input: the answer changes as
documented, or the record is refused by name. Nothing that would change an answer is ignored in silence."""

import json
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
from gpt2_models import save
from tilewright.errors import UsageError
from tilewright.formats import sampling_fields as table
from tilewright.formats.sampling_fields import HONOURED, is_known
from tilewright.generation.engine import Engine
from tilewright.generation.sampling import SamplingParams
from tilewright.generation.sequences import Answers
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.verbs import streams
from tilewright.runtime.verbs.generate import GenerateJob, generate
from tilewright.runtime.verbs.generate.task import ADDED, task_of

VLLM = """n presence_penalty frequency_penalty repetition_penalty temperature top_p top_k min_p seed stop stop_token_ids
ignore_eos max_tokens min_tokens logprobs prompt_logprobs prompt_logprob_token_ids prompt_logprob_start
logprob_token_ids flat_logprobs detokenize skip_special_tokens spaces_between_special_tokens
include_stop_str_in_output output_kind stream_interval skip_clone output_text_buffer_length structured_outputs
guided_decoding logit_bias allowed_token_ids extra_args bad_words skip_reading_prefix_cache
thinking_token_budget repetition_detection routed_experts_prompt_start trace_decode_token_ids
truncate_prompt_tokens truncation_side logits_processors best_of use_beam_search length_penalty early_stopping
watermarking beam_width"""
COMPLETIONS = """model prompt echo frequency_penalty logit_bias logprobs max_tokens n presence_penalty seed stop stream
stream_options suffix temperature top_p user use_beam_search add_special_tokens response_format priority
request_id session_id return_tokens_as_token_ids return_token_ids return_token_offsets return_mm_kwargs
cache_salt kv_transfer_params ec_transfer_params vllm_xargs prompt_embeds guided_json guided_regex guided_choice
guided_grammar guided_decoding_backend guided_whitespace_pattern structural_tag"""
CHAT = """messages audio function_call functions max_completion_tokens metadata modalities parallel_tool_calls
prediction prompt_cache_key prompt_cache_retention reasoning_effort safety_identifier service_tier
store tool_choice tools top_logprobs verbosity web_search_options chat_template chat_template_kwargs
documents add_generation_prompt continue_final_message include_reasoning mm_processor_kwargs"""
PROMPT = {"model", "prompt", "messages"}  # not of the table

# parameter -> (a value that changes the answer of the job below, wrong ones). The answers are checked one by one below.
HONOURED_VALUES = {
    "n": (2, [0, 1.5, "2", True, 2**63]),
    "temperature": (1.5, [-1, 3, "hot", True, 2**63]),
    "top_p": (1e-9, [0, 1.1, "x", 2**63]),
    "top_k": (1, [-2, 1.5, "x", True]),
    "min_p": (1.0, [-1, 2, "x", 2**64]),
    "repetition_penalty": (1e6, [0, -1, "x", 1e-300, 1e300, True]),
    "presence_penalty": (-2, [2.1, -3, "x", True, 2**64]),
    "frequency_penalty": (-2, [2.1, -3, "x", True, 2**64]),
    "logit_bias": ({"65": 100}, [{"x": 1}, {"65": 101}, {"257": 1}, {"65": "1"}, 7, {str(2**64): 1}]),
    "bad_words": (["A"], [[""], 7, [7], [["a"]], ["x" * 70_000]]),
    "allowed_token_ids": ([65], [[], [257], [-1], "65", [1.5], [2**64]]),
    "suppress_tokens": (list(range(100, 257)), [[257], [-1], "65", [1.5], [2**64]]),
    "no_repeat_ngram_size": (1, [-1, 1.5, "x", True]),
    "seed": (5, [2**64, 1.5, "x", True]),
    "stop": ("A", ["", [""], 7, [7], list(map(str, range(2000)))]),
    "stop_token_ids": ([32], [[257], [-1], "65", [1.5], [2**64]]),
    "include_stop_str_in_output": (True, [1, "yes"]),
    "ignore_eos": (True, [1, "yes"]),
    "max_tokens": (1, [0, -1, 1.5, "x", True]),
    "min_tokens": (9, [-1, 1.5, "x", 10_000]),
    "logprobs": (2, [-1, 21, "x", True, 2**64]),
}
WRONG = {  # of refused fields: one that changes the answer, or would
    **dict.fromkeys(table.REFUSED, 7), **dict.fromkeys(table.REFUSED_IN_BODY, 7), "best_of": 3, "suffix": "x",
    "stream": True, "echo": True, "detokenize": False, "skip_special_tokens": False,
    "response_format": {"type": "json_object"}, "guided_regex": "a+", "length_penalty": 0.5, "typical_p": 0.3,
    "num_beams": 4, "logits_processors": ["x"],
    "options": {"num_predict": 3}, "parameters": {"top_k": 1},
    "modalities": ["audio"], "reasoning_effort": "high", "tools": [{"type": "function"}],
}  # fmt: skip
A = {"logit_bias": {"32": 100}}  # token 32 is "A", 256 end-of-text: they come at once
MEETS = {  # parameter -> other fields, beside which it changes the answer
    "bad_words": A, "stop": A, "stop_token_ids": A, "include_stop_str_in_output": A | {"stop": "A"},
    "ignore_eos": {"logit_bias": {"256": 100}}, "min_tokens": {"logit_bias": {"256": 100}},
}  # fmt: skip
JOB = SamplingParams(max_tokens=12, temperature=1, seed=3)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    path = tmp_path_factory.mktemp("fields") / "m"
    save(path)
    return path


def run(model, lines, kind, folder) -> list[dict]:
    """What the job answers, as .jsonl lines, whatever the kind of input: "jsonl", "openai" or "parquet"."""
    job = job_of(model, lines, kind, folder)
    generate(job)
    return [_plain(json.loads(line)) for line in Path(job.output).read_text().split("\n") if line]


def job_of(model, lines, kind, folder) -> GenerateJob:
    """The job, its input written."""
    name, target = folder / f"in.{'parquet' if kind == 'parquet' else 'jsonl'}", folder / "out.jsonl"
    if kind == "parquet":
        import pyarrow as pa
        import pyarrow.parquet as pq

        names = list(dict.fromkeys(field for line in lines for field in line))
        pq.write_table(pa.table({name: [line.get(name) for line in lines] for name in names}), name, row_group_size=30)
    else:
        wrapped = [{"custom_id": line["id"], "body": {k: v for k, v in line.items() if k != "id"}} for line in lines]
        name.write_text("".join(json.dumps(each) + "\n" for each in (lines if kind == "jsonl" else wrapped)))
    return GenerateJob(str(model), str(name), str(target), JOB, settings=Settings(restart=True))


def _plain(answer: dict) -> dict:
    """An answer to an OpenAI line as one to any other, without ids."""
    if "custom_id" not in answer:
        return {name: value for name, value in answer.items() if name != "id"}
    if answer["error"]:
        return {"error": {"field": answer["error"]["param"] or "", "message": answer["error"]["message"]}}
    choices = answer["response"]["body"]["choices"]
    plain = [{k: v for k, v in one.items() if v is not None and (k != "index" or len(choices) > 1)} for one in choices]
    for one in plain:
        if "logprobs" in one:
            tops = one["logprobs"]["top_logprobs"]
            one["logprobs"] = [{t.removeprefix("token_id:"): x for t, x in top.items()} for top in tops]
    return plain[0] if len(plain) == 1 else {"choices": plain}


def lines_of(cases) -> list[dict]:
    """One line a case; of all the same prompt, and, as random numbers belong to an id, the same seed: that of a
    record's id would differ."""
    return [{"id": f"r{i}", "prompt_token_ids": [72, 105], **case} for i, case in enumerate(cases)]


def test_the_table_has_every_documented_name():
    missing = [name for name in {*f"{VLLM} {COMPLETIONS} {CHAT}".split()} - PROMPT if not is_known(name, body=True)]
    assert not missing, f"{len(missing)} names: {sorted(missing)}"
    assert {*SamplingParams.__dataclass_fields__} == {*table.PARAMETERS} == {*HONOURED_VALUES}
    parts = [*HONOURED], [*table.HARMLESS], [*table.REFUSED], [*table.HARMLESS_IN_BODY], [*table.REFUSED_IN_BODY]
    names = [name for part in parts for name in part]
    assert len(names) == len({*names}) > 150


def test_the_table_has_every_name_of_the_transformers_that_is_installed():
    config = pytest.importorskip("transformers").GenerationConfig()
    missing = [name for name in config.to_dict() if not is_known(name, body=False)]
    assert not missing, f"{len(missing)} names: {sorted(missing)}"


KINDS = ["jsonl", "openai", "parquet"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_refused_field_is_refused_by_name_and_its_neutral_value_taken(model, tmp_path, kind):
    """Parquet's columns have one type each, so that each refused field has a file of its own there: a sample."""
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    refused = table.REFUSED | (table.REFUSED_IN_BODY if kind == "openai" else {})
    if kind == "parquet":
        refused = {name: refused[name] for name in ("typical_p", "num_beams", "guided_regex", "response_format")}
        for name in refused:
            plain, wrong = run(model, [{"id": "r", "prompt_token_ids": [72]}, {"id": "q", "prompt_token_ids": [72],
                                       name: WRONG[name]}], kind, tmp_path)  # fmt: skip
            assert "error" not in plain and wrong["error"]["field"] == name, name
        return
    cases = [{name: WRONG[name]} for name in refused]
    for (name, _), answer in zip(refused.items(), run(model, lines_of(cases), kind, tmp_path), strict=True):
        field = f"body.{name}" if kind == "openai" else name
        assert answer["error"]["field"] == field and "not supported" in answer["error"]["message"], (name, answer)
    neutral = [{name: value} for name, values in refused.items() for value in (None, *values)]
    harmless = [{name: value} for name in table.HARMLESS for value in (7, "x", {"a": 1})]
    found = run(model, lines_of([*neutral, *harmless]), kind, tmp_path)
    assert not [case for case, one in zip([*neutral, *harmless], found, strict=True) if "error" in one]


def test_words_of_servers_are_data_in_plain_records(model, tmp_path):
    names = [*table.REFUSED_IN_BODY, *table.HARMLESS_IN_BODY]
    assert not [a for a in run(model, lines_of([{name: [7]} for name in names]), "jsonl", tmp_path) if "error" in a]


def spellings():
    """(field, parameter)."""
    yield from ((name, name) for name in HONOURED_VALUES)
    yield from table.ALIASES.items()


@pytest.mark.parametrize("kind", KINDS)
def test_a_wrong_value_is_refused_by_name(model, tmp_path, kind):
    cases = [{name: value} for name, parameter in spellings() for value in HONOURED_VALUES[parameter][1]]
    if kind == "parquet":  # a column has one type: numbers
        pytest.importorskip("pyarrow")
        cases = [
            {name: wrong} for name, wrong in {"top_p": 7.0, "max_completion_tokens": 0, "logprobs": 21, "n": -1}.items()
        ]
    for case, answer in zip(cases, run(model, lines_of(cases), kind, tmp_path), strict=True):
        (name,) = case
        assert answer.get("error", {}).get("field", "").removeprefix("body.") == name, (case, answer)


@pytest.mark.parametrize("kind", KINDS)
def test_an_honoured_field_changes_the_answer_and_is_what_python_answers(model, tmp_path, kind):
    """By each of its names, against the same record without it."""
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    beside = [MEETS.get(parameter, {}) for _, parameter in spellings()] + [{}]
    cases = [{name: HONOURED_VALUES[parameter][0]} for name, parameter in spellings()] + [{"do_sample": False}]
    lines = lines_of([case | more for case, more in zip(cases, beside, strict=True)])
    found, plain = run(model, lines, kind, tmp_path), run(model, lines_of(beside), kind, tmp_path)
    python = tw.load(str(model))
    for case, line, answer, before in zip(cases, lines, found, plain, strict=True):
        fields = {name: value for name, value in line.items() if name not in ("id", "prompt_token_ids")}
        (output,) = python.generate([line["prompt_token_ids"]], JOB.merged(fields), ids=[line["id"]])
        wanted = [(one.text, one.token_ids, one.finish_reason) for one in output.outputs]
        answers = answer.get("choices", [answer])
        assert [(a.get("text"), a.get("token_ids"), a.get("finish_reason")) for a in answers] == wanted, (line, answer)
        assert answer != before and "error" not in before, (case, before)


def test_python_refuses_the_same_names():
    for name, value in WRONG.items():
        with pytest.raises(UsageError, match=f"^{name} is .*not supported"):
            SamplingParams.of(**{name: value})
    for name, values in (table.REFUSED | table.REFUSED_IN_BODY).items():
        assert all(SamplingParams.of(**{name: value}) == SamplingParams() for value in (None, *values)), name
    assert all(SamplingParams.of(**{name: 7}) == SamplingParams() for name in table.HARMLESS)


def test_the_largest_values_end_no_job(model, tmp_path):
    """Counts of any size are taken; an answer that would take gigabytes is the record's error."""
    huge = [
        {name: value, "ignore_eos": True} for name in ("top_k", "max_tokens") for value in (2**31, 2**63, 2**64 - 1)
    ]
    large = [{"n": 16384, "logprobs": 20}, {"n": 16384, "max_tokens": 2**63, "logprobs": 1}]
    large += [{"num_return_sequences": 9999, "logprobs": 9}]
    *good, first, second, third = run(model, lines_of([*huge, *large]), "jsonl", tmp_path)
    assert [answer["finish_reason"] for answer in good] == ["length"] * 6
    assert [len(answer["token_ids"]) for answer in good] == [12] * 3 + [62] * 3, "the context has 64 positions"
    assert [one["error"]["field"] for one in (first, second, third)] == ["n", "n", "num_return_sequences"]
    assert "n * max_tokens * (logprobs + 1) is 16,384 * 12 * 21 = 4,128,768; at most" in first["error"]["message"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("workers", [None, 2])
def test_fields_that_need_a_temperature_are_told_once(model, tmp_path, kind, workers):
    """With how many prompts have them, and the first of these; also of those that another run has done."""
    idle = [{"seed": 4}, {"top_p": 0.5}, {"seed": 1, "top_k": 3}, {"min_p": 0.2, "temperature": 0}]
    others = [{}, {"top_p": 1.0}, {"top_k": -1}, {"seed": 4, "temperature": 1}, {"top_p": 7}, {"max_tokens": 2}]
    cases = [*others, *idle, *others, *idle] * 5
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    job, said = job_of(model, lines_of(cases), kind, tmp_path), []
    job.params = SamplingParams(max_tokens=2, temperature=0)
    job.settings = Settings(workers=workers, shard_size=None if kind == "parquet" else 1000)
    for _ in range(2):
        said.clear()
        report = generate(job, said.append)
        told = [line for line in said if "temperature" in line]
        what = "seed, top_k, top_p or min_p of 40 of 100 prompts, the first in line 7, had no effect"
        assert told == [f"{what}: at temperature 0 the likeliest token is taken"] and report.undrawn == 40
    assert report.computed == 0 < report.job["shards"], "the second run found all shards"
    job.params, job.settings = JOB, Settings(restart=True)
    said.clear()
    assert generate(job, said.append).undrawn == 10, "those that ask for temperature 0 themselves"


def test_jobs_that_were_begun_before_go_on(model, tmp_path):
    """A manifest names a new parameter only where it is used; another value of it is refused."""
    (tmp_path / "in.jsonl").write_text('{"prompt": "a"}\n')
    job = GenerateJob(str(model), str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), JOB)
    assert not [name for name in ADDED for field in task_of(job).fingerprint() if field == f"sampling.{name}"]
    new = {"presence_penalty": 1, "frequency_penalty": 1, "logit_bias": {5: 1}, "bad_words": "x",
           "allowed_token_ids": [1], "suppress_tokens": [2], "no_repeat_ngram_size": 3,
           "include_stop_str_in_output": True}  # fmt: skip
    assert {*new} == {*ADDED}
    generate(job)
    for name, value in new.items():
        job.params = JOB.merged({name: value})
        with pytest.raises(UsageError, match=f"begun with other settings or inputs: .*sampling.{name} was not there"):
            generate(job)


def test_how_much_is_held_and_written_at_a_time_changes_no_answer(model, tmp_path, monkeypatch):
    cases = [{"logprobs": i % 3, "n": 1 + i % 4} for i in range(30)]
    wanted, most = run(model, lines_of(cases), "jsonl", tmp_path), []
    monkeypatch.setattr(Engine, "most_pending", 3 * SamplingParams(max_tokens=12, logprobs=2, n=4).answer_bytes(64))
    monkeypatch.setattr(streams, "WRITTEN_VALUES", 1)
    expect = Answers.expect
    monkeypatch.setattr(Answers, "expect", lambda self, *what: (expect(self, *what), most.append(len(self.sizes)))[0])
    assert run(model, lines_of(cases), "jsonl", tmp_path) == wanted
    assert len(most) >= 30 and max(most) < 20, "requests are read when answers were given out"


VALUES = [None, True, False, 0, 1, -1, 2, 0.5, -0.5, 1e300, 2**31, 2**63, 2**64 - 1, "", "A", "\u00e9", [], [1], ["A"],
          [[1]], {}, {"1": 1}, {"a": {"b": 1}}, [None], list(range(300))]  # fmt: skip


@pytest.mark.long
@pytest.mark.parametrize("kind", ["jsonl", "openai"])
def test_any_fields_with_any_values_are_taken_or_refused_by_name(model, tmp_path, kind):
    """3,000 records of one to three fields with values of any kind: an error names a field that the record gave, and
    a record without an error answers as Python does, in company as alone."""
    rng = np.random.default_rng(11)
    names = [*HONOURED, *table.HARMLESS, *table.REFUSED]
    cases = []
    for _ in range(3000):
        some = rng.choice(names, rng.integers(1, 4), replace=False)
        cases.append({str(name): VALUES[rng.integers(len(VALUES))] for name in some})
    python, good = tw.load(str(model)), 0
    found = run(model, lines_of(cases), kind, tmp_path)
    for i, (case, answer) in enumerate(zip(cases, found, strict=True)):
        if "error" in answer:
            said = answer["error"]["field"].removeprefix("body.")
            told = said in case or any(name in answer["error"]["message"] for name in case)
            assert told or "no token to choose" in answer["error"]["message"], (case, answer)
            continue
        good += 1
        (output,) = python.generate([[72, 105]], JOB.merged(case), ids=[f"r{i}"])
        assert [one["token_ids"] for one in answer.get("choices", [answer])] == [o.token_ids for o in output.outputs]
    assert 300 < good < 2700, f"{good} of {len(cases)} records were good"


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_model_is_called_with_beside_token_ids(model, tmp_path, kind):
    """As a tokenizer of transformers writes it: taken where it changes nothing, else refused."""
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    good = {"attention_mask": [1, 1], "token_type_ids": [0, 0], "position_ids": [0, 1]}
    wrong = {"attention_mask": [1, 0], "token_type_ids": [0, 1], "position_ids": [1, 2]}
    cases = [good, *(good | {name: value} for name, value in wrong.items())]
    plain, *refused = run(model, lines_of(cases), kind, tmp_path)
    assert "error" not in plain
    assert [answer["error"]["field"].removeprefix("body.") for answer in refused] == [*wrong]
    assert refused[0]["error"]["message"].endswith(
        "is [1, 0]; this is not supported: leave out the tokens with 0, and attention_mask"
    )


def test_objects_of_sampling_fields_are_refused_and_other_objects_are_data(model, tmp_path):
    cases = [{"parameters": {"lr": 1}}, {"options": ["a"]}, {"parameters": {"temperature": 0}}, {"messages": []}]
    *data, object, chat = run(model, lines_of(cases), "jsonl", tmp_path)
    assert not [answer for answer in data if "error" in answer] and object["error"]["field"] == "parameters"
    assert chat["error"]["message"] == "is given together with messages; one of them is wanted"
