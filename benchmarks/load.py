"""Speed and memory of loading a trace, side by side with HolisticTraceAnalysis in one run: `python -m benchmarks.load`.

A big trace is made of a small one by repeating its events with shifted times and ids. Each measurement is
a process of its own; the fastest of a few is reported, with the most memory it held.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import platform
import re
import subprocess
import sys
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
SAMPLE = ROOT / "sample_traces" / "cpu_mlp" / "trace.json.gz"
README = ROOT / "README.md"
MARKS = re.compile(r"(<!-- bench:start -->\n).*(<!-- bench:end -->)", re.DOTALL)
IDS = ("External id", "correlation", "Ev Idx", "Sequence number", "Record function id", "Python id", "Python parent id")
SECOND_US = 1_000_000

LOADERS = {
    "diagnose": "import diagnose, diagnose.source.ranks; before = now(); diagnose.load(sys.argv[1])",
    "HTA": "from hta.trace_analysis import TraceAnalysis; before = now(); TraceAnalysis(trace_files={0: sys.argv[1]})",
}
PROGRAM = """
import sys, time, resource
now = time.perf_counter
start = now()
{load}
end = now()
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
print("measured", end - before, end - start, peak)
"""


@dataclass(frozen=True)
class Measured:
    """One kind of run: the fastest of its repetitions."""

    load_s: float
    """Without imports."""
    whole_s: float
    """With imports."""
    peak_bytes: int


def events_of(path: Path) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The header and the events of a trace."""
    raw = path.read_bytes()
    document = json.loads(gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw)
    return {key: document[key] for key in document if key != "traceEvents"}, document["traceEvents"]


def shifted(events: list[dict[str, Any]], copy: int, length_us: int, ids: int) -> Iterator[dict[str, Any]]:
    """The events of the copy-th repetition: later by `length_us`, with ids of their own.

    Only the first keeps its step markers: no recording has thousands, and HTA's time grows with their number.
    """
    for event in events:
        if event.get("ph") == "M":
            if not copy:
                yield event
            continue
        args = event.get("args")
        moved = {**event, "ts": round(event["ts"] + copy * length_us, 3)}
        if isinstance(args, dict):
            new = {key: args[key] + copy * ids for key in IDS if isinstance(args.get(key), int) and args[key] > 0}
            moved["args"] = {**args, **new}
        if "id" in event:
            moved["id"] = event["id"] + copy * ids
        if copy and event.get("name", "").startswith("ProfilerStep#"):
            moved["name"] = "repeated step"
        yield moved


def write_big(seed: Path, path: Path, size: int) -> int:
    """Repeat `seed` into `path` until it has `size` bytes, laid out as Kineto does; returns the number of events."""
    header, events = events_of(seed)
    times = [event["ts"] for event in events if event.get("ph") == "X" and event.get("cat") != "Trace"]
    ends = [event["ts"] + event["dur"] for event in events if event.get("ph") == "X" and event.get("cat") != "Trace"]
    length_us = int(max(ends) - min(times)) // SECOND_US * SECOND_US + SECOND_US
    numbers = [event["args"].get(key, 0) for event in events if isinstance(event.get("args"), dict) for key in IDS]
    ids = max([number for number in numbers if isinstance(number, int)] + [event.get("id", 0) for event in events]) + 1
    count = written = copy = 0
    with path.open("w") as file:
        file.write(json.dumps(header, indent=2)[:-2] + ',\n  "traceEvents": [\n')
        while written < size:
            parts = [_as_kineto(event) for event in shifted(events, copy, length_us, ids)]
            written += file.write((",\n" if copy else "") + ",\n".join(parts))
            count, copy = count + len(parts), copy + 1
        file.write('\n  ],\n  "traceName": "bench"\n}\n')
    return count


def _as_kineto(event: dict[str, Any]) -> str:
    args = event.pop("args", None) if "args" not in event or event["args"] else None
    head = json.dumps({key: value for key, value in event.items() if key != "args"})[1:-1]
    if args is None:
        return f"  {{\n    {head}\n  }}"
    return f'  {{\n    {head},\n    "args": {{\n      {json.dumps(args)[1:-1]}\n    }}\n  }}'


def measure(tool: str, path: Path, repeat: int) -> Measured:
    """Load `path` in fresh processes."""
    command = [sys.executable, "-c", PROGRAM.format(load=LOADERS[tool]), str(path)]
    runs = []
    for _ in range(repeat):
        done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
        line = next((line for line in done.stdout.splitlines() if line.startswith("measured")), None)
        if line is None:
            raise SystemExit(f"{tool} could not load the trace:\n{done.stderr[-2000:]}")
        load_s, whole_s, peak = line.split()[1:]
        runs.append(Measured(float(load_s), float(whole_s), int(peak)))
    return min(runs, key=lambda run: run.load_s)


