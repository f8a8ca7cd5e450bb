"""The command line: one short file per verb, imported when the verb is used.

A verb is a row of VERBS and a function of the same name in `cli/<verb>.py`, written as for `typer.Typer().command()`.
Its module may import typer and this package at the top; NumPy, Numba and everything of tilewright that needs them
come in inside the function.
"""

from __future__ import annotations

import errno
import functools
import os
import signal
import sys
from collections.abc import Callable
from contextlib import ExitStack
from contextvars import ContextVar
from importlib import import_module
from inspect import cleandoc
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from tilewright.cli._output import say
from tilewright.cli._verb import Verb, name_source
from tilewright.errors import (
    Cancelled,
    InternalError,
    Interrupted,
    ResourceError,
    TilewrightError,
    UsageError,
    error_json,
)

VERBS = {
    "generate": "Continue prompts with GPT-2, OPT or GPT-NeoX: text, JSON lines, Parquet, or binary token ids.",
    "score": "Score given texts with GPT-2, OPT or GPT-NeoX: log-probabilities of their tokens.",
    "classify": "Classify texts with a BERT, RoBERTa, DistilBERT or TextCNN: text, JSON lines or Parquet.",
    "embed": "Turn texts into vectors with a BERT, RoBERTa or DistilBERT: .npy, JSON lines or Parquet.",
    "draw": "Draw images with a DCGAN: .txt, .npy, .png or .bmp.",
    "convolve": "Filter a volume: text, .npy, NIfTI, TIFF or Zarr. It may be larger than memory.",
    "plan": "Print what a job would need: shards, memory, disk and time.",
    "status": "Show how far a job is, and the process that runs it.",
    "work": "Join a job that runs: take shards of it, on this machine or another one.",
    "verify": "Check that the output and the shards of a job are intact.",
    "validate": "Compare an output with a reference: PASS or FAIL.",
    "models": "List the models that come with the package: poet, critic and portraits.",
    "convert": "Convert a model from PyTorch, or between a model directory and a headerless .bin file.",
    "init": "Make a model of any size with random weights.",
    "ladder": "Check and time every kernel of an operation.",
    "show": "Show one kernel: idea, cost, source, machine code, drawing.",
    "sweep": "Time kernels or a job against a parameter: threads, tile, batch size.",
    "bench": "Time a whole workload beside other libraries.",
    "report": "Write tables, figures and a page from the measured results.",
    "writeup": "Write a report of this machine from its measured results.",
    "timeline": "Draw when each worker of a job read, computed and wrote, from --trace files.",
    "demo": "Write verse, judge reviews, draw faces and smooth a volume; then time four jobs at full size.",
    "slurm": "Write a Slurm batch script for a job. The script resumes after time limits.",
    "warm": "Compile the kernels of jobs ahead, into a directory for other machines.",
    "doctor": "Show this machine, and what is missing on it.",
}

EXIT_CODES = """Exit codes: 0 finished, and the summary counts the bad records; 1 a comparison failed, or every record
is bad; 2 wrong usage, or no verb; 3 bad input or weights; 4 the machine lacks something (disk, memory, permission,
GPU); 5 internal error, or more bad records than --max-errors; 75 stopped, the same command resumes; 130 second Ctrl-C,
or the first where nothing can be resumed."""

NO_THREAD = ("can't start new thread", "can't allocate lock")  # what Python says where the system gives none
HELP = {"help_option_names": ["-h", "--help"]}
MODELS = ("model", "source")  # what --model and convert's SRC are called
READ = ("input", "kernel", "mine", "answers", "validate", "reference")  # options that name files
STORED = ("generate", "classify", "score", "embed", "draw", "convolve")  # verbs whose output may be an object's URL
JOB_READERS = ("status", "verify", "work")  # verbs that take the output of a job
WRITTEN = ("output", "image", "trace", "destination")
TEXTS = ("stop", "prompt")  # options that are text, and no names of files
MEMORY = {name: f"--{name.replace('_', '-')}" for name in ("table_memory", "batch_size", "max_batch_memory", "memory")}
_options_given: ContextVar[dict[str, Any]] = ContextVar("options")  # of the verb that runs


