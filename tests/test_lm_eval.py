"""tilewright as a model of lm-evaluation-harness: the figures of the harness's own backend, and the same bits for every
batch size."""

import json
import subprocess
import sys

import numpy as np
import pytest

from gpt2_models import byte_tokenizer, peer
from tilewright.errors import UsageError

pytestmark = [pytest.mark.long, pytest.mark.filterwarnings("ignore")]  # the harness and transformers warn of much
SIZES = {"vocab_size": 257, "n_positions": 96, "n_embd": 48, "n_layer": 2, "n_head": 3}
WORDS = ("the cat", " sat on", " a mat", " and", " so", " did", " my lord", ", I", " will", " not")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """transformers' GPT-2 as its users save it, with a tokenizer whose tokens are bytes."""
    pytest.importorskip("lm_eval")
    path = tmp_path_factory.mktemp("eval") / "gpt2"
    peer(**SIZES, bos_token_id=256, eos_token_id=256).save_pretrained(path)
    byte_tokenizer().save(str(path / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>", "bos_token": "<|endoftext|>"}
    (path / "tokenizer_config.json").write_text(json.dumps(named))
    return path


@pytest.fixture(scope="module")
def theirs(place):
    """The harness's own backend, `--model hf`."""
    pytest.importorskip("accelerate")
    from lm_eval.models.huggingface import HFLM

    return HFLM(pretrained=str(place), device="cpu", dtype="float32", batch_size=8)


def ours(place, **options):
    from tilewright.lm_eval import TilewrightLM

    return TilewrightLM(str(place), **options)


def instances(kind, arguments):
    from lm_eval.api.instance import Instance

    return [Instance(kind, {}, given, i) for i, given in enumerate(arguments)]


def text(rng, most: int, least: int = 1) -> str:
    return "".join(WORDS[i] for i in rng.integers(0, len(WORDS), int(rng.integers(least, most + 1))))


def pairs(rng) -> list[tuple[str, str]]:
    """Questions with several answers, of one token too, empty contexts, spaces at the end, contexts too long."""
    found = []
    for _ in range(12):
        context = text(rng, 9)
        found += [(context, " " + text(rng, 3)) for _ in range(4)]
        found += [(context, letter) for letter in "ABCD"]
    return [*found, ("", "the cat"), ("the cat ", "sat"), (text(rng, 40, 30), text(rng, 3))]


def test_every_log_likelihood_is_that_of_the_hf_backend(place, theirs, rng):
    requests = instances("loglikelihood", pairs(rng))
    wanted = theirs.loglikelihood(requests, disable_tqdm=True)
    found = ours(place).loglikelihood(requests, disable_tqdm=True)
    assert max(abs(a - b) for (a, _), (b, _) in zip(found, wanted, strict=True)) <= 1e-4
    assert [greedy for _, greedy in found] == [greedy for _, greedy in wanted]


def test_batch_size_and_order_change_no_bit(place, rng):
    given = pairs(rng)
    order = rng.permutation(len(given))
    answers = []
    for size, threads in ((1, 1), (8, 2), (64, 2)):
        found = ours(place, batch_size=size, threads=threads).loglikelihood(instances("loglikelihood", given))
        answers.append(np.array([value for value, _ in found]).tobytes())
    mixed = ours(place).loglikelihood(instances("loglikelihood", [given[i] for i in order]))
    back = np.empty(len(given))
    back[order] = [value for value, _ in mixed]
    assert {*answers, back.tobytes()} == {answers[0]}


def test_whole_texts_are_scored_in_the_windows_of_the_hf_backend(place, theirs, rng):
    requests = instances("loglikelihood_rolling", [(text(rng, 60),) for _ in range(8)])
    assert max(len(request.args[0]) for request in requests) > 2 * SIZES["n_positions"]
    wanted, found = (model.loglikelihood_rolling(requests, disable_tqdm=True) for model in (theirs, ours(place)))
    assert np.abs(np.array(found) - wanted).max() <= 1e-4 * 60


def test_greedy_texts_are_those_of_the_hf_backend(place, theirs, rng):
    arguments = [(text(rng, 8), {"until": ["\n", "q"], "max_gen_toks": 12, "do_sample": False}) for _ in range(6)]
    requests = instances("generate_until", arguments)
    assert ours(place).generate_until(requests, disable_tqdm=True) == theirs.generate_until(requests, disable_tqdm=True)


def test_prompts_that_lose_their_first_tokens_are_told(place, caplog):
    """They were cut in silence."""
    given = [("the cat", {"max_gen_toks": 5}), ("so " * 90, {"max_gen_toks": 5})]
    ours(place).generate_until(instances("generate_until", given), disable_tqdm=True)
    said = "1 of 2 contexts are longer than the 91 tokens that the model can read: their first tokens are not read"
    assert said in caplog.text


def test_a_task_gives_the_figures_of_the_hf_backend(place, theirs, rng, tmp_path):
    import lm_eval

    lines = [{"question": text(rng, 6), "choices": [" a", " b cat", " so"], "gold": int(rng.integers(0, 3))}
             for _ in range(12)]  # fmt: skip
    (tmp_path / "test.json").write_text("".join(json.dumps(line) + "\n" for line in lines))
    task = {"task": "tiny", "dataset_path": "json", "output_type": "multiple_choice", "test_split": "test",
            "dataset_kwargs": {"data_files": {"test": str(tmp_path / "test.json")}, "cache_dir": str(tmp_path)},
            "doc_to_text": "{{question}}", "doc_to_choice": "{{choices}}", "doc_to_target": "{{gold}}",
            "metric_list": [{"metric": "acc"}, {"metric": "acc_norm"}]}  # fmt: skip
    results = [lm_eval.simple_evaluate(model=model, tasks=[dict(task)], bootstrap_iters=0)["results"]["tiny"]
               for model in (theirs, ours(place))]  # fmt: skip
    assert results[0]["acc,none"] == results[1]["acc,none"]
    assert results[0]["acc_norm,none"] == results[1]["acc_norm,none"]


def test_what_would_be_ignored_is_refused(place):
    for options, says in (
        ({"parallelize": True}, "--model_args is parallelize; it takes pretrained, dtype"),
        ({"max_length": 97}, "max_length is 97; 2 to the model's context of 96 are possible"),
    ):
        with pytest.raises(UsageError) as error:
            ours(place, **options)
        assert says in str(error.value)
    with pytest.raises(UsageError, match="add_bos_token is True; the model's tokenizer adds no special tokens"):
        ours(place, add_bos_token=True)
    with pytest.raises(UsageError, match="generation_kwargs is num_beams"):
        ours(place).generate_until(instances("generate_until", [("a", {"num_beams": 4, "max_gen_toks": 5})]))
    with pytest.raises(UsageError, match="max_gen_toks is 96"):
        ours(place).generate_until(instances("generate_until", [("a", {"max_gen_toks": 96})]))


def test_the_command_line_is_the_harness_s_own():
    pytest.importorskip("lm_eval")
    command = [sys.executable, "-m", "tilewright.lm_eval", "run", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "--model_args" in done.stdout
