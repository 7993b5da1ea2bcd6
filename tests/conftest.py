"""Options, fixtures and the hypothesis profile that all tests share."""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock
from hypothesis import HealthCheck, settings

import diagnose
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.facts.core.base import Facts
from tests.drawing import Drawing

HERE = Path(__file__).parent

# Timing never fails a test: CI machines are shared. Few examples a run, and others in each.
UNTIMED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("quick", UNTIMED, max_examples=20)
settings.register_profile("thorough", UNTIMED, max_examples=100)
settings.load_profile("quick")


# Written --corpus=DIR: before this file is read, pytest takes the DIR of "--corpus DIR" for a folder of tests, and from
# a folder outside the repository it finds neither setup.cfg nor this file.
def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("corpus", "recorded traces that are not part of the repository")
    group.addoption("--corpus", type=Path, metavar="DIR", help="also run the tests that read the traces in DIR")
    group.addoption("--require-corpus", action="store_true", help="end with an error when --corpus is not given")
    parser.addoption("--require-browser", action="store_true", help="fail, not skip, where there is no Chromium")
    parser.addoption("--update-golden", action="store_true", help="rewrite the expected texts in tests/golden")


def pytest_configure(config: pytest.Config) -> None:
    # A shell starts what runs in its background with interrupts ignored, and so would be the programs that tests start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["DIAGNOSE_DEBUG"] = "1"  # failures of ours are raised
    os.environ["DIAGNOSE_NO_LEDGER"] = "1"  # tests leave the user's file of trials alone
    # Hundreds of processes that tests start, and pytest's own, keep what they have compiled.
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False
    folder: Path | None = config.getoption("--corpus")
    if folder is not None and not folder.is_dir():
        raise pytest.UsageError(f"--corpus: no folder at {folder}")
    if folder is None and config.getoption("--require-corpus"):
        raise pytest.UsageError("--require-corpus needs --corpus=DIR")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What reads recorded traces is slow: these are large, and many. So is what is exhaustive."""
    for item in items:
        if "corpus" in getattr(item, "fixturenames", ()) or item.get_closest_marker("exhaustive"):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def _processes() -> None:
    """Python processes that tests start find this checkout, and a torch that loads its compiler when it is needed."""
    paths = [str(HERE / "data" / "lazy_torch"), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)


@pytest.fixture
def as_for_users(monkeypatch: pytest.MonkeyPatch) -> None:
    """Failures of ours are collected, and not raised."""
    monkeypatch.delenv("DIAGNOSE_DEBUG")


@pytest.fixture(scope="session")
def corpus(request: pytest.FixtureRequest) -> Path:
    folder: Path | None = request.config.getoption("--corpus")
    if folder is None:
        pytest.skip("reads recorded traces: give their folder with --corpus=DIR")
    return folder.resolve()


@pytest.fixture(scope="session")
def analyzed(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Diagnosis]:
    """What is said of a recording in the corpus: found out once, whichever processes of pytest ask."""
    folder = tmp_path_factory.getbasetemp()
    folder = folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder

    def of(name: str) -> Diagnosis:
        file = folder / f"{name.replace('/', '-')}.diagnosis"
        with FileLock(f"{file}.lock"):
            if not file.exists():
                found = diagnose.analyze(corpus / name)
                assert Diagnosis.from_json(found.to_json()) == found
                file.write_text(found.to_json(), encoding="utf-8")
        return Diagnosis.from_json(file.read_text(encoding="utf-8"))

    return of


@pytest.fixture(scope="session")
def trained() -> Facts:
    """Steps of 1,000 us: an op of 400 with a launch at 300, a kernel from 490 to 690, a sync from 400 to 700, an op.

    Used are the last three of four steps: on the device from 690 to 3,690 us.
    """
    draw = Drawing()
    for number in range(4):
        at = 1_000 * number
        draw.step(number, at, at + 1_000).op("aten::mm", at, at + 400)
        draw.launch("gemm", (at + 300, at + 310), (at + 490, at + 690))
        draw.call("cudaStreamSynchronize", at + 400, at + 700)
        draw.op("aten::add", at + 700, at + 1_000)
    return draw.facts()
