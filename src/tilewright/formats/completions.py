"""Writers of completions: JSON lines, answers to OpenAI batch lines, or text. course.TokenWriter writes binary
files."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import numpy as np

from tilewright.errors import UsageError
from tilewright.formats.files import Writable
from tilewright.formats.record_fields import kept_in
from tilewright.formats.records import Completion, Prompt, RecordError, batch_error

Result = tuple[Prompt, Sequence[Completion]]  # completions are ignored if the prompt has an error

# Characters that would end a line or control a terminal -> how Python writes them in a string. A text file has one
# completion per line.
_ESCAPES = str.maketrans(
    {"\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t"}
    | {chr(c): f"\\x{c:02x}" for c in (*range(9), 11, 12, *range(14, 32), *range(127, 160))}
)


# the fields that CompletionWriter writes, and those of its lines in Parquet
ANSWER = frozenset({
    "id", "custom_id", "response", "error", "choices", "index", "text", "token_ids", "finish_reason", "logprobs",
})  # fmt: skip


class CompletionWriter:
    """Writes one line per prompt to an open AtomicFile.

    A line with one completion is {"id", "text"?, "token_ids", "finish_reason", "logprobs"?}. With several it is {"id",
    "choices": [{"index", and the same fields}]}. With an error it is {"id", "error": {"line", "field", "message"}}.
    Without a tokenizer there is no text. logprobs: one object per token, log-probability by token id. Copied fields
    follow the ids. An OpenAI batch line is answered in OpenAI's form, with token ids added; its logprobs name tokens as
    "token_id:464", like vLLM's with return_tokens_as_token_ids.
    """

    def __init__(self, file: Writable) -> None:
        self.file = file
        self._encode_lines = msgspec.json.Encoder().encode_lines

    def write(self, results: Iterable[Result]) -> None:
        """results: prompts and their completions, in the order of the input. Raises ResourceError."""
        self.file.write(self._encode_lines([_answer(*r) if r[0].openai else _line(*r) for r in results]))


def error_line(said: bytes, error: RecordError) -> bytes:
    """The line that replaces `said`, which CompletionWriter wrote before, for a record that now has this error."""
    answer = msgspec.json.decode(said, type=dict[str, msgspec.Raw])
    openai = "custom_id" in answer
    id = msgspec.json.decode(answer["custom_id" if openai else "id"])
    prompt = Prompt(error.line, id, error, openai=openai, kept=kept_in(answer, ANSWER))
    return msgspec.json.encode(_answer(prompt, []) if openai else _line(prompt, [])) + b"\n"


def empty_line(said: bytes, error: RecordError) -> bytes:
    """The same for TextWriter."""
    return b"\n"


class TextWriter:
    """Writes the text of each completion as one line to an open AtomicFile. A prompt with an error gets an empty line.

    A backslash is doubled. Line ends and other control characters become escapes such as \\n and \\x1b.
    """

    def __init__(self, file: Writable) -> None:
        self.file = file

    def write(self, results: Iterable[Result]) -> None:
        """results: prompts and their completions, in the order of the input. Raises UsageError without a tokenizer."""
        lines: list[str] = []
        for prompt, completions in results:
            lines += [""] if prompt.error else map(self._escaped, completions)
        self.file.write("".join(f"{line}\n" for line in lines).encode())

    def _escaped(self, completion: Completion) -> str:
        if completion.text is None:
            remedy = "name the output .jsonl"
            raise UsageError("text needs a tokenizer.json, and the model has none", path=self.file.path, remedy=remedy)
        return completion.text.translate(_ESCAPES)


def _line(prompt: Prompt, completions: Sequence[Completion]) -> dict[str, Any]:
    if prompt.error:
        return {"id": prompt.id, **prompt.kept, "error": prompt.error}
    if len(completions) == 1:
        return {"id": prompt.id, **prompt.kept, **_fields(completions[0])}
    return {"id": prompt.id, **prompt.kept, "choices": [{"index": each.index, **_fields(each)} for each in completions]}


def _fields(completion: Completion) -> dict[str, Any]:
    fields: dict[str, Any] = {} if completion.text is None else {"text": completion.text}
    fields |= {"token_ids": completion.token_ids, "finish_reason": completion.finish_reason}
    if completion.logprobs is not None:
        fields["logprobs"] = [{id: _shortest(x) for id, x in token.items()} for token in completion.logprobs]
    return fields


def _answer(prompt: Prompt, completions: Sequence[Completion]) -> dict[str, Any]:
    """The answer to an OpenAI batch line, https://platform.openai.com/docs/guides/batch. It has no times or random ids,
    so that the same job writes the same bytes."""
    line: dict[str, Any] = {"id": f"batch_req_{prompt.line}", "custom_id": prompt.id, **prompt.kept}
    if prompt.error:
        return line | {"response": None, "error": batch_error(prompt.error)}
    given, made = len(prompt.token_ids), sum(len(each.token_ids) for each in completions)
    body = {
        "object": "text_completion",
        "choices": [_choice(each) for each in completions],
        "usage": {"prompt_tokens": given, "completion_tokens": made, "total_tokens": given + made},
    }
    return line | {"response": {"status_code": 200, "body": body}, "error": None}


def _choice(completion: Completion) -> dict[str, Any]:
    return {
        "index": completion.index,
        "text": completion.text,
        "token_ids": completion.token_ids,
        "finish_reason": completion.finish_reason,
        "logprobs": None
        if completion.logprobs is None
        else _openai_logprobs(completion.token_ids, completion.logprobs),
    }


def _openai_logprobs(token_ids: list[int], logprobs: list[dict[int, float]]) -> dict[str, Any]:
    return {
        "tokens": [f"token_id:{id}" for id in token_ids],
        "token_logprobs": [_shortest(token[id]) for id, token in zip(token_ids, logprobs, strict=True)],
        "top_logprobs": [{f"token_id:{id}": _shortest(x) for id, x in token.items()} for token in logprobs],
    }


def _shortest(value: float) -> float:
    """The value with the fewest digits that identify the float32."""
    return float(str(np.float32(value)))
