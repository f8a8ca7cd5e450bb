"""Small files tokenizer.json for tests."""

import json


def alphabet():
    """GPT-2's letters for the 256 bytes, in the order of their ids."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in plain]
    return [chr(byte) for byte in plain] + [chr(256 + i) for i in range(len(others))]


def contents(**changes):
    """A small tokenizer like GPT-2's, with <|endoftext|> as its last token; id 256 is "he"."""
    letters = alphabet()
    vocab = {letter: id for id, letter in enumerate([*letters, "he"])}
    end = {"id": 257, "content": "<|endoftext|>", "special": True, "normalized": False, "single_word": False}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    fields = {
        "version": "1.0",
        "added_tokens": [{**end, "lstrip": False, "rstrip": False}],
        "pre_tokenizer": level,
        "decoder": level,
        "model": {"type": "BPE", "vocab": vocab, "merges": ["h e"]},
    }
    return json.dumps({**fields, **changes})
