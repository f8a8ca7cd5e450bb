"""The sampling parameters of a request. Names, defaults and rules are vLLM's."""

import difflib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, fields
from numbers import Integral, Real
from typing import Any, NamedTuple

from tilewright.errors import UsageError, WrongType
from tilewright.formats.sampling_fields import ALIASES, HONOURED, is_known, refusal, shown, shown_as_json

MAX_N = 16384  # vLLM's default limit
MAX_TEMPERATURE = 2.0  # vLLM's and OpenAI's
MAX_LOGPROBS = 20  # vLLM's default max_logprobs: a record cannot ask for the whole vocabulary at every token
MAX_SHIFT, MAX_BIAS = 2.0, 100.0  # OpenAI's limits: of presence and frequency penalty, of a token's bias
MAX_INTEGER = 2**31 - 1  # no vocabulary and no context is larger, so a larger count has the same meaning
MAX_STRINGS, MAX_CHARACTERS = 1024, 1 << 16  # of stop strings and bad words, which are all compared at every token
TOKEN_BYTES, LOGPROB_BYTES = 64, 112  # bytes of Python objects: a token of an answer, an entry of its log-probabilities
MAX_ANSWER = 1 << 20  # limit of n * max_tokens * (logprobs + 1): about 100 MB of Python objects


class ParameterError(UsageError):
    """The value of a sampling parameter breaks its rule. parameter: with the user's spelling. value: as text.

    rule: may contain {}, which stands for `other`, a second parameter.
    """

    parameter: str
    value: str
    rule: str

    def __init__(self, parameter: str, value: str, rule: str, *, other: str = "") -> None:
        super().__init__(parameter=parameter, value=value, rule=rule.replace("{}", other) if other else rule)
        self.written, self.other = rule, other

    def spelled(self, spell: Callable[[str], str]) -> UsageError:
        """The same error with the names of both parameters as `spell` gives them, such as "--max-tokens"."""
        rule = self.written.replace("{}", spell(self.other)) if self.other else self.written
        return UsageError(parameter=spell(self.parameter), value=self.value, rule=rule)


class ParameterTypeError(ParameterError, WrongType):
    """The value of a sampling parameter has a wrong type."""


class _Rule(NamedTuple):
    """kind: Integral, Real or bool. holds: true for an allowed value of that kind. words: kind and range, for a
    message."""

    kind: type
    holds: Callable[[Any], bool]
    words: str
    optional: bool = False

    def checked(self, name: str, value: Any) -> Any:
        """The value as a plain int, float or bool."""
        if value is None and self.optional:
            return None
        fits = isinstance(value, self.kind) and (self.kind is bool or not isinstance(value, bool))
        if not fits:
            raise ParameterTypeError(name, shown(value), f"{self.words} is wanted")
        if not self.holds(value):
            raise _refusal(name, value, self.words)
        plain = {Integral: int, Real: float, bool: bool}[self.kind](value)
        return min(plain, MAX_INTEGER) if name in _COUNTS else plain


