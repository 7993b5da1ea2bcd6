"""What no table is made for never leaves the reader: traces have carried whole environments."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from diagnose.source import ranks
from diagnose.source.base import InputError
from diagnose.trace.model import Rank
from tests.drawing import MAIN, Drawing

TOKEN = "token1e7be3a5980703a0"

TOKENS = ("host_name", "username", "trace_id", "PT_PROFILER_JOB_NAME", "cuda_runtime_version", "roctracer_version")
HEADER: dict[str, Any] = {
    "metadata": {"env": {"AWS_SECRET_ACCESS_KEY": TOKEN}},
    "traceName": f"/home/{TOKEN}/x.json",
    **{key: [TOKEN] for key in ("env", "INFO", "WARNING")},
    **dict.fromkeys((*TOKENS, "displayTimeUnit", "record_shapes", "schemaVersion", TOKEN), TOKEN),
    "distributedInfo": {"rank": 0, "world_size": 1, **dict.fromkeys(("backend", "nccl_version"), TOKEN)},
    "deviceProperties": [{"id": 0, "name": "NVIDIA H100", "uuid": TOKEN, "totalGlobalMem": TOKEN}],
}
HEADER["distributedInfo"]["pg_config"] = [{"pg_name": TOKEN}]

SIZES = ("registers per thread", "shared memory", "est. achieved occupancy %", "bytes", "Bytes", "Total Allocated")
NAMED = ("External id", "correlation", "Sequence number", "finished", "Python id", "cuda_sync_kind", "Addr", "grid")
UNKNOWN = ("password", "Module Hierarchy", "kernel_file")
ARGUMENTS: dict[str, Any] = dict.fromkeys((*SIZES, *NAMED, *UNKNOWN), TOKEN)
ARGUMENTS |= {TOKEN: 1, "Concrete Inputs": [TOKEN], "block": [TOKEN] * 3}


def drawing() -> Drawing:
    """A sound recording in which the token stands wherever it is not promised to be shown."""
    draw = Drawing(**HEADER).step(1, 0, 100).op("aten::mm", 1, 9, **ARGUMENTS)
    draw.launch("gemm", (2, 3), (5, 9)).work("k", (10, 12), **ARGUMENTS)
    draw.work("Memcpy HtoD (Pinned -> Device)", (12, 13), cat="gpu_memcpy", **ARGUMENTS)
    draw.work("Stream Sync", (14, 15), cat="cuda_sync", **ARGUMENTS)
    for cat in ("cuda_runtime", "python_function", "user_annotation", "overhead", "brand_new", "Trace", TOKEN):
        draw.span(cat, "span", 20, 21, **ARGUMENTS)
    for phase, name in [("i", "[memory]"), ("i", TOKEN), ("C", TOKEN), ("s", TOKEN), ("f", TOKEN), ("B", TOKEN)]:
        place = {"pid": MAIN, "tid": MAIN, "ts": 5, "id": TOKEN}
        draw.events.append({"ph": phase, "name": name, **place, "args": {**ARGUMENTS, "name": TOKEN}})
    for name in ("process_name", "process_labels", "process_sort_index", "thread_sort_index", TOKEN):
        draw.events.append({"ph": "M", "name": name, "pid": 77, "tid": 78, "args": {"name": TOKEN, "labels": TOKEN}})
    draw.events.append({"ph": TOKEN, "name": TOKEN, "pid": TOKEN, "tid": TOKEN, "cat": TOKEN, "ts": 1})
    return draw


def everything(rank: Rank) -> str:
    """All that a rank holds, as text: values, categories, column names."""
    names = ("spans", "kernels", "copies", "syncs", "collectives", "ops", "memory", "tracks", "links")
    frames = [getattr(rank, name) for name in names]
    texts = [frame.to_csv() for frame in frames]
    for frame in frames:
        texts += [repr(list(frame[name].cat.categories)) for name in frame if frame[name].dtype == "category"]
    return "\n".join([*texts, repr(rank.provenance), repr(rank.integrity), repr(rank.steps)])


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "trace.json"
    path.write_text(text)
    return path


def test_nothing_but_what_a_table_is_made_for_is_kept(tmp_path: Path) -> None:
    text = drawing().text()
    assert text.count(TOKEN) > 200
    rank = ranks.read(written(tmp_path, text))
    assert {"aten::mm", "gemm", "k", "span"} <= set(rank.spans["name"])
    assert TOKEN not in everything(rank)


def test_what_is_shown_is_found_by_this_test() -> None:
    """Names of spans, threads and devices, call stacks, shapes: so the search above looks where it should."""
    shown = [Drawing().op(TOKEN, 0, 1), Drawing().op("x", 0, 1, **{"Call stack": TOKEN})]
    shown.append(Drawing(deviceProperties=[{"id": 0, "name": TOKEN}]).work("k", (0, 1)))
    assert all(TOKEN in everything(draw.rank()) for draw in shown)


@pytest.mark.parametrize("seed", range(60))
def test_damage_brings_nothing_to_light(tmp_path: Path, seed: int) -> None:
    """Neither in what is repaired nor in what the refusal says. The token itself stays whole: other bytes change."""
    chance = random.Random(seed)
    plain = drawing()
    plain.events = [event for event in plain.events if TOKEN not in (event["name"], event.get("cat"))]
    content = bytearray(plain.text().encode())
    inside = {at + k for at in range(len(content)) if content.startswith(TOKEN.encode(), at) for k in range(len(TOKEN))}
    for _ in range(chance.choice([1, 4])):
        at = chance.choice([k for k in range(len(content)) if k not in inside])
        content[at] = chance.choice(b"[]{},:0\\ \x00\xff")
    if chance.random() < 0.3:
        del content[chance.randrange(len(content)) :]
    path = tmp_path / "trace.json"
    path.write_bytes(content)
    try:
        rank = ranks.read(path)
        said = repr(rank.provenance) + repr(rank.integrity)
    except InputError as error:
        said = str(error)
    assert TOKEN not in said


@pytest.mark.parametrize(
    "text",
    [
        *(TOKEN, json.dumps({TOKEN: TOKEN}), json.dumps({"traceEvents": {"env": TOKEN}})),
        json.dumps({"traceEvents": [{"name": TOKEN, "ph": "M"}]}),
        json.dumps({"traceEvents": [{"name": TOKEN, "ph": "X", "ts": TOKEN}]}),
        json.dumps({"traceEvents": [TOKEN, TOKEN]}),
        json.dumps({"env": {"x": TOKEN}, "traceEvents": []}),
        *('{"' + TOKEN, '{"env": "' + TOKEN),
    ],
)
def test_no_refusal_quotes_the_file(tmp_path: Path, text: str) -> None:
    with pytest.raises(InputError) as refusal:
        ranks.read(written(tmp_path, text))
    assert TOKEN not in str(refusal.value)
