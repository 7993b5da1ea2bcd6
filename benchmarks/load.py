"""Speed and memory of loading a trace, side by side with HolisticTraceAnalysis in one run: `python -m benchmarks.load`.

A big trace is a small one repeated, with times and ids shifted so that nothing occurs twice. Each measurement is a
process of its own; of several the fastest counts. HTA is the package `traceinsight`, in its default configuration.
"""

import argparse
import gzip
import json
import math
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "sample_traces" / "recorded" / "cpu_mlp" / "trace.json.gz"
RESULTS = Path(__file__).with_name("load.json")
HEAD = ("| | diagnose | HTA | ratio | target |", "|---|--:|--:|--:|--:|")
OWN_HEAD = ("| | time | of | time | ratio | target |", "|---|--:|---|--:|--:|--:|")
GROWTH = 10
STEPS = 10  # at most, in any trace: few recordings have more, and HTA's time grows with events x steps
GAP_US = 1_000  # between repetitions
IDS = (
    *("External id", "external id", "correlation", "wait_on_cuda_event_record_corr_id"),
    *("Ev Idx", "Sequence number", "Record function id", "Python id", "Python parent id"),
)
TOOLS = {
    "diagnose": """import diagnose, diagnose.source.kineto as kineto, diagnose.source.ranks, pandas
imported, helpers = now(), min(os.cpu_count() or 1, kineto.MOST_WORKERS)
diagnose.load(sys.argv[1])""",
    "analysis": """import diagnose
diagnose.analyze(sys.argv[1])
imported, helpers = now(), 0
diagnose.analyze(sys.argv[1])""",
    "HTA": """from hta.trace_analysis import TraceAnalysis
imported, helpers = now(), 0
TraceAnalysis(trace_files={0: sys.argv[1]})""",
}
PROGRAM = """
import json, os, sys, time
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
now = time.perf_counter
started = now()
%s
loaded = now()
# As if every helping process were as big as the biggest, and all were at their peaks at once.
peak = getrusage(RUSAGE_SELF).ru_maxrss + helpers * getrusage(RUSAGE_CHILDREN).ru_maxrss
print("\\n" + json.dumps([loaded - imported, loaded - started, peak * (1 if sys.platform == "darwin" else 1024)]))
"""


@dataclass(frozen=True)
class Seed:
    """The small trace."""

    header: dict[str, Any]
    once: list[dict[str, Any]]  # Names of processes and threads.
    events: list[dict[str, Any]]  # All others, without step markers.
    marker: dict[str, Any] | None  # A step marker of the host, if there are any.
    start_us: float
    length_us: int
    ids: int  # More than any id.


@dataclass(frozen=True)
class Big:
    """A trace made of the seed."""

    path: Path
    events: int
    megabytes: float


@dataclass(frozen=True)
class Load:
    """One load in a process of its own."""

    seconds: float  # The call alone.
    with_imports: float
    peak_bytes: float


def read_seed(path: Path) -> Seed:
    """The trace at `path`, plain or gzip."""
    raw = path.read_bytes()
    document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    events = document.pop("traceEvents")
    marks = [event for event in events if str(event.get("name")).startswith("ProfilerStep#")]
    rest = [event for event in events if event["ph"] != "M" and event not in marks]
    spans = [event for event in rest if event["ph"] == "X" and event.get("cat") != "Trace"]
    start = min(event["ts"] for event in spans)
    numbers = [event.get("id", 0) for event in rest] + [_args(event).get(key, 0) for event in rest for key in IDS]
    return Seed(
        header=document,
        once=[event for event in events if event["ph"] == "M"],
        events=rest,
        marker=next((event for event in marks if event["cat"] != "gpu_user_annotation"), None),
        start_us=start,
        length_us=math.ceil(max(event["ts"] + event["dur"] for event in spans) - start) + GAP_US,
        ids=max(number for number in numbers if isinstance(number, int)) + 1,
    )


def _args(event: dict[str, Any]) -> dict[str, Any]:
    args = event.get("args")
    return args if isinstance(args, dict) else {}


