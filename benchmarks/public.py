"""What `diagnose try` decides of public trainings in five minutes each: `python -m benchmarks.public FOLDER`.

FOLDER holds the trainings as they are published, each in a folder of the name that stands here: karpathy's nanoGPT and
minGPT, pytorch/examples as pytorch-examples, and fabric/image_classifier of Lightning's examples as lightning-fabric.
Their data is generated. It needs torch, torchvision, lightning and torchmetrics, and a machine that does nothing else
meanwhile. `--write` keeps each result as it comes, in benchmarks/public.json; `--missing` measures what is not there.
"""

import argparse
import math
import os
import pickle
import random
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from benchmarks.accuracy_tables import table
from diagnose.contracts.trials import Range, Report, Trial
from diagnose.trace import units

RESULTS = Path(__file__).with_name("public.json")
ROOT = Path(__file__).parent.parent
BUDGET = "5m"
DASH = "-"


def characters(folder: Path) -> None:
    """As nanoGPT's `prepare.py` leaves them."""
    folder.mkdir(parents=True)
    letters = [chr(code) for code in range(32, 97)]
    for name, count in (("train", 1_000_000), ("val", 100_000)):
        ids = random.choices(range(len(letters)), k=count)
        (folder / f"{name}.bin").write_bytes(struct.pack(f"<{count}H", *ids))
    numbers = {letter: number for number, letter in enumerate(letters)}
    known = {"vocab_size": len(letters), "itos": dict(enumerate(letters)), "stoi": numbers}
    (folder / "meta.pkl").write_bytes(pickle.dumps(known))


def words(folder: Path) -> None:
    """As WikiText-2 lies there: 160,000 words to train on, of 5,000."""
    folder.mkdir(parents=True)
    for name, lines in (("train", 8_000), ("valid", 500), ("test", 500)):
        text = (" ".join(f"word{random.randrange(5_000)}" for _ in range(20)) for _ in range(lines))
        (folder / f"{name}.txt").write_text("\n".join(text) + "\n")


def digits(folder: Path) -> None:
    """As torchvision unpacks MNIST: a third of the pictures."""
    raw = folder / "MNIST" / "raw"
    raw.mkdir(parents=True)
    for name, count in (("train", 20_000), ("t10k", 2_000)):
        pixels, labels = random.randbytes(28 * 28 * count), bytes(random.randrange(10) for _ in range(count))
        (raw / f"{name}-images-idx3-ubyte").write_bytes(struct.pack(">IIII", 2051, count, 28, 28) + pixels)
        (raw / f"{name}-labels-idx1-ubyte").write_bytes(struct.pack(">II", 2049, count) + labels)


def pictures(folder: Path) -> None:
    """As ImageNet lies there: 64 JPEGs to train on, of two classes."""
    from PIL import Image  # Here alone: torchvision reads pictures by it.

    for split, count in (("train", 32), ("val", 4)):
        for label in ("cat", "dog"):
            (folder / split / label).mkdir(parents=True)
            for number in range(count):
                small = Image.frombytes("RGB", (33, 25), random.randbytes(33 * 25 * 3))
                small.resize((500, 375)).save(folder / split / label / f"{number}.jpg", quality=90)


@dataclass(frozen=True)
class Training:
    """A public training, and how it is run here."""

    name: str
    folder: str  # That it is run in.
    command: str
    data: str = ""  # Where its data is, from that folder.
    make: Callable[[Path], None] | None = None


TRAININGS = (
    Training(
        "nanoGPT",
        "nanoGPT",
        "train.py config/train_shakespeare_char.py --device=cpu --compile=False --eval_iters=20 --log_interval=1"
        " --block_size=64 --batch_size=12 --n_layer=4 --n_head=4 --n_embd=128 --max_iters=2000 --lr_decay_iters=2000"
        " --dropout=0.0",
        "data/shakespeare_char",
        characters,
    ),
    Training("minGPT, adder", "minGPT", "projects/adder/adder.py"),
    Training(
        "Lightning Fabric, MNIST", "lightning-fabric/image_classifier", "train_fabric.py", "../../../Datasets", digits
    ),
    Training("word_language_model", "pytorch-examples/word_language_model", "main.py", "data/wikitext-2", words),
    Training("imagenet, 64 pictures", "pytorch-examples/imagenet", "main.py -b 8 -j 2 images", "images", pictures),
    Training("mnist", "pytorch-examples/mnist", "main.py", "../data", digits),
)
"""With the options that their READMEs have for a CPU, or none; imagenet's batches are as small as its data."""


class Row(msgspec.Struct, frozen=True):
    """What came of one."""

    name: str
    report: Report
    seconds: float  # Of `diagnose try`, once the training was recorded.


