"""A Diagnosis with one finding in a file, one rule that cannot tell and one that fails; and a checkout for it."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from diagnose import pipeline
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Confidence, Evidence, Level, RankedFinding
from diagnose.rulekit import engine
from diagnose.rulekit.engine import LoadedRule, RuleSet
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import Site
from tests.diagnoses import of_ranks
from tests.drawing import Drawing
from tests.rules import SLOW, folder, rule

SYNTHETIC = """
    4 steps of 100
    cpu  slow 0-40 | aten::mm 40-41 | zero_grad 99.2-99.3
    gpu  sgemm 40.01-99 @40
"""
"""`slow` takes 40 ms of 100, and each step begins where the one before ends: without it, 40 ms less."""

SOURCE = "import torch\n\n\ndef train():\n    slow()\n"


def loaded(place: Path) -> list[LoadedRule]:
    """TT01 finds 40 ms of 100 in `slow`, AA02 cannot look, AA01 fails. `place` gets the rules."""
    rules = folder(
        place,
        broken=rule("1 / 0; yield", code="AA01"),
        needy=rule("yield from ()", code="AA02", parameters="steps, frame_sites"),
        slow_range=SLOW,
    )
    return list(engine.load(RuleSet((rules,))))


def diagnosed(place: Path) -> Diagnosis:
    found = of_ranks(pipeline.present(facts_of(SYNTHETIC), rules := loaded(place)))
    return replace(found, rules=tuple(map(engine.shown, rules)))


def with_finding(diagnosis: Diagnosis, **changes: object) -> Diagnosis:
    (one,) = diagnosis.findings
    return replace(diagnosis, findings=(replace(one, **changes),))


def unsure(one: RankedFinding) -> RankedFinding:
    return replace(one, confidence=Confidence(Level.LOW, "nobody knows"))


def hostile(diagnosis: Diagnosis) -> Diagnosis:
    """Names that mean something in every format that they may end up in, and some that no format allows."""
    name = "]](x)<a href='//e'>&\"%0A::error::,:\r\n\x00\x1b[31m\ud800\ufffe@all ../../etc/passwd" + "y" * 100_000
    evidence = (Evidence(name, 1.0, "ns"),)
    return with_finding(diagnosis, title=name, evidence=evidence, site=Site(f"../{name}.py", 3, name))


def waiting_for_data(folder: Path) -> Diagnosis:
    """Three used steps of 10 ms, which begin with a wait of 4 ms for a batch and have one kernel each."""
    draw = Drawing()
    for number in range(4):
        at = number * 10_000
        draw.step(number, at, at + 10_000).op("aten::mm", at + 4_600, at + 4_700)
        draw.span("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, at + 4_000)
        draw.launch("gemm</x>", (at + 4_650, at + 4_660), (at + 4_670, at + 8_000))
    return pipeline.diagnose([draw.write(folder / "trace.json")])


def is_golden(text: str, name: str, request: pytest.FixtureRequest) -> None:
    """Compares a text with tests/golden, or writes it there if --update-golden asks for that."""
    path = Path(__file__).parents[1] / "golden" / name
    if request.config.getoption("--update-golden"):
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def checkout(folder: Path) -> Path:
    """A git checkout with `src/train.py`; the folder of that is where a training runs."""
    (folder / ".git").mkdir(parents=True)
    (folder / "src").mkdir()
    (folder / "src" / "train.py").write_text(SOURCE, encoding="utf-8")
    return folder / "src"