def repeated(seed: Seed, copy: int) -> list[dict[str, Any]]:
    """The seed's events, shifted for their `copy`-th repetition."""
    events = []
    for event in seed.events:
        args = _args(event)
        new = {key: args[key] + copy * seed.ids for key in IDS if isinstance(args.get(key), int) and args[key] > 0}
        shifted = {**event, "ts": round(event["ts"] + copy * seed.length_us, 3), "args": {**args, **new}}
        if isinstance(event.get("id"), int):
            shifted["id"] = event["id"] + copy * seed.ids
        events.append(shifted)
    return events


def write(seed: Seed, path: Path, copies: int) -> Big:
    """A trace of `copies` repetitions, several to a step."""
    events, per_step = 0, math.ceil(copies / STEPS)
    with path.open("w", encoding="utf-8") as file:
        file.write(json.dumps(seed.header)[:-1] + ', "traceEvents": [\n')
        for copy in range(copies):
            batch = [*(seed.once if copy == 0 else ()), *repeated(seed, copy)]
            if seed.marker and copy % per_step == 0:
                dur = min(per_step, copies - copy) * seed.length_us
                ts = round(seed.start_us + copy * seed.length_us, 3)
                batch.append({**seed.marker, "name": f"ProfilerStep#{copy // per_step}", "ts": ts, "dur": dur})
            file.write((",\n" if copy else "") + ",\n".join(map(_as_kineto, batch)))
            events += len(batch)
        file.write("\n]}\n")
    return Big(path, events, path.stat().st_size / 1e6)


def _as_kineto(event: dict[str, Any]) -> str:
    """The event in the layout of torch's files, of which white space is a good part."""
    head = json.dumps({key: value for key, value in event.items() if key != "args"})[1:-1]
    if not event.get("args"):
        return f"  {{\n    {head}\n  }}"
    return f'  {{\n    {head},\n    "args": {json.dumps(event["args"])}\n  }}'


def make(trace: Path, megabytes: int, folder: Path) -> tuple[Big, Big, Big]:
    """A trace of at least `megabytes`, the same as gzip, and one of a tenth of it."""
    seed = read_seed(trace)
    copies = math.ceil(megabytes / GROWTH / write(seed, folder / "one.json", 1).megabytes)
    tenth, whole = write(seed, folder / "tenth.json", copies), write(seed, folder / "whole.json", copies * GROWTH)
    packed = folder / "whole.json.gz"
    with whole.path.open("rb") as source, gzip.open(packed, "wb", compresslevel=6) as target:
        shutil.copyfileobj(source, target, 1 << 22)
    return whole, Big(packed, whole.events, packed.stat().st_size / 1e6), tenth


