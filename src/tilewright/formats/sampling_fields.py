"""The sampling fields of vLLM, OpenAI and transformers by name. Each is supported, ignored because it has no effect, or
refused.

Every reader of prompts and `SamplingParams.of` use this table, so no field that would change an answer is silently
ignored. Any other name is data of the user. Sources: vLLM's `SamplingParams` and `CompletionRequest`, OpenAI's
completions and chat completions, transformers' `GenerationConfig` (5.23) and its older fields.
"""

from __future__ import annotations

import json
from difflib import get_close_matches
from functools import lru_cache
from numbers import Integral
from typing import Any

PROMPT_FIELDS = ("prompt", "prompt_token_ids", "input_ids")
ALIKE = 0.88  # difflib's ratio from which a name counts as a misspelt one
PARAMETERS = (  # fields of `SamplingParams`
    "n", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty",
    "logit_bias", "bad_words", "allowed_token_ids", "suppress_tokens", "no_repeat_ngram_size", "seed", "stop",
    "stop_token_ids", "include_stop_str_in_output", "ignore_eos", "max_tokens", "min_tokens", "logprobs",
)  # fmt: skip
ALIASES = {  # other libraries' names for the same fields
    "max_new_tokens": "max_tokens",
    "max_completion_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "num_return_sequences": "n",
    "eos_token_id": "stop_token_ids",
    "stop_strings": "stop",
    "stop_sequences": "stop",
}
HONOURED = (*PARAMETERS, *ALIASES, "do_sample")
DRAWING = ("seed", "top_k", "top_p", "min_p")  # they matter only if tokens are sampled

HARMLESS = frozenset({  # they change how an answer is computed or delivered, not the answer; every value is accepted
    # vLLM and OpenAI
    "flat_logprobs", "output_kind", "output_text_buffer_length", "return_token_ids", "return_tokens_as_token_ids",
    "routed_experts_prompt_start", "skip_clone", "skip_reading_prefix_cache", "stream_interval", "stream_options",
    "truncation_side",
    # transformers: caches, compilation, the form of a Python result, and draft models whose tokens the model checks
    "_from_model_config", "assistant_confidence_threshold", "assistant_early_exit", "assistant_lookbehind",
    "bos_token_id", "cache_config", "cache_implementation", "compile_config", "continuous_batching_config",
    "disable_compile", "is_assistant", "low_memory", "max_cache_len", "max_matching_ngram_size",
    "num_assistant_tokens", "num_assistant_tokens_schedule", "pad_token_id", "prefill_chunk_size",
    "prompt_lookup_num_tokens", "renormalize_logits", "return_dict_in_generate", "return_legacy_cache",
    "speculation_type", "target_lookbehind", "transformers_version", "use_cache", "use_mtp",
})  # fmt: skip

