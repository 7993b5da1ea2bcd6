"""A public training watched for ten minutes, and timed by itself: `python -m benchmarks.watching.public_run FOLDER`.

FOLDER holds karpathy's nanoGPT as it is published, in `nanoGPT`. A stopwatch is put into a copy of its script. The
training is small, with an evaluation and a checkpoint every 250 steps, on one thread. `--write` keeps the log and what
the stopwatch says.
"""

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.accuracy_tables import table
from benchmarks.public import TRAININGS, characters
from diagnose.contracts.watched_run import RunPart, RunPartKind
from diagnose.reports.watched_run import headline, subject
from diagnose.source.run_log import read
from diagnose.watched.assembly import watched_run

HERE = Path(__file__).parent
RESULTS, LOG = HERE / "public_run.json", HERE / "public_run"
COMMAND = [
    *(word for word in TRAININGS[0].command.split() if "iters" not in word and "log_interval" not in word),
    *("--max_iters=1000000000", "--lr_decay_iters=20000", "--eval_interval=250", "--eval_iters=40"),
    *("--always_save_checkpoint=True", "--log_interval=10"),
]

STOPWATCH = """\
import json, os, time
began, spent, ended, seconds = time.perf_counter(), {}, [], float(os.environ["SECONDS"])

def timed(name, call):
    since = time.perf_counter()
    result = call()
    spent.setdefault(name, []).append((since, time.perf_counter()))
    return result

def step_ended():
    ended[1:] = [time.perf_counter()]

def over():
    if time.perf_counter() - began < seconds:
        return False
    def inside(name):
        return sum(to - since for since, to in spent[name] if since > ended[0])
    def all_of(name):
        return sum(to - since for since, to in spent[name])
    training = ended[-1] - ended[0] - inside("evaluation") - inside("save")
    start = ended[0] - began - all_of("evaluation") + inside("evaluation")
    told = {"training": training, "start": start, "evaluation": all_of("evaluation"), "save": all_of("save"),
            "batches": inside("batches")}
    open("told.json", "w").write(json.dumps(told))
    return True
"""
"""`ended` is when the first step ended, and the last."""

CHANGES = (
    ("losses = estimate_loss()", "losses = stopwatch.timed('evaluation', estimate_loss)"),
    (
        "torch.save(checkpoint, os.path.join(out_dir, 'ckpt.pt'))",
        "stopwatch.timed('save', lambda: torch.save(checkpoint, os.path.join(out_dir, 'ckpt.pt')))",
    ),
    ("        X, Y = get_batch('train')", "        X, Y = stopwatch.timed('batches', lambda: get_batch('train'))"),
    ("    scaler.update()", "    stopwatch.step_ended()\n    scaler.update()"),
    ("    if iter_num > max_iters:", "    if iter_num > max_iters or stopwatch.over():"),
)
NAMES = {
    RunPartKind.TRAINING: "training steps",
    RunPartKind.START: "start-up",
    RunPartKind.EVALUATION: "evaluation",
    RunPartKind.SAVE: "checkpoints",
}


def timed(script: str) -> str:
    """The script with a stopwatch in it. Raises ValueError if it is another script than is known."""
    for old, new in CHANGES:
        if script.count(old) != 1:
            raise ValueError(f"the script has {old!r} {script.count(old)} times")
        script = script.replace(old, new)
    return f"import stopwatch\n{script}"


def ran(folder: Path, seconds: float, logs: Path) -> dict[str, float]:
    """What the stopwatch says, in s; the log is kept. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as scratch:
        at = Path(scratch, "nanoGPT")
        shutil.copytree(folder / "nanoGPT", at)
        random.seed(0)
        characters(at / TRAININGS[0].data)
        script = at / "train.py"
        script.chmod(0o644)
        script.write_text(timed(script.read_text(encoding="utf-8")), encoding="utf-8")
        (at / "stopwatch.py").write_text(STOPWATCH, encoding="utf-8")
        own = {"SECONDS": str(seconds), "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{HERE.parents[1]}{os.pathsep}."}
        words = [sys.executable, "-m", "diagnose", "watch", "-o", "log", *COMMAND]
        subprocess.run(words, cwd=at, env=os.environ | own, check=True)
        logs.mkdir(parents=True, exist_ok=True)
        shutil.copy(at / "log" / "rank0.watch", logs)
        told: dict[str, float] = json.loads((at / "told.json").read_text(encoding="utf-8"))
        return told


def shown() -> str:
    """The first lines of the report, and its parts beside the stopwatch's, in Markdown."""
    if not RESULTS.exists():
        return "Nothing has been measured yet."
    found = watched_run([read(LOG / "rank0.watch")])
    told: dict[str, float] = json.loads(RESULTS.read_text(encoding="utf-8"))
    run = found.ranks[0]
    return f"> {headline(run)}\n> {subject(found)}\n\n{compared(run.parts, told)}"


def compared(parts: Sequence[RunPart], told: dict[str, float]) -> str:
    """A line for each part that the stopwatch knows."""
    known = {part.kind: part.ns / 1e9 for part in parts}
    lines = []
    for kind, name in NAMES.items():
        clock, log = told[kind.value], known.get(kind, 0.0)
        lines.append([name, f"{clock:.2f} s", f"{log:.2f} s", f"{(log - clock) / clock:+.1%}"])
    return table(["", "stopwatch in the script", "log", "error"], lines)


def main() -> None:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--write", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        logs = LOG if given.write else Path(scratch)
        told = ran(given.folder, given.seconds, logs)
        if given.write:
            RESULTS.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")
        print(told, compared(watched_run([read(logs / "rank0.watch")]).ranks[0].parts, told), sep="\n")


if __name__ == "__main__":
    main()