def _environment() -> dict[str, str]:
    """Of measured processes: as after installation, Python keeps bytecode."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


def load(tool: str, big: Big, repeat: int) -> Load:
    """The fastest of `repeat` loads."""
    command = [sys.executable, "-c", PROGRAM % TOOLS[tool], str(big.path)]
    loads = []
    for _ in range(repeat):
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=_environment())
        if done.returncode:
            raise SystemExit(f"{tool} could not load the trace: {done.stderr[-2000:]}")
        loads.append(Load(*json.loads(done.stdout.splitlines()[-1])))
    return min(loads, key=lambda one: one.seconds)


def analyze_seconds(big: Big, repeat: int) -> float | None:
    """The whole command `diagnose analyze`, start of Python included; None if it fails."""
    command = [sys.executable, "-m", "diagnose", "analyze", str(big.path)]
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=_environment())
        times.append(time.perf_counter() - started)
        if done.returncode:
            print(f"diagnose analyze: skipped, it ended with {done.returncode}: {done.stderr[-500:]}", file=sys.stderr)
            return None
    return min(times)


def own(seed: Seed, tenth: Big, folder: Path, repeat: int) -> list[str]:
    """Rows on what takes how long beside what it needs anyway: CPU time of starts, and time of an analysis."""
    tiny = write(replace(seed, events=seed.events[:8]), folder / "tiny.json", 1)
    start, itself = "`import pandas`", "loading it"
    base = {start: _cpu_s(("-c", "import pandas"), repeat), itself: load("diagnose", tenth, repeat).seconds}
    analyze = _cpu_s(("-m", "diagnose", "analyze", str(tiny.path)), repeat)
    found = (
        ("`diagnose --help`", _cpu_s(("-m", "diagnose", "--help"), repeat), start, 0.25),
        (f"`diagnose analyze` of {1000 * tiny.megabytes:.0f} kB", analyze, start, 1.5),
        (f"analysis of {tenth.megabytes:.0f} MB", load("analysis", tenth, repeat).seconds, itself, 3),
    )
    return [
        f"| {what} | {took:.2f} s | {of} | {base[of]:.2f} s | {took / base[of]:.1f} x | ≤ {limit} x |"
        for what, took, of, limit in found
    ]


def _cpu_s(words: tuple[str, ...], repeat: int) -> float:
    """Of the fastest of some runs of Python."""
    times = []
    for _ in range(repeat):
        before = os.times()
        subprocess.run([sys.executable, *words], capture_output=True, check=True, cwd=ROOT, env=_environment())
        after = os.times()
        times.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return min(times)


def measure(whole: Big, packed: Big, tenth: Big, repeat: int) -> list[str]:
    """All measurements, as rows of the table."""
    rows, found = [], {}
    large, small = ("≥ 15", "≥ 5"), ("≥ 10", "≥ 3")
    for big, kind, (speed, memory) in ((whole, "", large), (packed, " of gzip", large), (tenth, "", small)):
        ours, theirs = found[big] = load("diagnose", big, repeat), load("HTA", big, 1)
        what = f"load {big.megabytes:,.0f} MB{kind}, {big.events:,} events"
        rows.append(_row(what, ours.seconds, theirs.seconds, "s", speed))
        rows.append(_row("its peak memory", ours.peak_bytes / 1e6, theirs.peak_bytes / 1e6, "MB", memory))
    if seconds := analyze_seconds(tenth, repeat):
        what = f"`diagnose analyze` of {tenth.megabytes:,.0f} MB; HTA's load alone, both with imports"
        rows.append(_row(what, seconds, found[tenth][1].with_imports, "s", "≥ 3"))
    for what, field in (("time", "seconds"), ("memory", "peak_bytes")):
        pairs = zip(found[whole], found[tenth], strict=True)
        grown = [f"{getattr(big, field) / getattr(small, field):.1f} x" for big, small in pairs]
        rows.append(f"| {what}, for {GROWTH} x the events | {' | '.join(grown)} | | ≤ {GROWTH + 1} |")
    return rows


def _row(what: str, ours: float, theirs: float, unit: str, target: str) -> str:
    digits = 2 if unit == "s" else 0
    return f"| {what} | {ours:,.{digits}f} {unit} | {theirs:,.{digits}f} {unit} | {theirs / ours:,.1f} x | {target} |"


def _caption(trace: Path) -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("traceinsight", "pandas", "numpy", "msgspec"))
    name = f"the sample {trace.parent.name}" if trace == SAMPLE else trace.name
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}. The trace repeats {name}."


def table() -> str:
    """What stands in benchmarks/load.json, as Markdown."""
    told = json.loads(RESULTS.read_text(encoding="utf-8"))
    return "\n".join([*HEAD, *told["rows"], "", *OWN_HEAD, *told["own"], "", told["caption"]])


def main() -> None:
    """Measure, print the table, keep it if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, default=SAMPLE, help="the small trace to repeat (the bundled sample)")
    parser.add_argument("--megabytes", type=int, default=520, help="at least the size of the big trace (520)")
    parser.add_argument("--repeat", type=int, default=3, help="loads by diagnose for each figure; by HTA, one (3)")
    parser.add_argument("--write", action="store_true", help="into benchmarks/load.json")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        # Made in another process: on Linux, ru_maxrss of a process is at least what the one that started it holds.
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as aside:
            whole, packed, tenth = aside.submit(make, options.trace, options.megabytes, Path(folder)).result()
        rows = measure(whole, packed, tenth, options.repeat)
        alone = own(read_seed(options.trace), tenth, Path(folder), options.repeat)
    caption = _caption(options.trace)
    print("\n".join([*HEAD, *rows, "", *OWN_HEAD, *alone, "", caption]))
    if options.write:
        told = {"rows": rows, "own": alone, "caption": caption}
        RESULTS.write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