def row(training: Training, folder: Path) -> Row:
    """Record it and try what is found. Raises CalledProcessError."""
    with tempfile.TemporaryDirectory() as scratch:
        top = Path(scratch, "public")  # Datasets of Lightning's examples lie beside it.
        shutil.copytree(folder / training.folder.split("/")[0], top / training.folder.split("/")[0])
        at = top / training.folder
        random.seed(0)
        if training.make is not None:
            training.make(at / training.data)
        _diagnose(at, ["profile", "--quiet", "--no-analyze", "--out", "recording", *training.command.split()])
        begun_s = time.monotonic()
        _diagnose(at, ["try", "--yes", "--quiet", "--budget", BUDGET, "--json", "tried.json", "recording"])
        seconds = time.monotonic() - begun_s
        return Row(training.name, msgspec.json.decode((at / "tried.json").read_bytes(), type=Report), seconds)


def _diagnose(folder: Path, arguments: Sequence[str]) -> None:
    path = os.pathsep.join(filter(None, [str(ROOT), ".", os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "DIAGNOSE_NO_LEDGER": "1"}
    command = [sys.executable, "-m", "diagnose", *arguments]
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=sys.stderr)


def decided(trial: Trial) -> bool:
    """Whether it says what the fix does."""
    return trial.verdict in ("keep", "slower", "no_gain", "changes_numbers", "not_injected", "out_of_memory")


def last(trial: Trial) -> Range | None:
    """What decides: on top of what was kept, where that was measured."""
    return trial.added or trial.measured


def half_width(found: Range) -> float:
    """Of an interval, as a share."""
    return math.sqrt(found.high / found.low) - 1


def shown(rows: Sequence[Row]) -> str:
    """A line for each training."""
    if not rows:
        return "Nothing has been measured yet."
    head = ["training", "step", "equal runs differ by", "fixes tried", "decided", "widest interval"]
    head += ["kept, together", "seconds"]
    return table(head, [_line(one) for one in rows])


def _line(one: Row) -> list[str]:
    report = one.report
    base, trials, both = report.baseline, report.trials, report.together
    widest = max((half_width(found) for trial in trials if (found := last(trial))), default=None)
    together = both and both.measured
    kept = f"{together.likely:.2f}x ({together.low:.2f} to {together.high:.2f})" if together else DASH
    return [
        one.name,
        DASH if base is None else units.duration(base.step_ns.likely),
        DASH if base is None or not base.arms else f"{base.noise_share:.1%}",
        str(len(trials)),
        str(sum(map(decided, trials))),
        DASH if widest is None else f"±{widest:.1%}",
        f"{kept}, {both.verdict.replace('_', ' ')}" if both else DASH,
        f"{one.seconds:.0f}",
    ]


def fixes(rows: Sequence[Row]) -> str:
    """A line for each fix that was tried."""
    if not rows:
        return "Nothing has been measured yet."
    lines = []
    for one in rows:
        for trial in one.report.trials:
            found = last(trial)
            told = DASH if found is None else f"{found.likely:.2f}x ({found.low:.2f} to {found.high:.2f})"
            where = "one process" if trial.measured_by == "blocks" else "runs"
            why = f": {trial.why}" if trial.why else ""
            verdict = f"{trial.verdict.replace('_', ' ')}{why}"
            lines.append([one.name, f"`{trial.rule}`", where, told, str(trial.pairs), verdict])
    return table(["training", "fix of", "measured in", "speed-up", "pairs", "verdict"], lines, texts=3)


def published() -> tuple[Row, ...]:
    """What stands there; nothing if there is no such file."""
    return msgspec.json.decode(RESULTS.read_bytes(), type=tuple[Row, ...]) if RESULTS.exists() else ()


def main() -> None:
    """Record and try those that are asked for; takes six minutes each."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="of the trainings")
    parser.add_argument("--only", action="append", choices=[one.name for one in TRAININGS], help="(repeatable)")
    parser.add_argument("--missing", action="store_true", help="only what is not there yet")
    parser.add_argument("--write", action="store_true", help="into benchmarks/public.json")
    given = parser.parse_args()
    known = {one.name: one for one in published()}
    for training in TRAININGS:
        if (given.only and training.name not in given.only) or (given.missing and training.name in known):
            continue
        try:
            known[training.name] = row(training, given.folder)
        except subprocess.CalledProcessError as error:  # One that fails must not cost the others their turn.
            print(f"{training.name}: {error}", flush=True)
            continue
        rows = [known[one.name] for one in TRAININGS if one.name in known]
        print(f"{shown([known[training.name]])}\n{fixes([known[training.name]])}", flush=True)
        if given.write:
            RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(rows), indent=1) + b"\n")


if __name__ == "__main__":
    main()
