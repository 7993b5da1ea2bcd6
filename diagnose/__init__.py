"""Why is this PyTorch training run slow, what to change, and what each change would save.

`pipeline` is the story of an analysis. The rooms, from the lowest to the highest, each of which sees those before it:

    trace       what a training run looked like: tables, and pure functions on them
    facts       what can be measured on a trace
    replay      what the step time would be if: a dependency graph, edits of it, and what they save
    contracts   the values that other programs read: the Diagnosis with its findings, comparisons, trials
    advice      from what rules find to what is said: dropped, worded, priced, ranked, put together
    rulekit     what a rule is made of and what runs it; the rules are files beside the package
    source      bytes to trace: one reader per file format
    storage     files at URLs: listed, read and written
    capture     running a training so that it records itself
    tables      what other programs ask their own questions of, made of facts
    timeline    what a page draws of the shown rank: marks in lanes, samples of single operations
    reports     a Diagnosis as text, as a page, and as figures
    synthetic   traces drawn in text
    trials      the user's script, run with and without a fix
    comparing   two recordings: what differs, and whether it is noise
    exporting   a run's tables as files of Parquet
    ledger      what is remembered of trials
    cli         the command line
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from diagnose.version import __version__

if TYPE_CHECKING:
    from collections.abc import Sequence
    from os import PathLike
    from typing import Any

    from diagnose import figures
    from diagnose.capture.inline import Recording
    from diagnose.contracts.comparison import Comparison
    from diagnose.contracts.diagnosis import Diagnosis
    from diagnose.exporting.run import Export
    from diagnose.trace.model import Run

__all__ = ["Diagnosis", "__version__", "analyze", "compare", "export", "figures", "load", "record", "to_hta", "watch"]


def __getattr__(name: str) -> Any:
    """`diagnose.figures`, `diagnose.Diagnosis`, ..., imported when first asked for: pandas and plotly take time."""
    if name == "figures":
        from importlib import import_module

        return import_module("diagnose.figures")
    if name == "Diagnosis":
        from diagnose.reports import markdown

        return markdown.shown_in_notebooks()
    raise AttributeError(f"module 'diagnose' has no attribute {name!r}")


def load(*paths: str | PathLike[str]) -> Run:
    """Read traces (files, folders, glob patterns, URLs) as tables: `load("rank0.json.gz").ranks[0].spans`.

    Raises `diagnose.source.base.InputError` if there is nothing sound to read.
    """
    from diagnose.source import ranks

    return ranks.load([str(path) for path in paths])


def analyze(
    *paths: str | PathLike[str],
    steps: tuple[int, int] | None = None,
    jobs: int | None = None,
    rules: Sequence[str | PathLike[str]] = (),
    select: Sequence[str] = (),
    ignore: Sequence[str] = (),
    cluster: str | None = None,
) -> Diagnosis:
    """Diagnose traces (files, folders, glob patterns, URLs).

    Many ranks are read by `jobs` processes here (default 1), or by the workers of `cluster`, the address of a Dask
    scheduler; "local" starts `jobs` of them.

    `steps` uses only the recorded steps from its first to its last. `rules` are folders of rules beside the built-in
    ones; `select` and `ignore` name rules, their folders, codes or beginnings of codes.

    Raises `diagnose.source.base.InputError` if there is nothing sound to read, and
    `diagnose.rulekit.vocabulary.RuleError` if rules are not sound.
    """
    from pathlib import Path

    from diagnose import pipeline
    from diagnose.reports import markdown
    from diagnose.rulekit.engine import RuleSet, known_folders

    folders = (*known_folders(), *(Path(folder) for folder in rules))
    chosen = RuleSet(folders, tuple(select), tuple(ignore))
    markdown.shown_in_notebooks()
    return pipeline.diagnose([str(path) for path in paths], steps, jobs, rules=chosen, cluster=cluster)


def compare(before: str | PathLike[str], after: str | PathLike[str], *, jobs: int | None = None) -> Comparison:
    """How a recording differs from an earlier one, and whether that is noise.

    Each is what `analyze` takes, a report of it as JSON, or what `diagnose baseline` has written; a pattern of folders
    stands for several recordings of one side.

    Raises `diagnose.source.base.InputError` if a side cannot be read, and `diagnose.comparing.compare.Inconclusive` if
    nothing can be measured in it.
    """
    from diagnose.comparing.compare import compare, side

    def analysed(paths: Sequence[str]) -> Diagnosis:
        return analyze(*paths, jobs=jobs)

    return compare(*(side(str(one), analysed).baseline for one in (before, after)))


def export(
    *paths: str | PathLike[str], parquet: str | PathLike[str], tables: Sequence[str] = (), jobs: int = 1
) -> Export:
    """Write the tables of a run (files, folders, glob patterns, URLs) as files of Parquet: `export("runs/a",
    parquet="tables")`. Needs torch-diagnose[parquet].

    The folder gets TABLE/rankN.parquet of all tables, or of those named in `tables`. It is new, empty, or an earlier
    export, which is replaced.

    Raises `diagnose.source.base.InputError` if there is nothing sound to read,
    `diagnose.exporting.run.CannotExport` if nothing can be written, and ValueError if there is no such table.
    """
    from pathlib import Path

    from diagnose.exporting import run
    from diagnose.exporting.tables import named
    from diagnose.source import recording

    asked = named(tables)
    given = recording.find([str(path) for path in paths])
    return run.export(given, Path(parquet), asked, lambda: analyze(*paths, jobs=jobs), jobs)


def record(
    folder: str | PathLike[str],
    *,
    steps: int = 5,
    warmup: int = 10,
    memory: bool = False,
    ranks: str = "auto",
    overwrite: bool = False,
) -> Recording:
    """Record some steps of a loop of your own, as `diagnose profile` would:

        with diagnose.record("runs/a", steps=5) as recording:
            for batch in loader:
                train(batch)
                recording.step()

    `folder` is new, empty, or left by an attempt that recorded nothing; with `overwrite` it may hold an earlier
    recording, which is replaced, so that a cell of a notebook can be run again. `warmup` steps are skipped, at least;
    then some are timed without a profiler, `steps` recorded, and some recorded with call stacks, with allocations if
    `memory`. `ranks` are recorded: "all", "auto", or numbers, as in "0,1,8-15". The loop goes on;
    `recording.finished` tells when it need not.

    Raises `diagnose.capture.run.CannotRecord` on entering if the folder cannot be used or another recording is being
    made, ValueError if there are no steps or ranks to record.
    """
    from diagnose.capture import inline

    return inline.recording(folder, steps=steps, warmup=warmup, memory=memory, ranks=ranks, overwrite=overwrite)


def watch(folder: str | PathLike[str], *, overwrite: bool = False) -> Recording:
    """Write a log of a training of your own, as `diagnose watch` does:

        with diagnose.watch("runs/a"):
            train()

    `folder` is as in `record`. Steps are found by optimizers; `step()` of what this gives marks them.
    `diagnose analyze` says where the time went, also while the training goes on.

    Raises `diagnose.capture.run.CannotRecord` on entering if the folder cannot be used or another recording is being
    made.
    """
    from diagnose.capture import inline

    return inline.watching(folder, overwrite=overwrite, finds_steps=True)


def to_hta(run: Run) -> Any:
    """A filled `hta.trace_analysis.TraceAnalysis` of the run, without HTA's own loading. Needs torch-diagnose[hta]."""
    from diagnose.facts import _hta

    return _hta.to_hta(run)
