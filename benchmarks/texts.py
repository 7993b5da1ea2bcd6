"""Generated texts that need more than the package: `python -m benchmarks.texts --write | --check [--corpus DIR]`.

Tables of accuracy and speed come from benchmarks/*.json, help from the commands, reports from the recordings in
sample_traces/. Reports of public traces are made where those are: `--corpus` names their folder.
`make texts` writes these and those of `diagnose.docs`.
"""

import argparse
import sys
from collections.abc import Callable, Iterator
from functools import cache, partial
from itertools import takewhile
from pathlib import Path

import click
import msgspec
from click.testing import CliRunner

import diagnose
from benchmarks import (
    accuracy,
    accuracy_tables,
    changed_ops,
    gpu_traces,
    h100,
    known_costs,
    load,
    loaders,
    multi_rank_traces,
    public,
    queries,
    ranges,
    recorded_samples,
)
from benchmarks.jobs import tables as job_tables
from benchmarks.noise import gpus as noise_gpus
from benchmarks.noise import power as noise_power
from benchmarks.noise import results as noise_results
from benchmarks.noise import tables as noise_tables
from benchmarks.scale import tables as scale
from benchmarks.simulated_jobs import tables as simulated_jobs
from benchmarks.trials import results as trial_results
from benchmarks.trials import tables as trial_tables
from benchmarks.watching import against, planted, public_run, shown
from benchmarks.watching import cost as watching
from diagnose import agents, docs
from diagnose.cli import group
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.trials import Report
from diagnose.docs import Text
from diagnose.live.metrics import FAMILIES, PREFIX
from diagnose.reports import terminal, trials

ROOT = Path(__file__).parent.parent
README = ROOT / "README.md"
SITE = ROOT / "docs"
SAMPLES = "sample_traces"
MIXED, LINES, RANKS = (
    f"{SAMPLES}/planted/mixed/three_faults_on_the_cpu/medium",
    f"{SAMPLES}/planted/redundancy/divergence_derived_for_every_product/medium",
    f"{SAMPLES}/planted/ranks/one_rank_computes_more/medium",
)
"""Recordings whose reports are shown."""

COMPARED = tuple(f"{SAMPLES}/planted/communication/ranks_meet_to_print/{side}" for side in ("strong_fixed", "strong"))
"""Two recordings whose comparison is shown."""

SHOWN = "h100/gpt2_2_bf16"  # A recording of GPT-2 on an H100, in the corpus.
TRIALS = Path(__file__).with_name("trials.json")
TRYING = "diagnose try train.py"  # What it was made by.

"""What `diagnose try` has found of a training with slow storage, on two cores."""


def texts(corpus: Path | None = None) -> list[Text]:
    """All of them; those of public traces only where there is a corpus."""
    own = [*_accuracy(), *_rates(), *_speed(), *_help(), *_trials(), *_comparisons(), *_agents()]
    return [*own, *_reports(corpus), *queries.texts(corpus)]


def _accuracy() -> Iterator[Text]:
    everything, others, on_h100 = accuracy.published(), accuracy.others(), h100.published()
    found, on_gpu = accuracy.by_device(everything)
    first = accuracy.first_look_at(found, accuracy.first_look())
    in_short = h100.in_short(on_h100, on_gpu.rows)
    summary = partial(accuracy_tables.summary, first.rows, others, found.rows, in_short)
    yield Text(README, summary, "accuracy")
    blocks: dict[str, Callable[[], str]] = {
        "summary": summary,
        "rounds": partial(accuracy_tables.rounds, first.rows, accuracy.looked_again()),
        "others": partial(accuracy_tables.of_others, others, found.rows),
        "gpu-traces": gpu_traces.table,
        "multi-rank-traces": multi_rank_traces.table,
        "naming": partial(accuracy_tables.naming, found, first),
        "specific": partial(accuracy_tables.specific, found.rows),
        "predictions": partial(accuracy_tables.predictions, found.rows, first.rows),
        "ranges": ranges.shown,
        "ablation": partial(accuracy_tables.poorer, found),
        "families": partial(accuracy_tables.families, found.rows),
        "joints": partial(accuracy_tables.joints, found),
        "faults": partial(accuracy_tables.details, found.rows),
        "gpu-ladder": partial(h100.each, h100.ladder, on_h100),
        "gpu-pairs": partial(h100.each, h100.pairs, on_h100),
        "gpu-measured": partial(h100.each, h100.measured, on_h100),
        "gpu-trials": partial(h100.each, h100.tried, on_h100),
        "gpu-planted": partial(accuracy_tables.details, on_gpu.rows),
        "gpu-controls": partial(accuracy_tables.controls, on_gpu.rows),
        "changed-ops": partial(changed_ops.table, changed_ops.published().rows),
        "known-costs": partial(known_costs.errors, known_costs.published()),
        "gpu-recorded": partial(h100.each, h100.recorded, on_h100),
        "samples-recorded": recorded_samples.longer,
        "loaders": loaders.table,
    }
    jobs = job_tables.published()
    blocks["jobs"] = partial(job_tables.summary, jobs)
    blocks["jobs-cases"] = partial(job_tables.cases, jobs)
    of_jobs = simulated_jobs.published()
    blocks["simulated-jobs"] = partial(simulated_jobs.families, of_jobs)
    blocks["simulated-jobs-each"] = partial(simulated_jobs.each, of_jobs)
    for name, make in blocks.items():
        yield Text(SITE / "accuracy.md", make, name)


