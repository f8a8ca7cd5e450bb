"""From text to token ids and back, with a tokenizer.json that Hugging Face's `tokenizers` reads."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tilewright.errors import InputError
from tilewright.formats.files import InputFile
from tilewright.formats.panics import ASIDE
from tilewright.formats.tokenizer_limits import checked_growth, patterns
from tilewright.formats.tokenizer_older import END_OF_TEXT as END_OF_TEXT
from tilewright.formats.tokenizer_older import MERGES, WORDS, Settings, byte_level, word_piece
from tilewright.formats.tokenizer_patterns import is_linear
from tilewright.formats.tokenizer_settings import Truncation, overridden

if TYPE_CHECKING:
    from tilewright.formats.tokenizer_process import TokenizerProcess

MAX_BYTES = 128 << 20  # GPT-2's file has 1.4 MB, the largest vocabularies in use have 35 MB
MAX_ITEMS = 8_000_000  # commas and brackets: a token or a merge takes about 100 bytes; Gemma's file has 3 million
MAX_TEXT = 1 << 20  # bytes of a text after normalization; each may take 500 bytes of memory
MAX_TOGETHER = 4 << 20  # bytes of such texts that the library encodes at a time, which takes 2 GiB of memory
PROBE = "The quick brown fox, 3.14 \u00e9\u4e16\n"  # so that a damaged vocabulary fails at once


class Tokenizer:
    """The tokenizer of a file `tokenizer.json`. Its truncation and padding are off, so a prompt keeps all its tokens.

    older: for a checkpoint without tokenizer.json, whose vocab.json or vocab.txt is `path`: the model_type, and the
    result of `tokenizer_older.read_settings`. overrides: fields that `tokenizer_settings.read_overrides` found. size:
    number of tokens, including added ones. truncation: what tokenizer_config.json says about long texts; the encoder of
    a model applies it.

    Raises InputError for a file that is missing, too large, or no tokenizer, however the library fails on it. Also
    raises it for a tokenizer whose parts make texts too long (`tokenizer_limits.py`). Raises ResourceError if the
    system refuses. If a pattern may take hours, texts are encoded in another process. content: the bytes of the file,
    given in that other process; texts are then encoded in it, whatever the patterns.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        older: tuple[str, Settings] | None = None,
        overrides: Settings | None = None,
        content: bytes | None = None,
    ) -> None:
        from tokenizers import Tokenizer as Library  # takes 30 ms, and only text needs it

        self.path = os.fspath(path)
        alone = content is not None
        content = content or file_content(self.path)
        if older is not None:
            kind, settings = older
            if os.path.basename(self.path) == WORDS:
                content = word_piece(content, self.path, settings)
            else:
                merges = file_content(os.path.join(os.path.dirname(self.path), MERGES))
                content = byte_level(content, self.path, merges, settings, kind)
        content = overridden(content, overrides) if overrides else content
        if sum(content.count(sign) for sign in (b",", b"[", b"{")) > MAX_ITEMS:
            raise InputError(f"no valid tokenizer: it has more than {MAX_ITEMS:,} items", path=self.path)
        with _failures_of(self.path, "no valid tokenizer"), ASIDE.without_panics():
            self._library = Library.from_buffer(content)
            self._library.no_truncation()
            self._library.no_padding()
            if getattr(self._library.model, "dropout", None):
                self._library.model.dropout = None  # random merges are only for training
            self._growth = checked_growth(self._library, self.path)
            self.size: int = self._library.get_vocab_size()
            slow = not (alone or all(map(is_linear, patterns(self._library))))
            if not slow:
                self._library.decode(self._library.encode(PROBE).ids)
        self.truncation = Truncation()
        self._process: TokenizerProcess | None = None
        if slow:
            from tilewright.formats.tokenizer_process import TokenizerProcess  # only a few files need it

            self._process = TokenizerProcess(self.path, content)
            self._process.call("decode", [])  # starts the process, which encodes PROBE

    def lowercase(self) -> None:
        """Convert texts to lower case first, which is the meaning of the field do_lower_case of
        sentence-transformers."""
        from tokenizers import normalizers

        if self._process:
            what = "do_lower_case is true, and the tokenizer has a pattern that may take hours"
            raise InputError(what, path=self.path, remedy="set do_lower_case to false if the tokenizer does it itself")
        own = self._library.normalizer
        lower = normalizers.Lowercase()
        self._library.normalizer = normalizers.Sequence([lower, own]) if own else lower

    def check(self, text: str) -> None:
        """Raises InputError for a text that is, or becomes, longer than MAX_TEXT bytes. One step of the library copies
        all of it, with about 500 bytes of memory for each byte. Also raises it for a text that takes too long, if a
        pattern may."""
        if self._process:
            self._process.call("encode", text)
            return
        size = _bytes_of(text)
        if size <= MAX_TEXT >= self._growth.of(size):
            return
        grown = size if size > MAX_TEXT else self._measured(text)
        if grown > MAX_TEXT:
            has = f"has {size:,} bytes" + (
                "" if grown == size else f", and the tokenizer expands it to over {MAX_TEXT:,}"
            )
            raise InputError(f"{has}; at most {MAX_TEXT:,} can be encoded", path=self.path)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, with the special tokens that the tokenizer adds (GPT-2's adds none). Raises
        InputError as `check` does."""
        if self._process:
            return self._process.call("encode", text)
        self.check(text)
        with _failures_of(self.path, "the tokenizer cannot encode this text"), ASIDE.without_panics():
            return self._library.encode(text).ids

    def encode_word(self, text: str) -> list[int]:
        """`encode` without special tokens, for a part of a text."""
        if self._process:
            return self._process.call("encode_word", text)
        with _failures_of(self.path, "the tokenizer cannot encode this text"), ASIDE.without_panics():
            return self._library.encode(text, add_special_tokens=False).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each text. The library encodes them in parallel, so many at a time that memory stays bounded."""
        if self._process:
            return [self.encode(text) for text in texts]
        found: list[list[int]] = []
        for some in self._together(texts):
            with _failures_of(self.path, "the tokenizer cannot encode these texts"), ASIDE.without_panics():
                found += [encoding.ids for encoding in self._library.encode_batch_fast(some)]  # without offsets
        return found

    def encode_pairs(self, pairs: Sequence[tuple[str, str]], longest: int) -> list[tuple[list[int], int, bool]]:
        """(token ids, index of the first token of type 1 or 0, True if it was cut) of each pair of texts.

        If a pair has more than `longest` tokens, the longer text loses tokens one by one, at its end, or at its start
        if `truncation` says so.
        """
        if self._process:
            return [tuple(found) for found in self._process.call("encode_pairs", pairs, longest)]
        for pair in pairs:
            for text in pair:
                self.check(text)
        try:
            with _failures_of(self.path, "the tokenizer cannot encode these texts"), ASIDE.without_panics():
                self._library.enable_truncation(longest, strategy="longest_first", direction=self.truncation.side)
                found = [self._library.encode(first, second) for first, second in pairs]
        finally:
            self._library.no_truncation()
        types = [one.type_ids if self.truncation.types else [] for one in found]
        seconds = [each.index(1) if 1 in each else 0 for each in types]
        return [(one.ids, second, bool(one.overflowing)) for one, second in zip(found, seconds, strict=True)]

    def text_ids_beyond(self, vocabulary: int) -> list[int]:
        """The sorted ids from `vocabulary` on that plain text may contain: all except added special tokens."""
        if self.size <= vocabulary:
            return []
        added = self._library.get_added_tokens_decoder()
        special = {id for id, token in added.items() if token.special}
        return sorted(id for id in self._library.get_vocab().values() if id >= vocabulary and id not in special)

    def _together(self, texts: Sequence[str]) -> Iterator[Sequence[str]]:
        """The texts in their order, in groups that become at most MAX_TOGETHER bytes."""
        first, size = 0, 0
        for i, text in enumerate(texts):
            self.check(text)
            own = min(self._growth.of(_bytes_of(text)), MAX_TEXT)
            if size + own > MAX_TOGETHER:
                yield texts[first:i]
                first, size = i, 0
            size += own
        if first < len(texts):
            yield texts[first:]

    def _measured(self, text: str) -> int:
        """The bytes of the text that the model will see, counted piece by piece until they exceed MAX_TEXT."""
        step, total = max(1, MAX_TEXT // (4 * self._growth.factor)), self._growth.extra
        normalizer, splitter = self._library.normalizer, self._library.pre_tokenizer
        with _failures_of(self.path, "the tokenizer cannot encode this text"), ASIDE.without_panics():
            for first in range(0, len(text), step):
                piece = text[first : first + step]
                piece = normalizer.normalize_str(piece) if normalizer else piece
                pieces = [word for word, _ in splitter.pre_tokenize_str(piece)] if splitter else [piece]
                total += sum(map(_bytes_of, pieces))
                if total > MAX_TEXT:
                    break
        return total

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids without special tokens. Bytes that are not UTF-8 become U+FFFD; unknown ids are
        skipped."""
        if self._process:
            return self._process.call("decode", [int(id) for id in token_ids])
        with _failures_of(self.path, "the tokenizer cannot decode these ids"):
            return self._library.decode(list(token_ids))


def file_content(path: str) -> bytes:
    """The content of a tokenizer's file. Raises InputError for one of more than MAX_BYTES."""
    with InputFile(path, "tokenizer") as file:
        if file.size > MAX_BYTES:
            raise InputError(f"the tokenizer has {file.size:,} bytes; at most {MAX_BYTES:,} are allowed", path=path)
        content = bytearray(file.size)
        file.read_into(content, 0)
    return bytes(content)


def _bytes_of(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode(errors="surrogatepass"))


@contextmanager
def _failures_of(path: str, doing: str) -> Iterator[None]:
    """Turn every failure of the library into an InputError. The library raises ValueErrors and plain `Exception`s. A
    panic in Rust is a `PanicException`, which is no `Exception`. Errors of other origin are raised unchanged."""
    try:
        yield
    except BaseException as error:
        if type(error) in (Exception, ValueError) or type(error).__name__ == "PanicException":
            reason = " ".join(str(error).removeprefix("Cannot instantiate Tokenizer from buffer: ").split())[:300]
            remedy = "use the tokenizer.json that came with the model"
            raise InputError(f"{doing}: {reason}", path=path, remedy=remedy) from None
        raise
