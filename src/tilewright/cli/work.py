"""`tilewright work OUTPUT`: help with a job that another process has begun."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal

import typer
from typer import Argument, Option

from tilewright.cli._options import RUNS, Json, Threads, check_threads, output_of, verb
from tilewright.cli._output import say, show, show_json
from tilewright.errors import counted
from tilewright.runtime.jobs.settings import Settings


@dataclass
class Options:
    """One field per option."""

    output: Annotated[
        str, Argument(metavar="OUTPUT", help="Path or URL of the job's output, or the directory with the job's state.")
    ]
    workers: Annotated[
        int | None,
        Option(metavar="N", min=1, max=1024, show_default="one", rich_help_panel=RUNS,
               help="Number of worker processes. Each gets one GPU, or an equal share of the CPU cores."),
    ] = None  # fmt: skip
    engine: Annotated[
        Literal["inline", "local"] | None,
        Option(help="What runs the shards: this process (inline), or supervised worker processes (local).",
               show_default="inline, or local with --workers", rich_help_panel=RUNS),
    ] = None  # fmt: skip
    threads: Threads = None
    grace: Annotated[
        float,
        Option(metavar="SECONDS", min=0, rich_help_panel=RUNS,
               help="Stop at most this long after a stop signal. Shards that are finished by then are saved."),
    ] = Settings.grace  # fmt: skip
    watchdog: Annotated[
        float,
        Option(
            metavar="SECONDS",
            min=1,
            help="Replace a worker that has reported no progress for this long.",
            rich_help_panel=RUNS,
        ),
    ] = Settings.watchdog
    json: Json = False


@verb(Options)
def work(options: Options) -> None:
    """Join a running job, on this or another machine: compute shards that no other worker has taken.

    \b
    tilewright work s3://bucket/answers.jsonl

    OUTPUT is the output of the job, as in the command that started it. That command plans the job and writes the
    output; any number of workers may help it. They need the same version of tilewright. Inputs and models given by URL
    are downloaded; local ones must have the same paths. All options that influence results come from the job.

    After a stop signal, the shard in progress is finished if --grace seconds are enough; other workers compute the
    rest. If a worker is killed, others take its shards half a minute later. A shard that runs twice gives the same
    bytes.

    Exit code 0: no shard is left. 75: this worker was stopped before that.
    """
    check_threads(options.threads)
    from tilewright.runtime.stores.work import work

    options.output = output_of(options.output)
    settings = Settings(workers=options.workers, engine=options.engine, threads=options.threads, grace=options.grace,
                        watchdog=options.watchdog, json=options.json)  # fmt: skip
    worked = work(options.output, settings, lambda line: say(line, err=options.json))
    if options.json:
        show_json({"verb": "work", "output": options.output, **vars(worked), "exit_code": worked.exit_code})
    else:
        mine = f"{counted(worked.mine, 'shard')}, {counted(worked.records, 'record')}, {worked.errors:,} bad"
        show(f"This worker made {mine}. {worked.done:,} of {worked.shards:,} shards of the job are there")
    raise typer.Exit(worked.exit_code)
