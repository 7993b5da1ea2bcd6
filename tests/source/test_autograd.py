"""Reading autograd's graph, whatever someone has put into the file."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diagnose.source import packed
from diagnose.source.beside import read_graph
from diagnose.source.recording import find, read

SOUND = {"names": ["MmBackward0", "Adds"], "name": [0, 1], "number": [12, -1], "uses": [0], "used": [1]}


def written(folder: Path, content: Any) -> Path:
    path = folder / "rank0.graph.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def test_a_graph(tmp_path: Path) -> None:
    graph = read_graph(written(tmp_path, SOUND | {"more": 1}))
    assert graph.names == ("MmBackward0", "Adds")
    found = (graph.name, graph.number, graph.uses, graph.used, graph.optimizer)
    assert [one.tolist() for one in found] == [[0, 1], [12, -1], [0], [1], [-1, -1]]
    assert read_graph(written(tmp_path, SOUND | {"optimizer": [-1, 3]})).optimizer.tolist() == [-1, 3]


@pytest.mark.parametrize(
    "content",
    [
        [],
        "text",
        {**SOUND, "name": [0, 2]},
        {**SOUND, "name": [0]},
        {**SOUND, "number": [12, -2]},
        {**SOUND, "number": [12, 1 << 70]},
        {**SOUND, "number": [12, 0.5]},
        {**SOUND, "uses": [2]},
        {**SOUND, "used": [-1]},
        {**SOUND, "used": [1, 1]},
        {**SOUND, "optimizer": [-1]},
        {**SOUND, "optimizer": [-1, -2]},
        {name: value for name, value in SOUND.items() if name != "uses"},
        {**SOUND, "names": ["x"] * (packed.MOST_NAMES + 1)},
    ],
)
def test_what_is_no_graph(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ValueError, match="is no graph"):
        read_graph(written(tmp_path, content))


def test_a_damaged_file(tmp_path: Path) -> None:
    path = written(tmp_path, SOUND)
    whole = path.read_bytes()
    for damaged in (whole[:-12], whole[:15], whole[:20] + b"\xff" * 8 + whole[28:], b"no gzip", b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"is cut off or damaged|is no graph"):
            read_graph(path)


def test_a_file_that_grows_beyond_all_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packed, "MOST_BYTES", 1 << 20)
    with pytest.raises(ValueError, match="is larger than 1 MB"):
        read_graph(written(tmp_path, {**SOUND, "more": " " * (2 << 20)}))


def recording(folder: Path) -> Path:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    (folder / "rank0.trace.json").write_text(json.dumps({"traceEvents": [event]}))
    return folder


def test_a_graph_beside_a_trace_is_no_trace(tmp_path: Path) -> None:
    written(recording(tmp_path), SOUND)
    (files,) = find([tmp_path]).ranks
    assert files.graph == tmp_path / "rank0.graph.json.gz"
    assert read(files).graph is not None


def test_without_a_sound_graph_the_trace_is_read_all_the_same(tmp_path: Path) -> None:
    written(recording(tmp_path), [])
    rank = read(find([tmp_path]).ranks[0])
    assert rank.graph is None
    assert "rank0.graph.json.gz is no graph." in [note.what for note in rank.integrity]


def test_a_trace_that_is_named_is_used_alone(tmp_path: Path) -> None:
    written(recording(tmp_path), SOUND)
    assert read(find([tmp_path / "rank0.trace.json"]).ranks[0]).graph is None