_COUNTS = ("top_k", "no_repeat_ngram_size", "max_tokens", "min_tokens")
_SHIFT = _Rule(Real, lambda x: -MAX_SHIFT <= x <= MAX_SHIFT, f"a number from {-MAX_SHIFT:g} to {MAX_SHIFT:g}")
_FLAG = _Rule(bool, lambda _: True, "true or false")
_RULES = {
    "n": _Rule(Integral, lambda n: 1 <= n <= MAX_N, f"an integer from 1 to {MAX_N}"),
    "temperature": _Rule(Real, lambda t: 0 <= t <= MAX_TEMPERATURE, f"a number from 0 to {MAX_TEMPERATURE:g}"),
    "top_p": _Rule(Real, lambda p: 0 < p <= 1, "a number above 0 and at most 1"),
    "top_k": _Rule(Integral, lambda k: k >= -1, "an integer of at least 1, or 0 for all tokens"),
    "min_p": _Rule(Real, lambda p: 0 <= p <= 1, "a number from 0 to 1"),
    "repetition_penalty": _Rule(Real, lambda r: 1e-9 <= r <= 1e9, "a number from 1e-9 to 1e9"),  # for float32 logits
    "presence_penalty": _SHIFT,
    "frequency_penalty": _SHIFT,
    "no_repeat_ngram_size": _Rule(Integral, lambda n: n >= 0, "an integer of at least 1, or 0 for none"),
    "seed": _Rule(Integral, lambda s: -(2**63) <= s < 2**64, "an integer of 64 bits, or none", optional=True),
    "include_stop_str_in_output": _FLAG,
    "ignore_eos": _FLAG,
    "max_tokens": _Rule(Integral, lambda m: m >= 1, "an integer of at least 1"),
    "min_tokens": _Rule(Integral, lambda m: m >= 0, "an integer of at least 0"),
    "logprobs": _Rule(
        Integral, lambda k: 0 <= k <= MAX_LOGPROBS, f"an integer from 0 to {MAX_LOGPROBS}, or none", optional=True
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """How the tokens of a completion are chosen. Raises UsageError with the parameter, its value and the rule.

    n: completions of a prompt; 1 when greedy. temperature: divides the logits; 0 is greedy. top_k: keep the k best
    tokens, 0 or -1 all. top_p: keep the fewest best ones whose probability reaches p. min_p: keep tokens that are at
    least min_p times as probable as the best. These three apply in this order. logit_bias: {token id: number from -100
    to 100 that is added to its logit}; stored as sorted pairs. repetition_penalty: divides positive logits and
    multiplies negative logits of tokens that occur in the prompt or the completion. frequency_penalty: is subtracted
    from a token's logit for each time that it occurs in the completion. presence_penalty: is subtracted once.
    allowed_token_ids: only these tokens are chosen; None: all. suppress_tokens: tokens that are never chosen.
    bad_words: strings, with and without a blank before them; their last token is not chosen after their other tokens.
    no_repeat_ngram_size: no sequence of so many tokens occurs twice in the prompt and the completion (transformers'
    rule). seed: None or -1: the job's. stop: strings that end a completion, which is cut before them, or after them
    with include_stop_str_in_output. stop_token_ids: tokens that end it. ignore_eos: end-of-text is a token like others.
    max_tokens, min_tokens: of a completion. Before min_tokens neither end-of-text nor stop tokens are chosen, and no
    stop string ends it. logprobs: report the log-probabilities of the chosen token and of this many best ones.

    Counts above 2**31 - 1 count as 2**31 - 1. `rules` gives the order in which the rules apply.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[str, ...] = ()
    allowed_token_ids: tuple[int, ...] | None = None
    suppress_tokens: tuple[int, ...] = ()
    no_repeat_ngram_size: int = 0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int = 16
    min_tokens: int = 0
    logprobs: int | None = None

    def __post_init__(self) -> None:
        values = {name: rule.checked(name, getattr(self, name)) for name, rule in _RULES.items()}
        values["top_k"] = max(values["top_k"], 0)
        values["seed"] = None if values["seed"] == -1 else values["seed"]
        values["logit_bias"] = _biases(self.logit_bias)
        for name in ("stop", "bad_words"):
            values[name] = _strings(name, getattr(self, name))
        for name in ("stop_token_ids", "suppress_tokens"):
            values[name] = _token_ids(name, getattr(self, name))
        if self.allowed_token_ids is not None:
            values["allowed_token_ids"] = _token_ids("allowed_token_ids", self.allowed_token_ids)
            if not values["allowed_token_ids"]:
                raise _refusal("allowed_token_ids", self.allowed_token_ids, "a list of at least one token id, or none,")
        for name, value in values.items():
            object.__setattr__(self, name, value)
        if self.min_tokens > self.max_tokens:
            raise _refusal("min_tokens", self.min_tokens, f"at most {{}}, {self.max_tokens},", "max_tokens")
        if self.greedy and self.n > 1:
            raise _refusal("n", self.n, "1 with {} 0, where all completions are equal,", "temperature")

    @classmethod
    def of(cls, **values: Any) -> "SamplingParams":
        """Parameters by the names of vLLM, OpenAI or Hugging Face. None counts as not given, do_sample=False as
        temperature 0.

        `formats.sampling_fields` has the names. Names without an effect on the answer are ignored. Raises UsageError
        for a parameter that would change the answer and is not supported, for an unknown name, with the most similar
        known one, and for a parameter that is given twice.
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
        chosen = {each.name: getattr(self, each.name) for each in fields(self)}
        spelled: dict[str, str] = {}
        for name, value in given.items():
            parameter = ALIASES.get(name, name)
            if parameter not in chosen:
                _check_name(name, value)
                continue
            if parameter in spelled:
                raise UsageError(f"{spelled[parameter]} and {name} are the same parameter", remedy="give one of them")
            spelled[parameter], chosen[parameter] = name, value
        if do_sample is False:
            chosen["temperature"] = 0.0
        try:
            merged = SamplingParams(**chosen)
        except ParameterError as error:
            name = spelled.get(error.parameter, error.parameter)
            raise type(error)(name, error.value, error.written, other=error.other) from None
        if do_sample and merged.greedy:
            raise UsageError("do_sample is true and temperature is 0, which is greedy", remedy="give a temperature")
        return merged

    @property
    def greedy(self) -> bool:
        """Whether the best token is always chosen."""
        return self.temperature == 0

    @property
    def shifts(self) -> bool:
        """Whether something is added to the logits."""
        return bool(self.presence_penalty or self.frequency_penalty or self.logit_bias)

    @property
    def bans(self) -> bool:
        """Whether tokens are forbidden, by lists or by earlier tokens; `min_tokens` does not count."""
        return bool(
            self.bad_words or self.suppress_tokens or self.no_repeat_ngram_size or self.allowed_token_ids is not None
        )

    @property
    def plain(self) -> bool:
        """Whether logits are sampled unchanged, independent of earlier tokens."""
        return self.repetition_penalty == 1 and not self.shifts and not self.bans

    @property
    def needs_best_only(self) -> bool:
        """Whether, from min_tokens on, only the best token is needed, and not its logits."""
        return self.greedy and self.logprobs is None and self.plain

    @property
    def choosing_operations(self) -> set[str]:
        """The operations that choose the tokens of a completion."""
        best = {"matmul_argmax"} if self.needs_best_only and self.min_tokens < self.max_tokens else set()
        return best | ({"sample"} if not self.needs_best_only or self.min_tokens else set())

    def answer_bytes(self, context: int) -> int:
        """The most bytes of Python objects that an answer takes. context: positions of the model."""
        each = TOKEN_BYTES + (0 if self.logprobs is None else LOGPROB_BYTES * (1 + self.logprobs))
        return self.n * min(self.max_tokens, context) * each

    def check_for(self, *, vocabulary: int, context: int, has_tokenizer: bool) -> None:
        """Raises ParameterError for what a model of these sizes cannot do."""
        for name in ("stop", "bad_words"):
            if getattr(self, name) and not has_tokenizer:
                what = shown(list(getattr(self, name)))
                raise ParameterError(name, what, "strings need a tokenizer, and the model has no tokenizer.json")
        biased = tuple(token for token, _ in self.logit_bias)
        lists = {"allowed_token_ids": self.allowed_token_ids or (), "suppress_tokens": self.suppress_tokens}
        for name, ids in (lists | {"logit_bias": biased}).items():
            if beyond := [token for token in ids if token >= vocabulary]:
                rule = f"token {beyond[0]} is beyond the model's tokens, 0 to {vocabulary - 1}"
                given = (
                    {str(token): int(bias) if bias == int(bias) else bias for token, bias in self.logit_bias}
                    if name == "logit_bias"
                    else ids
                )
                raise ParameterError(name, shown_as_json(given), rule)
        self.check_answer(context)

    def check_answer(self, context: int) -> None:
        """Raises ParameterError for an answer of more than MAX_ANSWER values; context: positions of the model."""
        tokens, values = min(self.max_tokens, context), 1 + (self.logprobs or 0)
        size = self.n * tokens * values
        if size > MAX_ANSWER:
            name = max(("n", self.n), ("max_tokens", tokens), ("logprobs", values), key=lambda part: part[1])[0]
            product = f"{self.n:,} * {tokens:,} * {values} = {size:,}"
            rule = f"n * max_tokens * (logprobs + 1) is {product}; at most {MAX_ANSWER:,} is allowed for one prompt"
            raise ParameterError(name, shown(getattr(self, name)), rule)


def _strings(name: str, value: Any) -> tuple[str, ...]:
    """Stop strings or bad words from a string, a list or None."""
    strings = (value,) if isinstance(value, str) else () if value is None else value
    listed = isinstance(strings, Iterable) and not isinstance(strings, bytes | Mapping)
    strings = tuple(strings) if listed else (None,)
    rule = "a string or a list of strings, none empty, is wanted"
    if not all(isinstance(s, str) for s in strings):
        raise ParameterTypeError(name, shown(value), rule)
    if not all(s and _is_text(s) for s in strings):
        raise ParameterError(name, shown(value), rule)
    strings = tuple(dict.fromkeys(strings))
    if len(strings) > MAX_STRINGS or sum(map(len, strings)) > MAX_CHARACTERS:
        total = f"{len(strings):,} strings of {sum(map(len, strings)):,} characters"
        raise ParameterError(name, total, f"at most {MAX_STRINGS:,} of {MAX_CHARACTERS:,} in all are allowed")
    return strings


def _is_text(value: str) -> bool:
    """Whether the text is valid Unicode, without half a surrogate pair."""
    try:
        return bool(value.encode())
    except UnicodeEncodeError:
        return False


def _token_ids(name: str, value: Any) -> tuple[int, ...]:
    """Token ids from one id, a list or None, without repetitions."""
    ids = () if value is None else (value,) if isinstance(value, Integral) else value
    listed = isinstance(ids, Iterable) and not isinstance(ids, str | bytes | Mapping)
    ids = tuple(ids) if listed else (None,)
    rule = "a list of token ids from 0 is wanted"
    if not all(isinstance(i, Integral) and not isinstance(i, bool) for i in ids):
        raise ParameterTypeError(name, shown(value), rule)
    if not all(0 <= int(i) <= MAX_INTEGER for i in ids):
        raise ParameterError(name, shown(value), rule)
    return tuple(dict.fromkeys(int(i) for i in ids))


def _biases(value: Any) -> tuple[tuple[int, float], ...]:
    """(token id, bias), sorted by id, from a mapping, from pairs, or None. In JSON the ids of a mapping are texts. A
    bias of null counts as not given, because a Parquet struct has the ids of all rows in each row."""
    pairs = () if value is None else value.items() if isinstance(value, Mapping) else value
    words = "an object of token ids, each with a number from -100 to 100,"
    found: dict[int, float] = {}
    try:
        for token, bias in pairs:
            if isinstance(token, str) and token.isdecimal() and token.isascii() and len(token) <= 10:
                token = int(token)
            whole = isinstance(token, Integral) and not isinstance(token, bool) and 0 <= int(token) <= MAX_INTEGER
            if not whole or token in found or isinstance(bias, bool) or not isinstance(bias, Real | None):
                raise ValueError
            if bias is not None:
                found[int(token)] = wide = float(bias)
                if not -MAX_BIAS <= wide <= MAX_BIAS:
                    raise ValueError
    except (TypeError, ValueError, OverflowError) as error:
        kind = ParameterTypeError if isinstance(error, TypeError) else ParameterError
        raise kind("logit_bias", shown_as_json(value), f"{words} is wanted") from None
    return tuple(sorted(found.items()))


def _refusal(name: str, value: Any, words: str, other: str = "") -> ParameterError:
    return ParameterError(name, shown(value), f"{words} is wanted", other=other)


def _check_name(name: str, value: Any) -> None:
    """Raises UsageError for a name that is not a parameter, unless its value has no effect."""
    if rule := refusal(name, value, body=True):
        raise ParameterError(name, shown(value), rule)
    if not is_known(name, body=True):
        near = difflib.get_close_matches(str(name), HONOURED, n=1, cutoff=0.0)[0]
        raise UsageError(f"{shown(name)} is no sampling parameter; the nearest is {near}")
