"""A decoder that generates text: prompts in, completions out. A model derives from `LanguageModel`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import compress, count, islice, zip_longest
from typing import Any, Literal

import msgspec
import numpy as np

from tilewright.backends import backend
from tilewright.backends.protocol import Array, Backend, Workspace
from tilewright.errors import InputError, UsageError, WrongType
from tilewright.formats.records import Completion, Id
from tilewright.formats.tokenizer import Tokenizer
from tilewright.generation.attention import CpuAttention
from tilewright.generation.decoder import Attention, Batch, Sizes
from tilewright.generation.engine import Engine
from tilewright.generation.prompts import Prompt, checked_prompts
from tilewright.generation.rules import failed
from tilewright.generation.sampling import SamplingParams
from tilewright.generation.scored_texts import (
    NOT_FINITE,
    Pieces,
    Scorable,
    Score,
    ScoringLimits,
    default_start,
    pieces_of,
)
from tilewright.generation.scoring import Scorer, Wanted
from tilewright.generation.sequences import Block, Generated, Request
from tilewright.ops import logprob
from tilewright.switches import Without, check_switches

BLOCK = 256  # number of prompts that are checked at a time


class Output(msgspec.Struct, frozen=True):
    """A prompt's token ids and its n completions, as in `output.outputs[0].text`.

    error: with errors="record", why the prompt has no completions.
    """

    prompt_token_ids: list[int]
    outputs: list[Completion]
    error: UsageError | InputError | None = None


class LanguageModel(ABC):
    """A decoder with weights on one device. `decoder.Decoder` describes what it offers to an engine.

    dtype: accuracy class of the products; keys and values are cached in it. device: "cpu" or "cuda". stop_ids: tokens
    that end a text. without: optimisations that are switched off, see `switches`. Raises UsageError for another device
    or dtype, and for a switch without effect.
    """

    def __init__(
        self, sizes: Sizes, stop_ids: tuple[int, ...], *, dtype: str, device: str, without: Without = frozenset()
    ) -> None:
        self.sizes, self.stop_ids, self.dtype, self.device = sizes, stop_ids, dtype, device
        self.backend = backend(device, dtype, without)
        check_switches("generate", self.backend.without, self.backend.name, dtype, parameter="without")
        self.attention = attention_on(self.backend, sizes, dtype)
        self.tokenizer: Tokenizer | None = None
        self._scoring_head: logprob.Prepared | None = None

    config: Any  # of the network. In the context `config.head`, the output matrix is a numbered layer
    head: Any  # the output matrix, prepared for matmul

    @abstractmethod
    def forward(self, batch: Batch, work: Workspace) -> Array:
        """See `decoder.Decoder`."""

    @abstractmethod
    def logits(self, hidden: Array, out: Array | None = None) -> Array:
        """See `decoder.Decoder`."""

    def logits_and_peaks(self, hidden: Array, out: Array, peaks: Array) -> tuple[Array, Array | None]:
        """See `decoder.Decoder`. A model whose logits are one product can store peaks."""
        return self.logits(hidden, out), None

    @abstractmethod
    def best(self, hidden: Array, out: tuple[Array, Array] | None = None) -> tuple[Array, Array]:
        """See `decoder.Decoder`."""

    def generate(
        self,
        prompts: Iterable[Prompt],
        params: SamplingParams | None = None,
        *,
        ids: Iterable[Id] | None = None,
        seed: int = 0,
        max_batch_memory: int | None = None,
        errors: Literal["raise", "record"] = "raise",
    ) -> Iterator[Output]:
        """The completions of each prompt, in the order of the prompts. Prompts are read as they are needed.

        prompts: texts, if the model has a tokenizer, or sequences of token ids. params: the same for all prompts; None:
        16 tokens at most, drawn at temperature 1. ids: an id for each prompt, on which its random numbers depend.
        Without ids the index of a prompt is its id, so samples, unlike greedy tokens, change with the index. seed: of
        the random numbers, if params have none. max_batch_memory: bytes for keys and values; None: 1 GiB on a CPU, most
        of the free memory on a GPU.

        errors: what to do with a prompt that cannot be continued, such as an empty one, or whose logits are not finite.
        "raise": raise UsageError with its number, from 0; no later prompt is continued then. "record": its Output has
        the error and no completions, and all other prompts are continued.
        """
        check_errors(errors)
        params = SamplingParams() if params is None else params
        memory = self.attention.memory if max_batch_memory is None else max_batch_memory
        for name, value, kind in (("params", params, SamplingParams), ("seed", seed, int),
                                  ("max_batch_memory", memory, int)):  # fmt: skip
            if not isinstance(value, kind) or isinstance(value, bool):
                raise WrongType(f"{name} is {value!r}; {kind.__name__} is wanted")
        if isinstance(prompts, str):
            raise WrongType("prompts is one text; a list of prompts is wanted")
        for name, given in (("prompts", prompts), ("ids", () if ids is None else ids)):
            if not np.iterable(given):
                raise WrongType(f"{name} is {given!r}; a list is wanted")
        params.check_for(vocabulary=self.sizes.vocabulary, context=self.sizes.context,
                         has_tokenizer=self.tokenizer is not None)  # fmt: skip
        named = zip(prompts, count(), strict=False) if ids is None else with_ids(prompts, ids)
        return self._outputs(named, params, self.engine(seed=seed, memory=memory), record=errors == "record")

    def _outputs(
        self, named: Iterator[tuple[Prompt, Id]], params: SamplingParams, engine: Engine, *, record: bool
    ) -> Iterator[Output]:
        """record: see `generate`'s errors."""
        unanswered: deque[tuple[int, np.ndarray | UsageError | InputError]] = deque()  # each with its number

        def requests() -> Iterator[Request | Block]:
            first = 0
            while block := list(islice(named, max(BLOCK // params.n, 1))):
                given, ids = zip(*block, strict=True)
                checked = checked_prompts(given, first, self.sizes, self.tokenizer, record=record)
                unanswered.extend(enumerate(checked, first))
                first += len(block)
                good = [tokens for tokens in checked if isinstance(tokens, np.ndarray)]
                if len(good) < len(checked):
                    ids = tuple(compress(ids, [isinstance(tokens, np.ndarray) for tokens in checked]))
                if not engine.takes_blocks:
                    yield from (Request(id, tokens, params) for id, tokens in zip(ids, good, strict=True))
                elif good:
                    yield Block(ids, good, params)

        for found in engine.run(requests()):
            number, tokens = unanswered.popleft()
            while not isinstance(tokens, np.ndarray):
                yield Output([], [], tokens)
                number, tokens = unanswered.popleft()
            error = None
            if [one for one in found if one.failed]:
                error = UsageError(f"prompt {number} (counted from 0): {failed(params)}")
                if not record:
                    raise error
            yield Output(tokens.tolist(), [] if error else [self.completion(one) for one in found], error)
        for _, tokens in unanswered:  # bad ones after the last good one
            assert not isinstance(tokens, np.ndarray)
            yield Output([], [], tokens)

    def score(
        self,
        texts: Iterable[Scorable],
        *,
        truncate: bool = False,
        prefix_token: int | None = None,
        max_batch_memory: int | None = None,
        errors: Literal["raise", "record"] = "raise",
    ) -> Iterator[Score]:
        """The log-probabilities of each text's tokens, in the order of the texts. Texts are read as they are needed.

        texts: tuples (context, continuation), where the continuation is scored, or texts alone, where all tokens are
        scored. Each part is a text, if the model has a tokenizer, or a list of token ids. prefix_token: stands
        before a text alone, and replaces an empty context; None: the token that the tokenizer puts before each text, or
        else the model's first end-of-text token. truncate: allow more tokens than the model's context. Then the first
        tokens of a context are left out, and a text alone is scored in windows. max_batch_memory: bytes for keys and
        values; None: 1 GiB on a CPU, most of the free memory on a GPU. A context that several texts share is computed
        once.

        errors: what to do with a text that cannot be scored, or whose log-probabilities are not finite. "raise": raise
        UsageError with its number, from 0. "record": its Score has the error and no tokens.
        """
        check_errors(errors)
        if isinstance(texts, str) or not np.iterable(texts):
            raise WrongType(f"texts is a {type(texts).__name__}; a list of texts or of pairs is wanted")
        limits = self.scoring_limits(truncate=truncate, prefix_token=prefix_token)
        return self._scores(texts, limits, self.scorer(max_batch_memory), record=errors == "record")

    def scoring_limits(self, *, truncate: bool, prefix_token: int | None) -> ScoringLimits:
        """The limits of `score`. Raises UsageError for a prefix token outside the vocabulary, or of another type."""
        encode = self.tokenizer.encode if self.tokenizer else None
        start = default_start(encode, self.stop_ids) if prefix_token is None else prefix_token
        if start is not None and (not isinstance(start, int | np.integer) or isinstance(start, bool)):
            raise WrongType(f"prefix_token is {start!r}; a token id is wanted")
        if start is not None and not 0 <= start < self.sizes.vocabulary:
            rule = f"the model's tokens are 0 to {self.sizes.vocabulary - 1}"
            raise UsageError(parameter="prefix_token", value=str(start), rule=rule)
        return ScoringLimits(self.sizes.context, start, truncate)

    def scorer(self, memory: int | None = None) -> Scorer:
        """A scorer with its own keys, values and workspace."""
        return Scorer(self, memory)

    def _scores(
        self, texts: Iterable[Scorable], limits: ScoringLimits, scorer: Scorer, *, record: bool
    ) -> Iterator[Score]:
        """record: see `score`'s errors."""
        encode = self.tokenizer.encode if self.tokenizer else None
        unanswered: deque[tuple[str, Pieces | UsageError | InputError]] = deque()  # each with its name

        def wanted() -> Iterator[Wanted]:
            for i, text in enumerate(texts):
                name = f"text {i} (counted from 0)"
                try:
                    pieces = pieces_of(text, name, limits, encode, self.sizes.vocabulary)
                except (UsageError, InputError) as error:
                    if not record:
                        raise
                    unanswered.append((name, error))
                else:
                    unanswered.append((name, pieces))
                    yield from pieces.wanted

        def bad() -> Iterator[Score]:
            """The scores of bad texts, up to the next good one."""
            while unanswered and isinstance(error := unanswered[0][1], UsageError | InputError):
                unanswered.popleft()
                yield Score.of_error(error)

        done = 0  # how many windows of the oldest unanswered text are computed
        for _ in scorer.run(wanted()):
            yield from bad()
            name, pieces = unanswered[0]
            assert isinstance(pieces, Pieces)
            done += 1
            if done < len(pieces.wanted):
                continue
            unanswered.popleft()
            done, error = 0, UsageError(f"{name}: {NOT_FINITE}")
            if pieces.failed and not record:
                raise error
            yield Score.of_error(error) if pieces.failed else pieces.score()
        yield from bad()

    def logprobs(self, hidden: Array, targets: np.ndarray) -> Callable[[], tuple[np.ndarray, np.ndarray]]:
        """See `decoder.ScoringDecoder`."""
        with self.config.head:
            if self._scoring_head is None:
                self._scoring_head = logprob.prepared(self.head)
            found = logprob.logprob(hidden, self._scoring_head, self.backend.upload(targets))
        values, greedy = map(self.backend.fetch, found)
        return lambda: (values(), greedy())

    def engine(self, *, seed: int = 0, memory: int | None = None) -> Engine:
        """An engine with its own keys, values and workspace. memory: bytes for keys and values; None: as in
        `generate`."""
        kind = Engine
        if self.backend.name == "cuda":
            from tilewright.generation.cuda.engine import CudaEngine as kind
        has = self.tokenizer
        return kind(self, eos_token_ids=self.stop_ids, memory=memory, seed=seed,
                    text_of=has.decode if has else None, tokens_of=has.encode_word if has else None)  # fmt: skip

    def completion(self, found: Generated) -> Completion:
        """The completion, with its text if the model has a tokenizer."""
        text = self.tokenizer.decode(found.token_ids)[: found.text_end] if self.tokenizer else None
        return Completion(found.index, list(found.token_ids), text, found.finish_reason, found.logprobs)


def with_ids(prompts: Iterable[Prompt], ids: Iterable[Id]) -> Iterator[tuple[Prompt, Id]]:
    """Each prompt with its id. Raises UsageError where one of the two ends before the other."""
    none: Any = object()
    for number, (prompt, id) in enumerate(zip_longest(prompts, ids, fillvalue=none)):
        if prompt is none or id is none:
            shorter, longer = ("ids", "prompts") if id is none else ("prompts", "ids")
            raise UsageError(f"{shorter} ends after {number}, {longer} does not; give one id for each prompt")
        yield prompt, id


def check_errors(errors: str) -> None:
    """Raises UsageError for anything but "raise" and "record"."""
    if errors not in ("raise", "record"):
        raise UsageError(parameter="errors", value=repr(errors), rule='"raise" and "record" are known',
                         remedy="give one of them")  # fmt: skip


def attention_on(device: Backend, sizes: Sizes, dtype: str) -> Attention:
    """The caches and batches for a backend."""
    if device.name == "cpu":
        return CpuAttention(sizes, dtype)
    from tilewright.generation.cuda.attention import CudaAttention

    return CudaAttention(sizes, dtype, device)