class Verbs(TyperGroup):
    """The verbs of VERBS. `--help` imports none of them."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in VERBS:
            return None
        app = _app()
        module = import_module(f"tilewright.cli.{cmd_name}")
        settings = HELP | getattr(module, "CONTEXT", {})
        if hasattr(module, "COMMANDS"):
            return _group(module)
        app.command(cmd_name, cls=Verb, help=None, context_settings=settings)(_guarded(getattr(module, cmd_name)))
        return typer.main.get_command(app)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        self.commands = dict.fromkeys(VERBS, None)  # type: ignore[assignment]  # typer looks here for "Did you mean"
        return super().resolve_command(ctx, args)


def _group(module: Any) -> Any:
    """The verb of a module with COMMANDS, each with its own options. ABOUT: its help. OLD_NAMES: earlier names."""
    app = _app(cls=Group, no_args_is_help=True, help=module.ABOUT, subcommand_metavar="WORKLOAD [OPTIONS]")
    for name, function in module.COMMANDS.items():
        first = cleandoc(function.__doc__ or "").partition("\n\n")[0].replace("\n", " ")  # typer cuts it by itself
        app.command(name, cls=Verb, help=None, short_help=first, context_settings=HELP)(_guarded(function))
    for old, name in module.OLD_NAMES.items():
        app.command(old, cls=Verb, hidden=True, context_settings=HELP)(_guarded(module.COMMANDS[name]))
    return typer.main.get_command(app)


class Group(TyperGroup):
    """A verb with commands of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0].startswith("-") and args[0] not in HELP["help_option_names"]:
            what = f"{args[0]} is an option of a workload; write it after: {ctx.command_path} WORKLOAD {args[0]}"
            raise typer.BadParameter(what, ctx=ctx)
        return super().parse_args(ctx, args)


def _check_files(verb: str, options: dict[str, Any]) -> None:
    """Raises UsageError where a file is standard input or output, or a pipe."""
    from tilewright.formats.files import check_no_stream

    given = {name: options[name] for name in (*READ, "source", *WRITTEN) if isinstance(options.get(name), str)}
    for name, path in given.items() if verb not in JOB_READERS else ():
        check_no_stream(path, name, written=name in WRITTEN and verb != "validate")


def _fetched(verb: str, options: dict[str, Any], opened: ExitStack) -> dict[str, Any]:
    """Options that name an object of a store by its URL, with the paths of local copies. opened: closed when the verb
    is done; then the local copy of an output goes.

    Raises UsageError for a URL where a file is to be written, and what `stores.inputs.fetch` raises.
    """
    found: dict[str, Any] = {}
    for name in (*MODELS, *READ, *WRITTEN):
        given = options.get(name)
        if not isinstance(given, str) or ":/" not in given:
            continue
        from tilewright.runtime.stores.inputs import fetch, fetch_input
        from tilewright.runtime.stores.place import output_at
        from tilewright.runtime.stores.stage import staged
        from tilewright.runtime.stores.urls import is_url, local_path

        if not is_url(given):
            continue
        if name == "input" and verb in STORED:
            found[name] = fetch_input(given, verb)
        elif name not in WRITTEN or verb == "validate":
            found[name] = fetch(given, folder=name in MODELS)
        elif (path := local_path(given, written=True)) is not None:
            found[name] = path
        elif name == "output" and verb in JOB_READERS:
            named = output_at(given) or given.removesuffix("/").removesuffix(".job")
            found[name] = opened.enter_context(staged(named))
        elif name == "output" and verb in STORED:
            found[name] = opened.enter_context(staged(given)) + "/" * given.endswith("/")
        else:
            verbs = f"{', '.join(STORED[:-1])} and {STORED[-1]}"
            what = f"the {name} is the URL {given!r}; only the outputs of {verbs} can be written to a store"
            raise UsageError(what, remedy="write to a local file, and copy it")
    return found


def _texts(options: dict[str, Any]) -> dict[str, Any]:
    """Options that are text, decoded as UTF-8 in every locale: Python's C locale takes them for ASCII.

    Raises UsageError for bytes that are no UTF-8.
    """

    def decoded(name: str, text: str) -> str:
        try:
            return os.fsencode(text).decode()
        except UnicodeError as error:
            raise UsageError(f"--{name} is {text!r}; text in UTF-8 is wanted") from error

    found: dict[str, Any] = {}
    for name in TEXTS:
        given = options.get(name)
        if isinstance(given, str):
            found[name] = decoded(name, given)
        elif given:
            found[name] = [decoded(name, text) for text in given]
    return found