def analyze_s(path: Path, repeat: int) -> float:
    """Seconds of the whole command `diagnose analyze`, start of Python and imports included."""
    program = (
        "import subprocess, sys, time; start = time.perf_counter(); "
        "subprocess.run([sys.executable, '-m', 'diagnose', 'analyze', sys.argv[1]], check=True, capture_output=True); "
        "print(time.perf_counter() - start)"
    )
    command = [sys.executable, "-c", program, str(path)]
    return min(float(subprocess.check_output(command, cwd=ROOT)) for _ in range(repeat))


def compress(path: Path) -> Path:
    """The file gzipped beside itself, as Kineto does (zlib's default level)."""
    packed = path.with_suffix(".json.gz")
    engine = zlib.compressobj(wbits=31)
    with path.open("rb") as source, packed.open("wb") as target:
        while piece := source.read(1 << 22):
            target.write(engine.compress(piece))
        target.write(engine.flush())
    return packed


def table(seed: Path, size: int, repeat: int) -> str:
    """Measure everything; the result as Markdown."""
    with tempfile.TemporaryDirectory() as folder:
        small, big = Path(folder) / "small.json", Path(folder) / "big.json"
        few, many = write_big(seed, small, size // 10), write_big(seed, big, size)
        packed = compress(big)
        ours, theirs = measure("diagnose", big, repeat), measure("HTA", big, 1)
        ours_gz, theirs_gz = measure("diagnose", packed, repeat), measure("HTA", packed, 1)
        tenth, their_tenth = measure("diagnose", small, repeat), measure("HTA", small, 1)
        command = analyze_s(small, repeat)
        megabytes = big.stat().st_size / 1e6, packed.stat().st_size / 1e6, small.stat().st_size / 1e6
    rows = [
        _row(f"load {megabytes[0]:,.0f} MB, {many:,} events", ours.load_s, theirs.load_s, "s"),
        _row("its peak memory", ours.peak_bytes / 1e6, theirs.peak_bytes / 1e6, "MB"),
        _row(f"load it from gzip ({megabytes[1]:,.0f} MB)", ours_gz.load_s, theirs_gz.load_s, "s"),
        _row("its peak memory", ours_gz.peak_bytes / 1e6, theirs_gz.peak_bytes / 1e6, "MB"),
        _row(f"load {megabytes[2]:,.0f} MB", tenth.load_s, their_tenth.load_s, "s"),
        _row(f"`diagnose analyze` of {megabytes[2]:,.0f} MB, against HTA's load", command, their_tenth.whole_s, "s"),
    ]
    grown = many / few
    growth = (
        f"{grown:.1f} times the events take {ours.load_s / tenth.load_s:.1f} times the time and "
        f"{ours.peak_bytes / tenth.peak_bytes:.1f} times the memory."
    )
    head = "| | diagnose | HTA | ratio |\n|---|--:|--:|--:|\n"
    return head + "\n".join(rows) + f"\n\n{growth} {_machine(seed)}\n"


def _row(what: str, ours: float, theirs: float, unit: str) -> str:
    digits = 2 if unit == "s" else 0
    return f"| {what} | {ours:,.{digits}f} {unit} | {theirs:,.{digits}f} {unit} | {theirs / ours:.1f} |"


def _machine(seed: Path) -> str:
    versions = ", ".join(f"{name} {metadata.version(name)}" for name in ("traceinsight", "pandas", "msgspec"))
    name = seed.parent.name if seed == SAMPLE else "another recording"
    return f"{os.cpu_count()} cores, Python {platform.python_version()}, {versions}; made of the sample {name}."


def main() -> None:
    """Parse the command line, measure, print, and write the README if asked."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, default=SAMPLE, help="the small trace to repeat [the bundled sample]")
    parser.add_argument("--megabytes", type=int, default=520, help="size of the big trace [520]")
    parser.add_argument("--repeat", type=int, default=3, help="times that diagnose loads each file; HTA does once [3]")
    parser.add_argument("--write", action="store_true", help="put the table into README.md")
    options = parser.parse_args()
    text = table(options.trace, options.megabytes * 1_000_000, options.repeat)
    print(text)
    if options.write:
        readme = README.read_text(encoding="utf-8")
        if not MARKS.search(readme):
            raise SystemExit("README.md has no <!-- bench:start --> and <!-- bench:end --> to write between.")
        README.write_text(MARKS.sub(lambda found: f"{found[1]}{text}{found[2]}", readme), encoding="utf-8")


if __name__ == "__main__":
    main()
