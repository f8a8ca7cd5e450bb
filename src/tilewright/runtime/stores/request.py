"""job.json: the options of a job, for workers that join it. Files are given as URLs or absolute paths."""

from __future__ import annotations

import glob
import os
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from typing import Any, get_type_hints

import msgspec

from tilewright.errors import UsageError, brief
from tilewright.formats.fetched import as_urls
from tilewright.formats.files import path_of, spelled
from tilewright.runtime.fingerprint import own_version
from tilewright.runtime.jobs.settings import Settings
from tilewright.runtime.named_models import FOLDER, NAMES
from tilewright.runtime.stores.inputs import fetch, fetch_input
from tilewright.runtime.stores.urls import is_url
from tilewright.simd import cache

VERBS = ("classify", "convolve", "draw", "embed", "generate", "score")
DECIDING = ("device", "dtype", "rungs", "without", "batch_size")  # settings that a worker takes from the job
PATHS = ("model", "input", "kernel", "image", "table_path")  # fields that may be paths
SAME = "start it from the installation that the job was begun with"


class Request(msgspec.Struct, forbid_unknown_fields=True):
    """The content of job.json.

    verb, job: the command and its options. version: of tilewright. sources: a hash of the kernels' sources. Workers
    must have the same version and the same hash.
    """

    verb: str
    version: str
    sources: str
    job: dict[str, Any]


def request_of(job: Any) -> bytes:
    """The content of job.json. job: the dataclass of a verb's options. Of its output, only a last slash is stored."""
    verb = type(job).__module__.split(".")[-2]
    fields = msgspec.to_builtins(replace(job, source=None) if hasattr(job, "source") else job)
    fields.pop("source", None)  # the parsed input: each worker parses it again
    is_folder = job.output.endswith("/") or (verb == "draw" and os.path.isdir(job.output))
    fields["output"], fields["answers"] = "/" * is_folder, None  # only the process that merges compares with --answers
    fields["settings"] = {name: fields["settings"][name] for name in DECIDING}
    for name in PATHS:
        if isinstance(given := fields.get(name), str):
            fields[name] = spelled(_portable(given))
    return msgspec.json.encode(Request(verb, own_version(), cache.sources().hex()[:16], fields)) + b"\n"


def _portable(path: str) -> str:
    if path.startswith("@"):  # a file with a list of names
        return f"@{os.path.abspath(path[1:])}"
    url = as_urls(os.path.abspath(path))
    if is_url(url):
        return url
    if os.path.dirname(url) == str(FOLDER) and (name := os.path.basename(url)) in NAMES:
        return name
    return url if os.path.lexists(path) or glob.has_magic(path) else path  # such as the name of a convolution's kernel


def job_of(raw: bytes, where: str, output: str) -> tuple[Any, Callable[..., Any]]:
    """(the job, its verb's `task_of`) from a job.json. Inputs and models given as URLs are downloaded.

    where: the name of job.json in errors. Raises UsageError if another version of tilewright wrote it, and what
    `fetch` raises.
    """
    try:
        request = msgspec.json.decode(raw, type=Request)
        if request.verb not in VERBS:
            raise msgspec.ValidationError(f"there is no verb {request.verb!r}")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UsageError(f"this is not a job that can be joined: {brief(error)}", path=where, remedy=SAME) from error
    mine = own_version(), cache.sources().hex()[:16]
    if (request.version, request.sources) != mine:
        said = f"version {request.version or '?'} ({request.sources[:8]})"
        what = f"the job was begun by tilewright {said}, and this is version {mine[0] or '?'} ({mine[1][:8]})"
        raise UsageError(f"{what}; other sources may give other bits", path=where, remedy=SAME)
    verbs = f"tilewright.runtime.verbs.{request.verb}"
    kind = getattr(import_module(f"{verbs}.job"), f"{request.verb.capitalize()}Job")
    try:
        hints = get_type_hints(kind)
        for name in PATHS:
            if isinstance(given := request.job.get(name), str):
                request.job[name] = path_of(given)
        job = kind(**{name: msgspec.convert(value, hints[name], strict=False) for name, value in request.job.items()})
    except (msgspec.MsgspecError, KeyError, TypeError, UsageError, RecursionError) as error:
        raise UsageError(f"this is not a job that can be joined: {brief(error)}", path=where, remedy=SAME) from error
    job = replace(job, output=output.rstrip("/") + "/" * (job.output == "/"))
    for name in PATHS:
        if isinstance(given := getattr(job, name, None), str) and is_url(given):
            copied = fetch_input(given, request.verb) if name == "input" else fetch(given, folder=name == "model")
            setattr(job, name, copied)
        elif name == "model" and given in NAMES:
            job.model = str(FOLDER / given)
    return job, import_module(f"{verbs}.task").task_of


def settings_for(job: Any, mine: Settings) -> Settings:
    """The settings of a worker: those in DECIDING, which may change results, are the job's; the rest are `mine`."""
    return replace(mine, **{name: getattr(job.settings, name) for name in DECIDING})