REFUSED: dict[str, tuple[Any, ...]] = {  # field -> the values that have no effect; null has none in any field
    # vLLM and OpenAI
    "add_special_tokens": (True,), "beam_width": (1,), "best_of": (1,), "detokenize": (True,), "echo": (False,),
    "extra_args": ({},), "guided_choice": ([],), "guided_decoding": (), "guided_decoding_backend": (),
    "guided_grammar": (), "guided_json": (), "guided_json_object": (False,), "guided_regex": (),
    "guided_whitespace_pattern": (), "length_penalty": (1,), "logit_processors": ([],), "logits_processors": ([],),
    "logprob_token_ids": (), "prompt_embeds": (), "prompt_logprob_start": (), "prompt_logprob_token_ids": (),
    "prompt_logprobs": (), "repetition_detection": (), "response_format": ({"type": "text"},),
    "return_token_offsets": (False,), "skip_special_tokens": (True,), "spaces_between_special_tokens": (True,),
    "stream": (False,), "structural_tag": (), "structured_outputs": (), "suffix": ("",), "thinking_token_budget": (-1,),
    "top_logprobs": (0,), "trace_decode_token_ids": (), "truncate_prompt_tokens": (), "use_beam_search": (False,),
    "vllm_xargs": ({},), "watermarking": (False,),
    # transformers
    "assistant_ensemble_weight": (), "bad_words_ids": ([],), "begin_suppress_tokens": ([],), "constraints": ([],),
    "decoder_start_token_id": (), "diversity_penalty": (0,), "dola_layers": (), "early_stopping": (False,),
    "encoder_no_repeat_ngram_size": (0,), "encoder_repetition_penalty": (1,), "epsilon_cutoff": (0,),
    "eta_cutoff": (0,), "exponential_decay_length_penalty": (), "force_words_ids": ([],), "forced_bos_token_id": (),
    "forced_decoder_ids": ([],), "forced_eos_token_id": (), "generation_kwargs": ({},), "guidance_scale": (1,),
    "max_length": (), "max_time": (), "min_length": (0,), "num_beam_groups": (1,), "num_beams": (1,),
    "output_attentions": (False,), "output_hidden_states": (False,), "output_logits": (False,),
    "output_scores": (False,), "penalty_alpha": (0,), "remove_invalid_values": (False,), "sequence_bias": ({}, []),
    "token_healing": (False,), "top_h": (1,), "typical_p": (1,), "watermarking_config": (),
    # other servers: TGI, llama.cpp, Ollama, SGLang
    "adapter_id": (), "decoder_input_details": (False,), "dry_multiplier": (0,), "dynatemp_range": (0,), "ebnf": (),
    "json_schema": (), "lora_request": (), "mirostat": (0,), "multi_modal_data": ({},), "n_predict": (),
    "n_probs": (0,), "no_stop_trim": (False,), "num_predict": (), "repeat_last_n": (), "repeat_penalty": (1,),
    "return_full_text": (False,), "stop_regex": (), "tfs_z": (1,), "top_n_sigma": (), "top_n_tokens": (0,),
    "watermark": (False,), "xtc_probability": (0,),
    # transformers: inputs of a model besides token ids
    "attention_mask": ([1],), "encoder_outputs": (), "inputs_embeds": (), "past_key_values": (), "position_ids": ([0],),
    "token_type_ids": ([0],),
    # objects with such fields; here the fields stand beside the prompt
    "options": ({},), "parameters": ({},),
    "extra_body": ({},), "generate_kwargs": ({},), "generation_config": ({},), "sampling_parameters": ({},),
    "sampling_params": ({},),
}  # fmt: skip

# The other fields of a request to a server. These words are common. So they are data outside the body of an OpenAI line
# and outside `SamplingParams.of`.
HARMLESS_IN_BODY = frozenset({
    "cache_salt", "include_reasoning", "metadata", "parallel_tool_calls", "prediction", "priority",
    "prompt_cache_key", "prompt_cache_retention", "request_id", "return_mm_kwargs", "safety_identifier",
    "service_tier", "session_id", "store", "user",
})  # fmt: skip
REFUSED_IN_BODY: dict[str, tuple[Any, ...]] = {
    "add_generation_prompt": (True,), "audio": (), "chat_template": (), "chat_template_kwargs": ({},),
    "continue_final_message": (False,), "documents": ([],), "ec_transfer_params": (), "function_call": ("none", "auto"),
    "functions": ([],), "kv_transfer_params": (), "mm_processor_kwargs": ({},), "modalities": (["text"],),
    "moderation": (), "reasoning_effort": ("none",), "tool_choice": ("none", "auto"), "tools": ([],), "verbosity": (),
    "web_search_options": (),
}  # fmt: skip

MODEL_INPUTS = {  # of REFUSED: lists with a number per token. The values that have no effect, and what to do otherwise
    "attention_mask": (lambda value: _all_are(1, value), "leave out the tokens with 0, and attention_mask"),
    "position_ids": (lambda value: value == [*range(len(value))], "leave it out: positions count from 0"),
    "token_type_ids": (lambda value: _all_are(0, value), "leave it out: a record is one text"),
}
OBJECTS = ("options", "parameters")  # common words: refused only if they are objects with a sampling field

