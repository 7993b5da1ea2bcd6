"""A token planted wherever it could hide comes out nowhere."""

import json
from pathlib import Path

import pytest

import diagnose
from diagnose.reports import markdown, terminal
from diagnose.source.base import InputError
from tests.drawing import MAIN, Drawing

TOKEN = "hf_Xk29secretQ7token"


def planted() -> str:
    """A trace with the token in every place that no table has a column for."""
    draw = Drawing(
        metadata={"env": {"HF_TOKEN": TOKEN}, "deep": [[{"x": TOKEN}]]},
        traceName=f"/tmp/{TOKEN}.json",
        host_name=TOKEN,
        trace_id=TOKEN,
        PT_PROFILER_JOB_NAME=TOKEN,
        INFO=[TOKEN],
        username=TOKEN,
        cuda_runtime_version=TOKEN,
        cupti_version={"a": TOKEN},
        baseTimeNanoseconds=TOKEN,
        displayTimeUnit=TOKEN,
        with_stack=TOKEN,
        distributedInfo={
            "rank": 0,
            "world_size": 1,
            "backend": TOKEN,
            "nccl_version": TOKEN,
            "pg_config": [{"pg_desc": TOKEN}],
        },
        deviceProperties=[{"id": 0, "name": "NVIDIA H100", "uuid": TOKEN, "numSms": TOKEN}],
        environ=TOKEN,
    )
    for number in range(3):
        at = number * 100
        draw.step(number, at, at + 100)
        secret = {"env": TOKEN, "Concrete Inputs": [TOKEN], "kernel_file": TOKEN, "Module Hierarchy": TOKEN, TOKEN: 1}
        draw.op("aten::mm", at + 1, at + 9, **secret, **{"Sequence number": TOKEN, "External id": TOKEN})
        draw.launch(
            "gemm", (at + 2, at + 3), (at + 10, at + 60), **secret, **{"registers per thread": TOKEN, "bytes": TOKEN}
        )
        draw.span("user_annotation", "mine", at + 20, at + 21, **secret)
        draw.span("Trace", TOKEN, at, at + 50)
    for name in ("process_name", "process_labels", "process_sort_index"):
        draw.events.append(
            {"ph": "M", "name": name, "pid": MAIN, "tid": MAIN, "ts": 0, "args": {"name": TOKEN, "labels": TOKEN}}
        )
    draw.events.append({"ph": "C", "name": TOKEN, "pid": MAIN, "tid": MAIN, "ts": 5, "args": {TOKEN: TOKEN}})
    draw.events.append({"ph": "i", "name": TOKEN, "pid": TOKEN, "tid": TOKEN, "ts": 5, "s": "g"})
    draw.events.append({"ph": "s", "name": TOKEN, "cat": TOKEN, "id": 5, "pid": MAIN, "tid": MAIN, "ts": 5})
    return draw.text()


def test_no_report_shows_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(planted())
    found = diagnose.analyze(path)
    assert found.steps.used == 2
    for text in (found.to_json(), terminal.render(found, 200), markdown.render(found), repr(found)):
        assert TOKEN not in text


def test_no_table_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_text(planted())
    run = diagnose.load(path)
    (rank,) = run.ranks
    for name in ("spans", "kernels", "copies", "syncs", "collectives", "ops", "memory", "tracks", "links"):
        frame = getattr(rank, name)
        assert TOKEN not in frame.to_csv(), name
        for column in frame.columns:
            categories = getattr(frame[column], "cat", None)
            assert categories is None or TOKEN not in " ".join(map(str, categories.categories)), (name, column)
    assert TOKEN not in repr((rank.provenance, rank.integrity, rank.steps, run.integrity))


@pytest.mark.parametrize("cut", [0.2, 0.5, 0.9, 0.99])
def test_no_refusal_and_no_note_shows_it(tmp_path: Path, cut: float) -> None:
    path = tmp_path / "trace.json"
    whole = planted()
    path.write_text(whole[: int(len(whole) * cut)])
    try:
        text = diagnose.analyze(path).to_json()
    except InputError as error:
        text = str(error)
    assert TOKEN not in text


def test_a_token_alone_in_a_file_that_is_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    for content in (TOKEN, json.dumps({"token": TOKEN}), json.dumps({"traceEvents": TOKEN}), json.dumps([TOKEN])):
        path.write_text(content)
        with pytest.raises(InputError) as refusal:
            diagnose.analyze(path)
        assert TOKEN not in str(refusal.value)
