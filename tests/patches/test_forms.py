"""Each form of a fix as a change of a script: the diff applies, the script is what an engineer would have written."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest

from diagnose.contracts.finding import RankedFinding
from diagnose.trace.frames import Site
from diagnose.trace.manifest import Manifest, Optimizer, RankManifest
from tests.capture.scripts import script
from tests.patches.patching import apply, finding, line_of, made, manifest, patch, why_not

CASES = Path(__file__).parents[1] / "data" / "edits.txt"


@dataclass
class Case:
    """A script with its fixes. A line of `edits.txt` begins with what it is of the script: kept, `-` gone or `+` new;
    `loader`, `ddp` and `optimizer CLASS` tell a part of the line that makes it; `why` the fix is left to the user."""

    fixes: list[RankedFinding] = field(default_factory=list)
    made: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    before: str = ""
    after: str = ""
    why: str = ""

    def add(self, line: str) -> None:
        if line[0] in " -":
            self.before += f"{line[1:]}\n"
        if line[0] in " +":
            self.after += f"{line[1:]}\n"
        if line[0] in " +-":
            return
        word, _, rest = line.partition(" ")
        if word == "fix":
            name, _, place = rest.partition(" at ")
            file, _, site = place.partition(":")
            number, _, function = site.partition(" ")
            where = Site(file, int(number), function) if place else None
            self.fixes.append(finding(name or None, len(self.fixes) + 1, site=where))
        elif word == "environment":
            self.environment |= dict([rest.split("=")])
        elif word == "why":
            self.why = rest
        else:
            self.made[word] = rest

    def manifest(self, path: Path) -> Manifest:
        lines = {one: line_of(self.before, self.made[one]) for one in ("loader", "ddp") if one in self.made}
        name, _, part = self.made.get("optimizer", "").partition(" ")
        optimizer = (name, line_of(self.before, part)) if name else None
        loop = self.made.get("loop")
        return manifest(path, **lines, optimizer=optimizer, environment=self.environment, loop=loop)


def cases() -> list[object]:
    found, heading = list[object](), ""
    for block in CASES.read_text(encoding="utf-8").split("\n\n"):
        case = Case()
        for line in block.splitlines():
            if line.startswith("# "):
                heading = line[2:]
            else:
                case.add(line)
        found.append(pytest.param(case, id=heading))
    return found


@pytest.mark.parametrize("case", cases())
def test_a_script_is_changed_or_it_is_said_why_not(tmp_path: Path, case: Case) -> None:
    path = script(tmp_path, case.before)
    done = patch(tmp_path, case.fixes, case.manifest(path))
    if case.why:
        assert why_not(done) == case.why
        return
    apply(tmp_path, done)
    text = path.read_text()
    compile(text, "train.py", "exec")
    assert text == case.after


def test_an_argument_that_is_newer_than_the_torch_that_ran_is_not_given(tmp_path: Path) -> None:
    text = "from torch.nn.parallel import DistributedDataParallel\nnet = DistributedDataParallel(net)\n"
    path = script(tmp_path, text)
    known = manifest(path, ddp=2)
    trial = "wrap:DistributedDataParallel(batched_grad_copy=True)"
    for versions, has in (
        ({}, "the recording has no PyTorch version"),
        ({"torch": "2.4.1+cu121"}, "the recording has PyTorch 2.4.1+cu121"),
    ):
        done = patch(tmp_path, [trial], msgspec.structs.replace(known, versions=versions))
        assert why_not(done) == f"batched_grad_copy needs PyTorch 2.13, but {has}"
    apply(tmp_path, patch(tmp_path, [trial], msgspec.structs.replace(known, versions={"torch": "2.13.0"})))
    assert path.read_text() == text.replace("(net)", "(net, batched_grad_copy=True)")


def test_all_optimizers_that_can_be_fused_are_where_the_recording_saw_them(tmp_path: Path) -> None:
    text = "import torch\none = torch.optim.SGD(p)\ntwo = torch.optim.Adam(q)\nthree = torch.optim.LBFGS(r)\n"
    path = script(tmp_path, text)
    seen = [("SGD", 2), ("Adam", 3), ("LBFGS", 4)]
    optimizers = tuple(Optimizer(name=name, made=made(path, line)) for name, line in seen)
    known = Manifest(command=("python", "train.py"), ranks=(RankManifest(rank=0, optimizers=optimizers),))
    done = patch(tmp_path, ["patch:torch.optim(fused=True)"], known)
    assert done.fixes[0].places == ("train.py:2: SGD(fused=True)", "train.py:3: Adam(fused=True)")
    apply(tmp_path, done)
    assert path.read_text() == text.replace("SGD(p", "SGD(p, fused=True").replace("Adam(q", "Adam(q, fused=True")


def test_a_fix_that_changes_what_another_changes_is_not_made(tmp_path: Path) -> None:
    before = "from torch.utils.data import DataLoader\nloader = DataLoader(data)\n"
    path, trial = script(tmp_path, before), "patch:DataLoader(num_workers=4)"
    done = patch(tmp_path, [trial, "patch:DataLoader(num_workers=8)", trial], manifest(path, loader=2))
    assert [one.why for one in done.by_hand] == ["fix 1 changes the same place"] * 2
    apply(tmp_path, done)
    assert path.read_text() == before.replace("(data", "(data, num_workers=4")
