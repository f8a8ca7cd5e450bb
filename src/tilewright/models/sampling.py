"""What a user may ask of the sampler, and when a completion ends. Names, defaults and rules are vLLM's."""

import difflib
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from numbers import Integral, Real
from typing import Any, NamedTuple

from tilewright.errors import UsageError

MAX_N = 16384  # vLLM's default limit
MAX_TEMPERATURE = 2.0  # vLLM's and OpenAI's
MAX_LOGPROBS = 20  # vLLM's default max_logprobs: a record cannot ask for the whole vocabulary at every token
ALIASES = {  # Hugging Face's names
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
    "eos_token_id": "stop_token_ids",
    "stop_strings": "stop",
}


class _Rule(NamedTuple):
    """kind: Integral, Real or bool; holds: what a value of that kind must fulfil; words: both, for a person."""

    kind: type
    holds: Callable[[Any], bool]
    words: str
    optional: bool = False

    def checked(self, name: str, value: Any) -> Any:
        """The value as a plain int, float or bool."""
        if value is None and self.optional:
            return None
        fits = isinstance(value, self.kind) and (self.kind is bool or not isinstance(value, bool))
        if not fits or not self.holds(value):
            raise _refusal(name, value, self.words)
        return {Integral: int, Real: float, bool: bool}[self.kind](value)


