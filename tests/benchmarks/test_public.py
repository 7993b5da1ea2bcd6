"""Trainings by others: what is told of public ones, and their data; a fix for each that has a fault."""

import ast
import pickle
import struct
from pathlib import Path

import msgspec
import pytest

from benchmarks import public
from benchmarks.others import both, cases
from diagnose.contracts.trials import Baseline, Range, Report, Trial

TRIAL = Trial(
    rule="unfused_optimizer",
    numbers=(1,),
    fix="Use the fused AdamW.",
    trial=("patch:torch.optim(fused=True)",),
    injected=None,
    predicted=None,
    measured=Range(1.0, 1.05, 1.1025),
    measured_by="blocks",
    pairs=8,
    steps=5,
    losses=None,
    losses_compared=0,
    peak_bytes=None,
    warmup_s=None,
    pays_after_steps=None,
    verdict="inconclusive",
    why="Blocks differ by 4.0%.",
)
KEPT = msgspec.structs.replace(
    TRIAL, rule="malloc_trim", numbers=(2,), added=Range(1.02, 1.03, 1.04), on_top_of=(1,), verdict="keep", why=""
)
TOGETHER = msgspec.structs.replace(KEPT, measured_by="runs", measured=Range(1.01, 1.06, 1.12))
REPORT = Report(
    tool_version="0.1.0",
    baseline=Baseline(Range(6e7, 6.2e7, 6.4e7), 0.028, 4),
    trials=(TRIAL, KEPT),
    together=TOGETHER,
    keep=("malloc_trim",),
    not_tried=(),
    notes=(),
    complete=True,
)


def cells(table: str) -> list[list[str]]:
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_a_line_tells_what_was_decided_and_how_well() -> None:
    alone = msgspec.structs.replace(REPORT, baseline=None, trials=(), together=None)
    rows = (public.Row("nanoGPT", REPORT, 192.4), public.Row("minGPT, adder", alone, 3.2))
    assert cells(public.shown(rows)) == [
        ["nanoGPT", "62.0 ms", "2.8%", "2", "1", "±5.0%", "1.06x (1.01 to 1.12), keep", "192"],
        ["minGPT, adder", "-", "-", "0", "0", "-", "-", "3"],
    ]
    assert cells(public.fixes(rows)) == [
        [
            "nanoGPT",
            "`unfused_optimizer`",
            "one process",
            "1.05x (1.00 to 1.10)",
            "8",
            "inconclusive: Blocks differ by 4.0%.",
        ],
        ["nanoGPT", "`malloc_trim`", "one process", "1.03x (1.02 to 1.04)", "8", "keep"],
    ]


def test_nothing_stands_for_what_was_not_measured() -> None:
    assert public.shown(()) == public.fixes(()) == "Nothing has been measured yet."


def test_the_data_is_what_the_trainings_read(tmp_path: Path) -> None:
    public.characters(tmp_path / "characters")
    ids = (tmp_path / "characters" / "val.bin").read_bytes()
    known = pickle.loads((tmp_path / "characters" / "meta.pkl").read_bytes())
    assert len(ids) == 200_000
    assert max(struct.unpack("<100000H", ids)) < known["vocab_size"] == 65
    assert known["stoi"][known["itos"][64]] == 64
    public.words(tmp_path / "words")
    assert len((tmp_path / "words" / "train.txt").read_text().split()) == 160_000
    public.digits(tmp_path / "digits")
    labels = (tmp_path / "digits" / "MNIST" / "raw" / "t10k-labels-idx1-ubyte").read_bytes()
    assert struct.unpack(">II", labels[:8]) == (2049, 2000)
    assert len(labels) == 8 + 2000


@pytest.mark.parametrize("case", cases())
def test_a_fix_fits_its_training(case: str, tmp_path: Path) -> None:
    faulty, fixed = ((folder / "train.py").read_text(encoding="utf-8") for folder in both(case, tmp_path))
    assert ast.dump(ast.parse(faulty)) != ast.dump(ast.parse(fixed))