def _rates() -> Iterator[Text]:
    yield Text(SITE / "rates.md", known_costs.rates, "rates")
    yield Text(SITE / "rates.md", partial(known_costs.memory_bound, known_costs.published()), "memory-bound")


def _speed() -> Iterator[Text]:
    yield Text(SITE / "benchmarks.md", load.table, "load")
    yield Text(SITE / "watching.md", shown.report, "watching-report")
    yield Text(SITE / "watching.md", shown.panel, "watching-panel")
    yield Text(SITE / "watching.md", shown.line, "watching-line")
    yield Text(SITE / "watching.md", shown.scraped, "watching-scraped")
    yield Text(SITE / "watching.md", series, "watching-series")
    yield Text(SITE / "watching.md", watching.table, "watching-cost")
    yield Text(SITE / "watching.md", planted.shown, "watching-planted")
    yield Text(SITE / "watching.md", public_run.shown, "watching-public")
    yield Text(SITE / "watching.md", against.shown, "watching-against")
    yield Text(SITE / "benchmarks.md", scale.mapped, "scale-mapped")
    yield Text(SITE / "benchmarks.md", scale.reduced, "scale-reduced")


def _help() -> Iterator[Text]:
    for name in commands():
        yield Text(SITE / "command-line.md", partial(help_of, name), f"help-{name.replace(' ', '-')}")


def commands() -> list[str]:
    """Every command, and every command of a group of commands."""
    found = []
    for name in group.list_commands(click.Context(group)):
        command = group.get_command(click.Context(group), name)
        found += [name, *(f"{name} {inner}" for inner in getattr(command, "commands", ()))]
    return found


def help_of(command: str) -> str:
    """What `--help` prints."""
    printed = CliRunner().invoke(group, [*command.split(), "--help"], prog_name="diagnose", terminal_width=80)
    return f"```text\n{printed.stdout.strip()}\n```"


def _trials() -> Iterator[Text]:
    yield Text(SITE / "trying-fixes.md", shown_trials, "trials")
    yield Text(README, shown_trials, "trials")
    found = trial_results.published()
    yield Text(SITE / "trying-fixes.md", partial(trial_tables.summary, found), "trials-right")
    blocks: dict[str, Callable[[], str]] = {
        "trials-machine": partial(trial_tables.machine, found),
        "trials-planted": partial(trial_tables.planted, found.planted),
        "trials-untried": partial(trial_tables.untried, found.planted),
        "trials-harmful": partial(trial_tables.harmful, found.harmful),
        "trials-nothing": partial(trial_tables.nothing, found.nothing),
        "trials-runs": partial(trial_tables.runs, found.runs),
    }
    for name, make in blocks.items():
        yield Text(SITE / "accuracy.md", make, name)
    yield Text(SITE / "public-trainings.md", partial(public.shown, public.published()), "five-minutes")
    yield Text(SITE / "public-trainings.md", partial(public.fixes, public.published()), "five-minutes-fixes")


def shown_trials() -> str:
    """The report of trials that `diagnose try --json` has kept."""
    return f"```console\n$ {TRYING}\n{trials.render(_kept_trials())}```"


def _kept_trials() -> Report:
    return msgspec.json.decode(TRIALS.read_bytes(), type=Report)


def _comparisons() -> Iterator[Text]:
    recorded = noise_results.published()
    yield Text(SITE / "comparing.md", shown_comparison, "compare")
    yield Text(SITE / "comparing.md", partial(noise_tables.table, recorded), "compare-noise")
    yield Text(SITE / "comparing.md", partial(noise_tables.sentence, recorded), "compare-noise-machine")
    on_gpus = noise_gpus.published()
    yield Text(SITE / "comparing.md", noise_tables.priors, "compare-noise-usual")
    yield Text(SITE / "comparing.md", partial(noise_gpus.table, on_gpus), "compare-noise-gpus")
    yield Text(SITE / "comparing.md", partial(noise_power.table, on_gpus), "compare-noise-power")
    yield Text(SITE / "comparing.md", partial(noise_gpus.sentence, on_gpus), "compare-noise-gpus-what")