def _guarded(verb: Callable[..., None]) -> Callable[..., None]:
    """The verb, given a directory where --model is a name; its errors end the process as `fail` does."""

    @functools.wraps(verb)
    def called(**options: Any) -> None:
        _options_given.set(options)
        try:
            with ExitStack() as opened:
                options |= _fetched(verb.__name__, options, opened)
                _check_files(verb.__name__, options)
                options |= _texts(options)
                for name in MODELS:
                    if isinstance(options.get(name), str):
                        from tilewright.runtime.named_models import resolved

                        options[name] = resolved(options[name], options.get("output") or options.get("destination"))
                verb(**options)
        except (typer.Exit, SystemExit):
            raise
        except typer.BadParameter as error:
            name_source(error)
            raise
        except BaseException as error:
            name_source(error)
            fail(error)

    return called


def _app(**options: Any) -> typer.Typer:
    settings: dict[str, Any] = {"add_completion": False, "pretty_exceptions_enable": False, "rich_markup_mode": None}
    return typer.Typer(**(settings | {"context_settings": HELP} | options))


app = _app(cls=Verbs, add_completion=True, no_args_is_help=True, subcommand_metavar="VERB [OPTIONS]", epilog=EXIT_CODES)


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"tilewright {version('tilewright')}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")
    ] = False,
) -> None:
    """Batch inference from the kernel up, for text, sentences, images and volumes.

    \b
    tilewright demo                   shows it in a minute
    tilewright VERB --help            explains a verb
    tilewright --install-completion   lets the shell complete verbs and options with the Tab key
    """


def main(arguments: list[str] | None = None) -> None:
    """Runs the command line and exits. An error is one paragraph on stderr; TILEWRIGHT_DEBUG=1 adds the traceback."""
    try:
        app(args=arguments, prog_name="tilewright")
    except SystemExit as end:
        usage = getattr(end.__context__, "format_message", None)  # typer has printed what is wrong with the options
        if usage and "--json" in (sys.argv[1:] if arguments is None else arguments):
            from json import dumps

            say(dumps({"error": {"code": end.code, "message": usage()}, "exit_code": end.code}))
        raise
    except BaseException as error:
        fail(error)


def fail(error: BaseException) -> None:
    """Ends the process with the error's exit code: a paragraph on stderr, and with --json an object on stdout."""
    known = explained(error)
    if isinstance(known, Interrupted | Cancelled):
        signal.signal(signal.SIGINT, lambda number, frame: os._exit(130))
    if os.environ.get("TILEWRIGHT_DEBUG"):
        sys.__excepthook__(type(error), error, error.__traceback__)
    say(f"Error: {known}", err=True)
    if _options_given.get({}).get("json"):
        say(error_json(known))
    sys.exit(known.exit_code)


def explained(error: BaseException) -> TilewrightError:
    """`error` itself if it is a TilewrightError, otherwise the TilewrightError that replaces it."""
    if isinstance(error, TilewrightError):
        return error
    if isinstance(error, KeyboardInterrupt):
        return Cancelled("stopped by Ctrl-C: there is nothing to resume, and what was saved stays")
    if isinstance(error, MemoryError):
        smaller = " or ".join(flag for name, flag in MEMORY.items() if name in _options_given.get({}))
        remedy = f"use a smaller {smaller}" if smaller else "let other programs give some back"
        return ResourceError(f"not enough memory ({str(error) or 'an allocation failed'})", remedy=remedy)
    if (isinstance(error, RuntimeError) and str(error) in NO_THREAD) or getattr(error, "errno", 0) == errno.EAGAIN:
        remedy = "allow more (ulimit -u, or the pids limit of a container), or use fewer --workers or --threads"
        return ResourceError("the system gives this user no more threads or processes", remedy=remedy)
    if isinstance(error, OSError) and error.strerror:
        return ResourceError(f"the system refuses: {error.strerror.lower()}", path=error.filename)
    return InternalError(
        f"internal error, {type(error).__name__}: {error}", remedy="set TILEWRIGHT_DEBUG=1 to see where, and report it"
    )
