"""tilewright as a model of lm-evaluation-harness, the program from which most published benchmark figures come.

python -m tilewright.lm_eval run --model tilewright --model_args pretrained=DIR --tasks hellaswag

Importing this module registers the model "tilewright" with the installed harness. A log-likelihood has the same bits
for every batch size, because the harness's batches are not used: all requests of a task are packed together.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from lm_eval import utils
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from lm_eval.models.utils import handle_stop_sequences, normalize_gen_kwargs
from tqdm import tqdm

from tilewright.errors import UsageError
from tilewright.formats.files import spelled
from tilewright.generation.language_model import LanguageModel
from tilewright.generation.sampling import SamplingParams
from tilewright.ops.core.launch import threads as on_threads
from tilewright.runtime.load import load

if TYPE_CHECKING:
    from lm_eval.api.instance import Instance

log = logging.getLogger(__name__)
GENERATION = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty", "seed")  # supported besides the lengths
NAMES = ("tokenizer_config.json", "special_tokens_map.json")  # files that name a tokenizer's special tokens


@register_model("tilewright")
class TilewrightLM(TemplateLM):
    """A decoder of tilewright. The arguments are those of `--model_args`.

    pretrained: a model directory, or the name of a model. dtype: the accuracy class. device: "cpu", "cuda" or "auto";
    None: "cpu". max_length: tokens that the model reads at once, at most its context. max_gen_toks: new tokens, if a
    task does not give their number. prefix_token_id: stands before texts without a context. add_bos_token: whether
    special tokens are added to a text; None: the tokenizer decides. threads: of the kernels. batch_size,
    max_batch_size: have no effect. Raises UsageError and InputError.
    """

    def __init__(
        self,
        pretrained: str,
        *,
        dtype: str = "float32",
        device: str | None = None,
        max_length: int | None = None,
        max_gen_toks: int = 256,
        prefix_token_id: int | None = None,
        **more: Any,
    ) -> None:
        super().__init__()
        self.add_bos_token, self.threads = more.pop("add_bos_token", None), more.pop("threads", None)
        if unknown := more.keys() - {"batch_size", "max_batch_size"}:
            known = "pretrained, dtype, device, max_length, max_gen_toks, prefix_token_id, add_bos_token, threads"
            raise UsageError(parameter="--model_args", value=", ".join(sorted(unknown)), rule=f"it takes {known}")
        model = load(str(pretrained), dtype=dtype, device=device or "cpu")
        if not isinstance(model, LanguageModel):
            raise UsageError(f"{pretrained} is no decoder, and only decoders are evaluated", path=str(pretrained))
        if model.tokenizer is None:
            remedy = "put the model's tokenizer.json there"
            raise UsageError("the model has no tokenizer.json", path=str(pretrained), remedy=remedy)
        self.model, self.tokens, self.path = model, model.tokenizer, str(pretrained)
        if max_length is not None and not 2 <= max_length <= model.sizes.context:
            rule = f"2 to the model's context of {model.sizes.context:,} are possible"
            raise UsageError(parameter="max_length", value=str(max_length), rule=rule)
        self.max_length, self.max_gen_toks = max_length or model.sizes.context, max_gen_toks
        if self.add_bos_token and not self.tokens.encode(""):
            rule = "the model's tokenizer adds no special tokens to a text"
            remedy = "leave it out, or let the post_processor of tokenizer.json add the token"
            raise UsageError(parameter="add_bos_token", value=str(self.add_bos_token), rule=rule, remedy=remedy)
        names = special_tokens(self.path)
        ends = {name: self._id_of(names.get(name)) for name in ("bos_token", "eos_token")}
        self._eot = ends["eos_token"] if ends["eos_token"] is not None else next(iter(model.stop_ids), None)
        starts = (prefix_token_id, ends["bos_token"], self._eot)
        self._prefix = next((int(id) for id in starts if id is not None), None)

    def _id_of(self, text: str | None) -> int | None:
        """The id of a special token; None if it is no single token."""
        ids = [] if text is None else self.tokens.encode_word(text)
        return ids[0] if len(ids) == 1 else None

    @property
    def eot_token_id(self) -> int | None:  # type: ignore[override]
        """The token that ends a text."""
        return self._eot

    @property
    def prefix_token_id(self) -> int:
        """The token before a text without a context. Raises UsageError if the model has none."""
        if self._prefix is None:
            remedy = "give --model_args pretrained=DIR,prefix_token_id=ID"
            raise UsageError("the model names no token that begins or ends a text", path=self.path, remedy=remedy)
        return self._prefix

    @property
    def tokenizer_name(self) -> str:
        """The tokenizer's name in the harness's cache of requests."""
        return spelled(self.path).replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **_: Any) -> list[int]:
        """Token ids of a text. add_special_tokens: None: the tokenizer decides, unless the text begins with the prefix
        token."""
        adds = self.add_bos_token if add_special_tokens is None else add_special_tokens
        plain, whole = self.tokens.encode_word(string), self.tokens.encode(string)
        if add_special_tokens is None and self._prefix is not None and plain[:1] == [self._prefix]:
            adds = False
        return plain if adds is False else whole

    def _loglikelihood_tokens(
        self, requests: Sequence[tuple[Any, list[int], list[int]]], disable_tqdm: bool = False, **_: Any
    ) -> list[tuple[float, bool]]:
        """(sum of the log-probabilities, whether the continuation is greedy) of each (key, context, continuation)."""
        pairs = [self._cut(context, continuation) for _, context, continuation in requests]
        dropped = sum(len(pair[0]) < len(context) for pair, (_, context, _) in zip(pairs, requests, strict=True))
        self._tell_cut(dropped, len(pairs), self.max_length)
        found = []
        with on_threads(self.threads):
            scores = self.model.score(pairs)
            for score, request in zip(self._told(scores, len(pairs), disable_tqdm), requests, strict=True):
                key, answer = request[0], (score.logprob, score.is_greedy)
                found.append(answer)
                if key is not None:
                    self.cache_hook.add_partial("loglikelihood", key, answer)
        return found

    def _tell_cut(self, dropped: int, count: int, most: int) -> None:
        """Warn of contexts that lose their first tokens. most: tokens that the model reads of each."""
        if dropped:
            what = f"{dropped:,} of {count:,} contexts are longer than the {most:,} tokens that the model can read"
            log.warning("%s: their first tokens are not read", what)

    def _told(self, found: Iterator, count: int, disable: bool) -> Iterator:
        return iter(tqdm(found, total=count, disable=disable, desc="Scoring with tilewright"))

    def _cut(self, context: list[int], continuation: list[int]) -> tuple[list[int], list[int]]:
        """The pair without the first tokens of the context, if the model cannot read all of them."""
        most = self.max_length + 1 - len(continuation)
        return context[-most:] if most > 0 else context, continuation

    def loglikelihood_rolling(self, requests: list[Instance], disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of each whole text, in windows of the model's context."""
        windows: list[tuple[None, list[int], list[int]]] = []
        counts: list[int] = []
        for (text,) in (request.args for request in requests):
            rolling = utils.get_rolling_token_windows(
                token_list=self.tok_encode(text), prefix_token=self.prefix_token_id, max_seq_len=self.max_length,
                context_len=1,
            )  # fmt: skip
            own = [(None, *utils.make_disjoint_window(window)) for window in rolling]
            windows += own
            counts.append(len(own))
        values = iter(self._loglikelihood_tokens(windows, disable_tqdm=disable_tqdm))
        found = []
        for request, count in zip(requests, counts, strict=True):
            found.append(sum(next(values)[0] for _ in range(count)))
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, found[-1])
        return found

    def generate_until(self, requests: list[Instance], disable_tqdm: bool = False) -> list[str]:
        """The text that continues each context, up to the first of its stop sequences."""
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True, default=str), []).append(i)
        found = [""] * len(requests)
        with on_threads(self.threads):
            for numbers in groups.values():
                params = self._params(requests[numbers[0]].args[1])
                most = self.max_length - params.max_tokens
                if most < 1:
                    rule = f"the model's context of {self.max_length:,} tokens must hold the prompt, too"
                    raise UsageError(parameter="max_gen_toks", value=str(params.max_tokens), rule=rule)
                whole = [self.tok_encode(requests[i].args[0]) for i in numbers]
                self._tell_cut(sum(len(ids) > most for ids in whole), len(whole), most)
                prompts = [ids[-most:] or [self.prefix_token_id] for ids in whole]
                outputs = self.model.generate(prompts, params, ids=numbers)
                for i, output in zip(numbers, self._told(outputs, len(numbers), disable_tqdm), strict=True):
                    found[i] = output.outputs[0].text or ""
                    self.cache_hook.add_partial("generate_until", requests[i].args, found[i])
        return found

    def _params(self, given: dict[str, Any]) -> SamplingParams:
        """The sampling parameters of a task's generation_kwargs. Raises UsageError for one that is not supported."""
        kwargs = dict(normalize_gen_kwargs(given, self.max_gen_toks))
        stop = handle_stop_sequences(kwargs.pop("until", None), eos=None)
        max_tokens, sampled = kwargs.pop("max_gen_toks"), kwargs.pop("do_sample", None)
        kwargs = {name: value for name, value in kwargs.items() if value is not None}
        if unknown := kwargs.keys() - set(GENERATION):
            rule = f"supported are until, max_gen_toks, do_sample, {', '.join(GENERATION)}"
            raise UsageError(parameter="generation_kwargs", value=", ".join(sorted(unknown)), rule=rule)
        if not sampled:
            kwargs = {"repetition_penalty": kwargs.get("repetition_penalty", 1.0), "temperature": 0.0}
        return SamplingParams(max_tokens=max_tokens, stop=tuple(one for one in stop if one), **kwargs)


def special_tokens(path: str) -> dict[str, str]:
    """The texts of a tokenizer's special tokens by name, as its files say; empty if they say nothing."""
    found: dict[str, str] = {}
    for name in NAMES:
        file = os.path.join(path, name)
        if os.path.isfile(file):
            with open(file, encoding="utf-8") as opened:
                said = json.load(opened)
            for key, value in said.items():
                text = value.get("content") if isinstance(value, dict) else value
                if isinstance(text, str):
                    found.setdefault(key, text)
    return found


def main() -> None:
    """The harness's own command line, to which the model was added."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    main()
