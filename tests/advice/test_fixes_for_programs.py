"""Fixes speak the language of the program, and of what it does."""

from pathlib import Path

import pytest

import diagnose
from diagnose.advice.fixes_for_programs import fitting
from diagnose.contracts.finding import Confidence, Evidence, Finding, Fix, Level, Safety
from diagnose.facts.run.program import Language, Program, Workload
from tests.rules import built_in
from tests.source.nsight import drawn, pid

PAGE = built_in("pageable_copies").page


def fitted(fix: Fix, language: Language, workload: Workload = Workload.TRAINING) -> Fix:
    sure = Confidence(Level.HIGH, "known")
    finding = Finding(evidence=(Evidence("It costs."),), edits=(), fixes=(fix,), confidence=sure)
    ((_, found),) = fitting(Program(language, workload), [(PAGE, finding)])
    return found.fixes[0]


PINNED = Fix("Pin it.", before="DataLoader(dataset)", after="DataLoader(dataset, pin_memory=True)", trial="patch:x")


def test_a_training_in_python_is_advised_as_the_rule_says() -> None:
    assert fitted(PINNED, Language.PYTHON) == PINNED


def test_a_program_of_cuda_is_advised_its_own_calls() -> None:
    found = fitted(PINNED, Language.CUDA)
    assert found.after.startswith("cudaHostAlloc(")
    assert (found.before, found.trial) == ("", None)


def test_a_program_of_libtorch_is_advised_its_own_calls() -> None:
    assert "pin_memory();" in fitted(PINNED, Language.CPP).after
    guarded = fitted(Fix("Do not record.", after="with torch.inference_mode():\n    y = model(x)"), Language.CPP)
    assert (guarded.do, guarded.after) == ("Do not record.", "at::NoGradGuard guard;")


@pytest.mark.parametrize("language", [Language.CPP, Language.CUDA])
def test_python_without_a_counterpart_is_labelled(language: Language) -> None:
    found = fitted(Fix("Compile.", after="model = torch.compile(model)", trial="wrap:torch.compile"), language)
    assert (found.after, found.trial) == ("# in Python:\nmodel = torch.compile(model)", None)


def test_commands_and_words_fit_every_program() -> None:
    for fix in (Fix("Set it.", after="export NCCL_DEBUG=INFO"), Fix("Find out.")):
        assert fitted(fix, Language.CUDA) == fix


def test_inference_is_advised_weights_in_16_bits_rather_than_a_scaler_of_gradients() -> None:
    fix = Fix("Train under autocast.", after="scaler = torch.amp.GradScaler()", safety=Safety.PRECISION)
    found = fitted(fix, Language.PYTHON, Workload.INFERENCE)
    assert "bfloat16" in found.after
    assert "Scaler" not in found.after


def test_a_program_that_nsight_systems_recorded_is_advised_in_its_language(tmp_path: Path) -> None:
    text = "gpu  sgemm 0.1-1 @0.05 | h2d 1-60 @0.5-60 pageable 500MB | sgemm 61-99 @60.5"
    export = drawn(text).add("PROCESSES", globalPid=pid(), pid=100, name="./saxpy")
    found = diagnose.analyze(export.write(tmp_path / "report.sqlite"))
    assert found.program == Program(Language.CUDA, Workload.UNKNOWN)
    code = [fix.after for one in found.findings for fix in one.fixes if fix.after]
    assert any("cudaHostAlloc" in one for one in code)
    assert not any("torch" in one and not one.startswith("# in Python:") for one in code)
