"""Every option of a job verb reaches its job: none is ignored. The options of the verbs on records are the same."""

from dataclasses import fields, replace
from importlib import import_module

import pytest

from tilewright.cli import main

JOBS = ("generate", "score", "classify", "embed", "draw", "convolve")
RECORDS = JOBS[:4]
HERE = {  # another value for options whose default is not a switch that is off
    "model": "n", "input": "other.jsonl", "output": "other.jsonl", "count": 3, "device": "auto", "dtype": "bfloat16",
    "threads": 1, "workers": 1, "engine": "local", "shared_files": "no", "shard_size": "7", "max_errors": 3,
    "grace": 1.5, "watchdog": 2.5, "trace": "t.json", "job_dir": "state", "without": ["kv-cache"],
    "part": "0/2", "validate": "v.jsonl",
    "content_field": "review", "keep": ["label,meta=tags"], "batch_size": 5, "max_batch_memory": "3M",
    "table_memory": "3M", "tolerance": 0.25, "dimensions": 7, "prompt_name": "query", "prompt": "a: ", "truncate": True,
    "prefix_token": 4, "image": "i.png", "seed": 9, "kernel": "box:5", "mode": "wrap", "cval": 1.5, "memory": "1G",
    "max_tokens": 5, "min_tokens": 2, "temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.25, "samples": 2,
    "repetition_penalty": 1.25, "presence_penalty": 0.5, "frequency_penalty": 0.5, "bad_words": ["x"], "stop": ["x"],
    "stop_token_ids": [3], "logprobs": 2,
}  # fmt: skip
RUNGS = {"generate": "matmul", "score": "matmul", "classify": "matmul", "embed": "matmul", "draw": "matmul"}


def module_of(verb):
    return import_module(f"tilewright.cli.{verb}")


def plain(verb):
    """Its options, with nothing given but what it needs."""
    needed = {"model": "m", "input": "in.jsonl", "output": "out.jsonl", "device": "cpu"}
    if verb == "convolve":
        needed["kernel"] = "box:3"
        del needed["model"]
    return module_of(verb).Options(**needed)


@pytest.mark.parametrize("verb", JOBS)
def test_every_option_reaches_the_job(verb):
    options, job_of, ignored = plain(verb), module_of(verb).job_of, []
    for field in fields(options):
        values = {field.name: HERE.get(field.name, True)}
        if field.name == "rung":
            values = {"rung": [f"{RUNGS[verb]}=cpu.packed" if verb in RUNGS else "conv3d=cpu.naive"]}
        elif field.name == "dtype" and verb == "convolve":
            values = {"dtype": "float64"}
        elif field.name in ("check", "answers"):
            values = {"check": True, "answers": "a.jsonl"}
        elif field.name == "seed" and verb == "draw":
            values = {"seed": 9, "input": None, "count": 3}
        if field.name in ("config", "json") or (verb in ("draw", "convolve") and field.name == "max_errors"):
            continue  # a file of options; the form of what is told; refused
        if job_of(replace(options, **values)) == job_of(options):
            ignored.append(field.name)
    assert not ignored


@pytest.mark.parametrize("verb", RECORDS)
def test_fields_are_named_alike(verb):
    job = module_of(verb).job_of(replace(plain(verb), content_field="review", keep=["label, meta=tags", "a"]))
    assert (job.content_field, job.keep) == ("review", (("label", "label"), ("meta", "tags"), ("a", "a")))


@pytest.mark.parametrize("verb", RECORDS)
def test_records_without_fields_are_refused(verb, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "in.txt").write_text("a\n")
    flag = "--prompt-field" if verb == "generate" else "--text-field"
    for option in (flag, "--keep"):
        with pytest.raises(SystemExit) as caught:
            main([verb, "--model", "poet", "-i", "in.txt", "-o", "out.jsonl", option, "review"])
        assert caught.value.code == 2
        assert f"{option} names 'review', and the input has no fields" in " ".join(capsys.readouterr().err.split())
