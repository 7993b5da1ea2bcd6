"""Recordings of trainings on an H100 go through everything, and what is said of them is not contradicted by them."""

import json
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import diagnose
from benchmarks import h100
from diagnose.cli import group
from diagnose.cli.results import rendered
from diagnose.contracts.diagnosis import Diagnosis
from diagnose.contracts.finding import Fix
from diagnose.trace.manifest import RankManifest, training_loaders
from tests.browser.conftest import Open
from tests.exhaustive import some_of

pytestmark = pytest.mark.slow

RECORDED = (
    *("gpt2_0_fp32", "gpt2_1_tf32", "gpt2_2_bf16", "gpt2_2_bf16_nsys", "gpt2_5_padded_vocabulary", "hf_trainer_bert"),
    *("imagenet_resnet50", "nanogpt_compiled", "nanogpt_eager", "word_language_model"),
)
"""By `diagnose profile`."""

PAIRS = (
    "born_on_host",
    "fp32_matmul",
    "healthy_small_pageable",
    "item_per_layer",
    "loop_optimizer",
    "naive_attention",
    "tiny_kernels",
)
FOLDERS = (*RECORDED, *(f"pairs/{pair}/{side}" for pair in PAIRS for side in ("bad", "fixed")))
FORMS = ("terminal", "html", "json", "markdown", "perfetto", "sarif")
FORMS_OF_PAIRS = ("terminal", "json", "markdown")
NO_NUMBER = re.compile(r"\b(nan|inf|NaT|-0)\b(?!-)")


def ran(*words: object) -> Result:
    return CliRunner().invoke(group, [str(word) for word in words])


def test_the_folders_are_those_of_the_corpus(corpus: Path) -> None:
    assert {path.parent.name for path in (corpus / "h100").glob("*/manifest.json")} == set(RECORDED)
    assert {path.name for path in (corpus / "h100" / "pairs").iterdir()} == set(PAIRS)


@pytest.mark.parametrize("folder", some_of(FOLDERS, {"nanogpt_eager", "gpt2_2_bf16_nsys", "pairs/tiny_kernels/bad"}))
def test_a_report_comes_in_every_format_and_is_drawn_whole(folder: str, corpus: Path, open_page: Open) -> None:
    said = diagnose.analyze(corpus / "h100" / folder)
    texts = {form: rendered(said, form) or "" for form in (FORMS if folder in RECORDED else FORMS_OF_PAIRS)}
    assert all(texts.values())
    assert NO_NUMBER.search(texts["terminal"] + texts["markdown"]) is None
    assert Diagnosis.from_json(texts["json"]) == said
    _agrees(said)
    _is_as_published(folder, said, corpus / "h100")
    if folder in RECORDED:
        json.loads(texts["perfetto"])
        opened = open_page(texts["html"])
        opened.scroll_through()
        assert opened.marks() > 100
        assert opened.page.locator(".figure[data-figure]").count() > 3


def _agrees(said: Diagnosis) -> None:
    """Parts add up, nothing saves more than the step, and no fix asks for what was noted to be set."""
    assert sum(one.ns for one in said.idle) == said.breakdown.idle_ns
    for finding in said.findings:
        assert 0 <= finding.saving.low_ns <= finding.saving.likely_ns <= finding.saving.high_ns <= (said.step_ns or 0)
    manifest = said.provenance.manifest
    if manifest is not None:
        (rank,) = manifest.ranks
        assert [fix.trial for finding in said.findings for fix in finding.fixes if _is_set(fix, rank)] == []
        rules = {finding.rule for finding in said.findings}
        assert "tf32_off" not in rules or not rank.flags.cuda_matmul_allow_tf32


def _is_set(fix: Fix, rank: RankManifest) -> bool:
    trial, loaders = fix.trial or "", training_loaders(rank)
    if workers := re.search(r"num_workers=(\d+)", trial):
        return all(loader.num_workers >= int(workers[1]) for loader in loaders)
    if trial == "patch:DataLoader(pin_memory=True)":
        return all(loader.pin_memory for loader in loaders)
    return trial == "patch:torch.optim(fused=True)" and all(optimizer.fused for optimizer in rank.optimizers)


def _is_as_published(folder: str, said: Diagnosis, top: Path) -> None:
    truth = h100.truth_of(top)
    (published,) = (one for one in h100.published() if (one.device, one.torch) == (truth.device, truth.torch))
    now, before = (
        [*h100.rungs_of(folder, said, truth)],
        [rung for rung in published.rungs if rung.recording == folder],
    )
    assert [(one.fix, one.place) for one in now] == [(one.fix, one.place) for one in before]
    assert [one.likely_ms or 0.0 for one in now] == pytest.approx([one.likely_ms or 0.0 for one in before], rel=1e-3)
    costs = [one for one in published.recorded if one.recording == folder]
    assert list(h100.cost_of(folder, said, top / folder)) == costs
    if folder.endswith("/bad"):
        found = h100.pair_of(folder.split("/")[1], said, truth)
        (was,) = [pair for pair in published.pairs if pair.case == found.case]
        assert (found.place, found.found) == (was.place, was.found)


@pytest.mark.parametrize("folder", ["nanogpt_eager", "gpt2_2_bf16_nsys"])
def test_tables_are_exported(folder: str, corpus: Path, tmp_path: Path) -> None:
    done = ran("export", corpus / "h100" / folder, "--parquet", tmp_path / "tables")
    assert done.exit_code == 0, done.output
    assert (tmp_path / "tables" / "kernels" / "rank0.parquet").is_file()


def test_patches_of_files_that_are_not_here_end_in_a_sentence(corpus: Path) -> None:
    done = ran("patch", corpus / "h100" / "imagenet_resnet50")
    assert "Error: Nothing can be patched: " in done.output


def test_recordings_of_one_training_by_two_tracers_are_compared(corpus: Path, tmp_path: Path) -> None:
    sides = (corpus / "h100" / name for name in ("gpt2_2_bf16", "gpt2_2_bf16_nsys"))
    done = ran("compare", *sides, "--json", tmp_path / "found.json")
    assert done.exit_code in (0, 3), done.output
    found = json.loads((tmp_path / "found.json").read_text(encoding="utf-8"))
    assert sum(one["ns"] for one in found["parts"]) == found["after_ns"] - found["before_ns"]
    assert found["verdict"] in ("faster", "same", "cannot_tell")
