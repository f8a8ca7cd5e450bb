"""The catalogue of error messages (tests/tools/messages.py), and the rules of style that every message keeps."""

import re
from collections.abc import Iterator

import pytest

from lints import DIALECT
from tools.messages import Message, main, messages, messages_of

WORDS = 25  # of a sentence
VERBS = {  # with which a remedy begins
    "add", "allow", "alternate", "ask", "check", "choose", "compare", "convert", "copy", "correct", "download", "draw",
    "end", "free", "get", "give", "if", "install", "leave", "let", "lower", "make", "measure", "move", "name", "put",
    "read", "redirect", "remove", "rename", "replace", "run", "save", "say", "scale", "see", "set", "start", "stop",
    "join", "store", "submit", "type", "unmount", "unpack", "unset", "update", "use", "wait", "write",
}  # fmt: skip
PER = (r"\b(one|tokens|pixels|channels|numbers?|values?|completions?|objects?|files?) an? [a-z]", "one ... per ...")
RULE = re.compile(r"\b(must|at most|at least|(is|are) (wanted|allowed|known|read))\b")
SCIPYS = "ndimage/"  # raises what SciPy raises, in SciPy's words


def without_values(text: str) -> str:
    """A message with {} for each value."""
    while text != (text := re.sub(r"\{[^{}]+\}", "{}", text.replace("{}", "\0"))):
        pass
    return text.replace("\0", "{}")


def breaches(message: Message) -> Iterator[str]:
    """What a message does against the rules."""
    for text in (*message.texts, *message.remedies):
        plain = without_values(text)
        for pattern, better in (*DIALECT, PER):
            if found := re.search(pattern, plain, re.IGNORECASE):
                yield f"{found.group()!r}: write {better}"
        for sentence in re.split(r"(?<=[.!?])\s+|\n", plain):
            if (count := len(sentence.split())) > WORDS:
                yield f"a sentence of {count} words; {WORDS} are allowed: {sentence}"
    for text in message.texts:
        rule = RULE.search(text)
        before = text[: rule.start()] if rule else "{"  # "": the words are a rule, and given apart from the value
        if before and "{" in text and "{" not in before and not message.path.startswith(SCIPYS):
            yield f"the rule comes before the value: {text}"
    for text in message.remedies:
        first = re.match(r"[\w'-]*", text)[0].lower()
        if not text.startswith("{") and first not in VERBS:
            yield f"the remedy is no imperative: {text}"


def test_every_message_keeps_the_rules():
    found = messages()
    assert len(found) > 500 and sum(bool(message.remedies) for message in found) > 200
    wrong = [f"{message.path}:{message.line}: {breach}" for message in found for breach in breaches(message)]
    assert not wrong, "\n" + "\n".join(wrong)


@pytest.mark.parametrize(
    ("text", "remedy", "breach"),
    [
        ("there is no place for it", "", "'place': write device"),
        ("it has three parts, of which one is bad", "", "'of which': write two sentences"),
        ("a text output holds one completion a prompt", "", "'completion a p': write one ... per ..."),
        (" ".join(["long"] * 26), "", "a sentence of 26 words"),
        ("sizes up to at most {most} are allowed, not {size}", "", "the rule comes before the value"),
        ("size is {size}", "the file was cut short", "the remedy is no imperative"),
        ("size is {size}", "use the room that is left", "'room': write buffer"),
    ],
)
def test_a_rule_catches_its_offender(text, remedy, breach):
    (found,) = breaches(Message("a.py", 1, "UsageError", (text,), (remedy,) if remedy else ()))
    assert breach in found


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("size is {size}; at most {most} are allowed", "use a smaller size"),
        ("{', '.join(f'{place}' for place in places)} is missing", "{REMEDY}"),
        (f"{' '.join(['word'] * 25)}. {' '.join(['word'] * 25)}", "do not"),
    ],
)
def test_a_rule_lets_the_innocent_pass(text, remedy):
    remedies = () if remedy == "do not" else (remedy,)
    assert list(breaches(Message("a.py", 1, "UsageError", (text,), remedies))) == []


SOURCE = """
from tilewright.b import refused
KEPT = "remove it"

class OwnError(UsageError): ...

def f(what, n):
    text = f"{n} is {'not ' if n else ''}even"
    if n > 1:
        text = "n is large"
        raise OwnError(text, remedy=KEPT if what else "give another")
    if n < 0:
        said, why = "n is negative", "so"
        raise InputError(said)
    if n:
        raise UsageError(parameter="n", value=str(n), rule="it must be 0")
    try:
        raise ValueError(f"the {what} is wrong: " + "bad")
    except ValueError as error:
        raise refused(text) from error
    ValueError("it is not raised")
"""


def test_the_catalogue_follows_names_conditions_and_functions():
    """A name is what was assigned to it last, before the call; a parameter and a function's value stand as they are."""
    b = "def refused(why) -> InputError:\n    return InputError(f'no: {why}', path=1)\n"
    errors = "class UsageError(TilewrightError): ...\nclass InputError(TilewrightError): ...\n"
    found = messages_of({"a.py": SOURCE, "b.py": b, "errors.py": errors})
    assert [(m.path, m.kind, m.texts, m.remedies) for m in found] == [
        ("a.py", "OwnError", ("n is large",), ("remove it", "give another")),
        ("a.py", "InputError", ("n is negative",), ()),
        ("a.py", "UsageError", ("n is {str(n)}; it must be 0",), ()),
        ("a.py", "ValueError", ("the {what} is wrong: bad",), ()),
        ("a.py", "refused", ("{n} is not even",), ()),
        ("b.py", "InputError", ("no: {why}",), ()),
    ]


def test_the_catalogue_is_printed_by_file(capsys):
    main()
    said = capsys.readouterr().out
    assert "\nformats/lines.py\n" in said and "byte {error.start} is not UTF-8" in said
    assert said.index("\nbackends/__init__.py\n") < said.index("\nsimd/cache.py\n")