INSTEAD = {  # what to do if something similar is supported
    "bad_words_ids": "give the words as bad_words",
    **dict.fromkeys(
        (
            "extra_body",
            "generate_kwargs",
            "generation_config",
            "generation_kwargs",
            "options",
            "parameters",
            "sampling_parameters",
            "sampling_params",
        ),
        "give its fields beside the prompt",
    ),
    "begin_suppress_tokens": "suppress_tokens holds for all tokens",
    "best_of": "give n",
    "n_predict": "give max_tokens",
    "n_probs": "give logprobs",
    "num_predict": "give max_tokens",
    "repeat_penalty": "give repetition_penalty",
    "top_n_tokens": "give logprobs",
    **dict.fromkeys(
        ("echo", "prompt_logprobs", "prompt_logprob_start", "prompt_logprob_token_ids"),
        "score the prompt with `tilewright score`, which gives each token's log-probability",
    ),
    "max_length": "give max_tokens, which counts new tokens alone",
    "min_length": "give min_tokens, which counts new tokens alone",
    "sequence_bias": "logit_bias shifts single tokens",
    "top_logprobs": "give logprobs, a number",
    "truncate_prompt_tokens": "cut the prompt before it is written",
}


def is_harmless(name: str, *, body: bool) -> bool:
    """True if the field has no effect on an answer. body: it is a field of a request, not of a plain record."""
    return name in HARMLESS or (body and name in HARMLESS_IN_BODY)


def is_known(name: str, *, body: bool) -> bool:
    """True if the table has the name. body: as in `is_harmless`."""
    return name in HONOURED or name in REFUSED or is_harmless(name, body=body) or (body and name in REFUSED_IN_BODY)


def refusal(name: str, value: Any, *, body: bool) -> str | None:
    """The rule that a refused field breaks. None if its value has no effect, or if the field is not refused."""
    neutral = REFUSED.get(name)
    if neutral is None and body:
        neutral = REFUSED_IN_BODY.get(name)
    if neutral is None or value is None or any(_same(value, each) for each in neutral):
        return None
    if name in OBJECTS and not (isinstance(value, dict) and any(is_known(key, body=False) for key in value)):
        return None
    if name in MODEL_INPUTS:
        holds, instead = MODEL_INPUTS[name]
        return None if isinstance(value, list) and holds(value) else f"this is not supported: {instead}"
    others = " or ".join(_as_json(each) for each in neutral)
    todo = f"leave it out{f', or give {others}' if others else ''}"
    return f"this is not supported: {f'{INSTEAD[name]}, or ' if name in INSTEAD else ''}{todo}"


def shown(value: Any) -> str:
    """A value for a message. It is short, and works for integers of more than 4,300 digits, which Python refuses to
    print."""
    if isinstance(value, Integral) and int(value).bit_length() > 128:
        return f"an integer of {int(value).bit_length()} bits"
    if isinstance(value, list | tuple | dict | set) and len(value) > 8:
        return f"a {type(value).__name__} of {len(value):,}"
    try:
        text = repr(value)
    except ValueError:
        return f"a {type(value).__name__} with an integer of too many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def shown_as_json(value: Any) -> str:
    """A list or an object of a record as JSON, for a message; see `shown`."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return shown(value)
    return text if len(text) <= 60 else shown(value)


def _all_are(wanted: int, values: list[Any]) -> bool:
    return all(value == wanted and not isinstance(value, str) for value in values)


def _same(value: Any, neutral: Any) -> bool:
    """Equal, but True and 1 differ."""
    return isinstance(value, bool) == isinstance(neutral, bool) and bool(value == neutral)


def _as_json(value: Any) -> str:
    import msgspec

    return msgspec.json.encode(value).decode()


def names_sampling(column: str) -> bool:
    """True for a column of a table that must be read: a sampling field, supported or refused, or almost the name of
    one."""
    if column in HONOURED or column in REFUSED:
        return True
    return column not in HARMLESS and meant_by(column, HONOURED) is not None


@lru_cache(1024)
def meant_by(name: str, wanted: tuple[str, ...]) -> str | None:
    """The field that a misspelt name was meant to be."""
    return next(iter(get_close_matches(name.lower(), wanted, 1, ALIKE)), None)