_RULES = {
    "n": _Rule(Integral, lambda n: 1 <= n <= MAX_N, f"an integer from 1 to {MAX_N}"),
    "temperature": _Rule(Real, lambda t: 0 <= t <= MAX_TEMPERATURE, f"a number from 0 to {MAX_TEMPERATURE:g}"),
    "top_p": _Rule(Real, lambda p: 0 < p <= 1, "a number above 0 and at most 1"),
    "top_k": _Rule(Integral, lambda k: k >= -1, "an integer of at least 1, or 0 for all tokens"),
    "min_p": _Rule(Real, lambda p: 0 <= p <= 1, "a number from 0 to 1"),
    "repetition_penalty": _Rule(Real, lambda r: 0 < r <= sys.float_info.max, "a finite number above 0"),
    "seed": _Rule(Integral, lambda s: -(2**63) <= s < 2**64, "an integer of 64 bits, or none", optional=True),
    "ignore_eos": _Rule(bool, lambda _: True, "true or false"),
    "max_tokens": _Rule(Integral, lambda m: m >= 1, "an integer of at least 1"),
    "min_tokens": _Rule(Integral, lambda m: m >= 0, "an integer of at least 0"),
    "logprobs": _Rule(
        Integral, lambda k: 0 <= k <= MAX_LOGPROBS, f"an integer from 0 to {MAX_LOGPROBS}, or none", optional=True
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of a completion are chosen. Raises UsageError with the parameter, its value and the rule.

    n: completions of a prompt; 1 when greedy. temperature: divides the logits; 0 is greedy.
    top_k: keep the k best tokens, 0 or -1 all. top_p: of those, the fewest best whose probability reaches p.
    min_p: of those, the ones at least min_p times as probable as the best. The three apply in this order.
    repetition_penalty: divides positive and multiplies negative logits of tokens seen in prompt or completion.
    seed: None or -1: the job's. stop: strings that end a completion, which is cut before them. stop_token_ids: tokens
    that end it. ignore_eos: end-of-text is a token like others. max_tokens, min_tokens: of a completion; before
    min_tokens neither end-of-text nor stop tokens are chosen, and no stop string ends it.
    logprobs: report the log-probabilities of the chosen token and of this many best ones.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False
    max_tokens: int = 16
    min_tokens: int = 0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        values = {name: rule.checked(name, getattr(self, name)) for name, rule in _RULES.items()}
        values["top_k"] = max(values["top_k"], 0)
        values["seed"] = None if values["seed"] == -1 else values["seed"]
        values["stop"] = _strings(self.stop)
        values["stop_token_ids"] = _token_ids(self.stop_token_ids)
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.min_tokens > self.max_tokens:
            raise _refusal("min_tokens", self.min_tokens, f"at most max_tokens, {self.max_tokens},")
        if self.greedy and self.n > 1:
            raise _refusal("n", self.n, "1 with temperature 0, where all completions are equal,")

    @classmethod
    def of(cls, **values: Any) -> "SamplingParams":
        """Parameters by vLLM's or Hugging Face's names; None counts as not given, do_sample=False as temperature 0.

        Raises UsageError for an unknown name, with the nearest known one, and for a parameter given twice.
        """
        return cls().merged(values)

    def merged(self, overrides: Mapping[str, Any]) -> "SamplingParams":
        """A copy with a record's own values, by the names that `of` accepts. Raises UsageError as `of` does."""
        given = {name: value for name, value in overrides.items() if value is not None}
        if not given:
            return self
        do_sample = given.pop("do_sample", None)
        if not isinstance(do_sample, bool | None):
            raise _refusal("do_sample", do_sample, "true or false")
        chosen = asdict(self)
        spelled: dict[str, str] = {}
        for name, value in given.items():
            parameter = ALIASES.get(name, name)
            if parameter not in chosen:
                raise _unknown(name)
            if parameter in spelled:
                raise UsageError(f"{spelled[parameter]} and {name} are the same parameter", hint="give one of them")
            spelled[parameter], chosen[parameter] = name, value
        if do_sample is False:
            chosen["temperature"] = 0.0
        merged = SamplingParams(**chosen)
        if do_sample and merged.greedy:
            raise UsageError("do_sample is true and temperature is 0, which is greedy", hint="give a temperature")
        return merged

    @property
    def greedy(self) -> bool:
        """Whether the best token is taken, without chance."""
        return self.temperature == 0


class Finish(NamedTuple):
    """reason: "stop", "length" or None: it goes on. cut: characters of the text to keep; None: all."""

    reason: str | None
    cut: int | None = None


def finish(
    token_ids: Sequence[int],
    params: SamplingParams,
    eos_token_ids: Collection[int],
    text_of: Callable[[Sequence[int]], str] | None = None,
) -> Finish:
    """Whether a completion ends with its last token; to be asked after each.

    token_ids: the tokens of the completion so far, without the prompt. text_of: decodes tokens; needed for `stop` only.
    A token that ends it stays in token_ids; a stop string and what follows it are cut from the text. Like vLLM, a stop
    string counts when it ends in the text after min_tokens. Raises UsageError for stop strings without `text_of`.
    """
    count = len(token_ids)
    if not count or count < params.min_tokens:
        return Finish(None)
    last = token_ids[-1]
    if last in params.stop_token_ids or (last in eos_token_ids and not params.ignore_eos):
        return Finish("stop")
    if params.stop:
        if text_of is None:
            raise UsageError("stop has strings, and this model has no tokenizer", hint="use stop_token_ids")
        text = text_of(token_ids)
        safe = len(text_of(token_ids[: params.min_tokens])) if params.min_tokens else 0
        found = [text.find(stop, max(safe - len(stop) + 1, 0)) for stop in params.stop]
        if max(found) >= 0:
            return Finish("stop", min(at for at in found if at >= 0))
    return Finish("length" if count >= params.max_tokens else None)


def _strings(value: Any) -> tuple[str, ...]:
    """Stop strings from a string, a list or None."""
    strings = (value,) if isinstance(value, str) else () if value is None else value
    listed = isinstance(strings, Iterable) and not isinstance(strings, bytes | Mapping)
    strings = tuple(strings) if listed else (None,)
    if not all(isinstance(s, str) and s for s in strings):
        raise _refusal("stop", value, "a string or a list of strings, none empty,")
    return strings


def _token_ids(value: Any) -> tuple[int, ...]:
    """Token ids from one, a list or None, each once."""
    ids = () if value is None else (value,) if isinstance(value, Integral) else value
    listed = isinstance(ids, Iterable) and not isinstance(ids, str | bytes | Mapping)
    ids = tuple(ids) if listed else (None,)
    if not all(isinstance(i, Integral) and not isinstance(i, bool) and int(i) >= 0 for i in ids):
        raise _refusal("stop_token_ids", value, "a list of token ids from 0")
    return tuple(dict.fromkeys(int(i) for i in ids))


def _refusal(name: str, value: Any, words: str) -> UsageError:
    return UsageError(f"{name} is {_shown(value)}; {words} is wanted")


def _unknown(name: str) -> UsageError:
    known = [*(f.name for f in fields(SamplingParams)), *ALIASES, "do_sample"]
    near = difflib.get_close_matches(str(name), known, n=1, cutoff=0.0)[0]
    return UsageError(f"{_shown(name)} is no sampling parameter; the nearest is {near}")


def _shown(value: Any) -> str:
    """A value for a message: short, and Python refuses to write integers of more than 4,300 digits."""
    if isinstance(value, Integral) and int(value).bit_length() > 128:
        return f"an integer of {int(value).bit_length()} bits"
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
