"""What very many ranks take: `python -m benchmarks.scale`, `--write` to publish it.

The map: 1,024 ranks made from recorded ones, on a Dask cluster of this machine's cores and by processes. The reduction
alone, to a job of up to 16,384 ranks: comparing them, and replaying the job without what a fix would change. Each
measurement is a process of its own.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from benchmarks.scale.made import ROOT, Straggler, make
from benchmarks.scale.tables import RESULTS, Mapped, Published, Reduced

RANKS = (256, 512, 1_024)
REDUCED = (1_024, 2_048, 4_096, 8_192, 16_384)
LATE_US = 30_000.0


def main() -> None:
    """Measure; print, and publish if asked to."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="publish it")
    parser.add_argument("--ranks", type=int, nargs="*", default=RANKS)
    parser.add_argument("--reduced", type=int, nargs="*", default=REDUCED)
    asked = parser.parse_args()
    mapped = [one for ranks in asked.ranks for one in _mapped(ranks, pool=ranks == max(asked.ranks))]
    reduced = [_reduced(ranks, repeats) for repeats in (1, 20) for ranks in asked.reduced]
    if asked.write:
        told = Published(os.cpu_count() or 1, mapped, reduced)
        RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(told), indent=1) + b"\n")


def _mapped(ranks: int, pool: bool) -> list[Mapped]:
    straggler = Straggler(ranks * 2 // 3, LATE_US)
    with tempfile.TemporaryDirectory() as folder:
        job = Path(folder) / "job"
        make(job, ranks, straggler)
        found = [_analyzed(job, ranks, straggler.rank, "Dask", ["--cluster", "local"])]
        if pool:
            found.append(_analyzed(job, ranks, straggler.rank, "processes", []))
    return found


def _analyzed(job: Path, ranks: int, straggler: int, by: str, options: list[str]) -> Mapped:
    said = job.parent / f"{by}.json"
    words = ["analyze", str(job), "-q", "--json", str(said), *options]
    program = (
        "import sys, resource as r\nfrom diagnose.cli import main\nsys.argv[1:] = " + repr(words) + "\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code\n"
        "peak = [r.getrusage(who).ru_maxrss for who in (r.RUSAGE_SELF, r.RUSAGE_CHILDREN)]\n"
        "print(*peak, file=sys.stderr)\n"
    )
    script = job.parent / "run.py"  # Workers are spawned: they import the main module.
    script.write_text("if __name__ == '__main__':\n" + "".join(f"    {line}\n" for line in program.splitlines()))
    begin = time.perf_counter()
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=True, cwd=ROOT)
    seconds = time.perf_counter() - begin
    reducer, worker = (int(number) << 10 for number in done.stderr.split()[-2:])
    diagnosis = json.loads(said.read_text(encoding="utf-8"))
    first = diagnosis["findings"][0]
    found = Mapped(
        ranks=ranks,
        by=by,
        seconds=round(seconds, 1),
        reducer_bytes=reducer,
        worker_bytes=worker,
        straggler=straggler,
        first=first["code"],
        found=tuple(first["where"]["ranks"]),
        step_ns=diagnosis["replay"]["step_time_ns"],
        saving_ns=first["saving"]["likely_ns"],
    )
    print(found, flush=True)
    return found


def _reduced(ranks: int, repeats: int) -> Reduced:
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks.scale.reduced", str(ranks), str(repeats)],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
    )
    found = Reduced(**json.loads(done.stdout))
    print(found, flush=True)
    return found


if __name__ == "__main__":
    main()
