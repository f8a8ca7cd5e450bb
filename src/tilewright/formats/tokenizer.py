"""Text to token ids and back: tokenizer.json, read by Hugging Face's `tokenizers`."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tilewright.errors import InputError
from tilewright.formats.files import InputFile

MAX_BYTES = 128 << 20  # GPT-2's has 1.4 MB, the largest vocabularies in use 35 MB
PROBE = "The quick brown fox, 3.14 \u00e9\u4e16\n"  # what a damaged vocabulary fails on shows when it is loaded


class Tokenizer:
    """The tokenizer of a file `tokenizer.json`; its truncation and padding are off: a prompt is all of its tokens.

    size: tokens, added ones too. Raises InputError for a file that is missing, too large, or no tokenizer, whatever
    the library says or however it fails; ResourceError where the system refuses.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        from tokenizers import Tokenizer as Library  # 30 ms, and only text needs it

        self.path = os.fspath(path)
        with InputFile(path, "tokenizer") as file:
            if file.size > MAX_BYTES:
                what = f"{file.size:,} bytes are no tokenizer; the limit is {MAX_BYTES:,}"
                raise InputError(what, path=self.path)
            content = bytearray(file.size)
            file.read_into(content, 0)
        with _failures_of(self.path, "no valid tokenizer"), _quiet():
            self._library = Library.from_buffer(bytes(content))
            self._library.no_truncation()
            self._library.no_padding()
            self.size: int = self._library.get_vocab_size()
            self._library.decode(self._library.encode(PROBE).ids)

    def encode(self, text: str) -> list[int]:
        """The token ids of a text, with the special tokens that the tokenizer adds (GPT-2's adds none)."""
        with _failures_of(self.path, "the tokenizer cannot encode this text"):
            return self._library.encode(text).ids

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """`encode` of each; the library works on them in parallel."""
        with _failures_of(self.path, "the tokenizer cannot encode these texts"):
            return [encoding.ids for encoding in self._library.encode_batch(texts)]

    def decode(self, token_ids: Sequence[int]) -> str:
        """The text of token ids without special tokens; bytes that are no UTF-8 become U+FFFD, unknown ids nothing."""
        with _failures_of(self.path, "the tokenizer cannot decode these ids"):
            return self._library.decode(list(token_ids))


@contextmanager
def _failures_of(path: str, doing: str) -> Iterator[None]:
    """Turns every failure of the library into an InputError. It raises ValueErrors and bare `Exception`s, and a panic
    in Rust comes as a `PanicException`, which is no `Exception` at all; what others raise goes on its way."""
    try:
        yield
    except BaseException as error:
        if type(error) in (Exception, ValueError) or type(error).__name__ == "PanicException":
            reason = " ".join(str(error).removeprefix("Cannot instantiate Tokenizer from buffer: ").split())[:300]
            hint = "take the tokenizer.json that came with the model"
            raise InputError(f"{doing}: {reason}", path=path, hint=hint) from None
        raise


@contextmanager
def _quiet() -> Iterator[None]:
    """Keeps a panicking library, which writes its stack to descriptor 2 before Python hears of it, from doing so."""
    if sys.stderr is None:  # there is no descriptor 2
        yield
        return
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.dup2(nothing, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)