def shown_comparison() -> str:
    """What `diagnose compare` prints of two recordings."""
    printed = CliRunner().invoke(group, ["compare", "--quiet", *(str(ROOT / side) for side in COMPARED)])
    if printed.exit_code:
        raise RuntimeError(printed.output)
    return f"```console\n$ diagnose compare {' '.join(COMPARED)}\n{printed.output.strip()}\n```"


def _reports(corpus: Path | None) -> Iterator[Text]:
    yield Text(SITE / "reading-the-report.md", partial(_block, MIXED), "report")
    yield Text(SITE / "reading-the-report.md", partial(_section, LINES, "Where the time goes in your code"), "lines")
    yield Text(SITE / "many-ranks.md", partial(_section, RANKS, "Ranks"), "ranks")
    if corpus is not None:
        yield Text(README, partial(public_report, corpus), "report")


@cache
def report(path: str, *options: str) -> str:
    """What `diagnose analyze` prints of a recording; paths are those of the checkout."""
    printed = CliRunner().invoke(group, ["analyze", "--quiet", *options, str(ROOT / path)])
    if printed.exit_code:
        raise RuntimeError(printed.output)
    return printed.output.replace(f"{ROOT}/", "")


def series() -> str:
    """A row for each family of metrics that a watched run serves."""
    rows = ["| series | labels | meaning |", "|---|---|---|"]
    for family in FAMILIES:
        labels = ", ".join(f"`{label}`" for label in family.labels)
        rows.append(f"| `{PREFIX}{family.name}{family.ending}` | {labels} | {family.meaning} |")
    return "\n".join(rows)


def _block(path: str) -> str:
    return f"```console\n$ diagnose analyze {path}\n{report(path).strip()}\n```"


def _section(path: str, heading: str) -> str:
    _, _, rest = report(path, "--details").partition(f"\n{heading}\n")
    lines = takewhile(bool, rest.splitlines())
    return "\n".join(["```console", f"$ diagnose analyze --details {path}", "...", heading, *lines, "...", "```"])


def public_report(corpus: Path) -> str:
    """The report of a recording on a GPU, whole."""
    found = diagnose.analyze(corpus / SHOWN)
    (source,) = found.provenance.sources
    source = msgspec.structs.replace(source, path=f"gpt2_bf16/{Path(source.path).name}")
    provenance = msgspec.structs.replace(found.provenance, sources=(source,))
    shown = terminal.render(msgspec.structs.replace(found, provenance=provenance), terminal.MOST_WIDTH)
    return f"```console\n$ diagnose analyze gpt2_bf16\n{shown.strip()}\n```"


def _agents() -> Iterator[Text]:
    yield Text(SITE / "agents.md", _brief, "brief")
    yield Text(SITE / "agents.md", lambda: _answered(agents.evidence(_analysed(), "d1", 1)), "evidence")
    yield Text(SITE / "agents.md", lambda: _answered(agents.timeline(_analysed(), *_first_place(), 0)), "timeline")


def _brief() -> str:
    return f"```console\n$ diagnose analyze {MIXED}\n{terminal.render(_analysed()).strip()}\n```"


@cache
def _analysed() -> Diagnosis:
    words = ["analyze", "--quiet", "--format", "json", str(ROOT / MIXED)]
    return Diagnosis.from_json(CliRunner().invoke(group, words).output)


def _first_place() -> tuple[tuple[int, int], list[int]]:
    """Window and lane of the longest place of the first finding on the timeline."""
    spot = max(_analysed().findings[0].spots, key=lambda one: one.dur_ns)
    return (spot.start_ns, spot.start_ns + spot.dur_ns), [spot.lane]


def _answered(text: str) -> str:
    return f"```text\n{text.strip()}\n```"


def main() -> int:
    """Write them, or say which are out of date and return 1."""
    parser = argparse.ArgumentParser(description=__doc__)
    asked = parser.add_mutually_exclusive_group(required=True)
    asked.add_argument("--write", action="store_true", help="write those that are out of date")
    asked.add_argument("--check", action="store_true", help="say which are out of date")
    parser.add_argument("--corpus", type=Path, help="folder of public traces")
    given = parser.parse_args()
    return docs.run(texts(given.corpus), given.check)


if __name__ == "__main__":
    sys.exit(main())
