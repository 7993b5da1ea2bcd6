"""Reading which ops made equal values, whatever someone has put into the file."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from diagnose.source import packed
from diagnose.source.beside import read_values
from diagnose.source.recording import find, read

SOUND = {
    "names": ["aten::mm", "aten::t"],
    "name": [0, 1, 0],
    "thread": [0, 0, 0],
    "step": [0, 0, 1],
    "backward": [0, 1, 0],
    "makes": [1, 0, 1],
    "same": [-1, -1, 0],
    "uses": [1],
    "used": [0],
}


OLDER = SOUND
SOUND = {**OLDER, "sparse": [0, 0, 1000], "looked_up": [-1, 0, 0], "repeats": [0, 0, 1]}


def written(folder: Path, content: Any) -> Path:
    path = folder / "rank0.values.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def test_values(tmp_path: Path) -> None:
    found = read_values(written(tmp_path, SOUND | {"more": 1}))
    assert found.names == ("aten::mm", "aten::t")
    for name in SOUND.keys() - {"names"}:
        assert getattr(found, name).tolist() == SOUND[name]
    older = read_values(written(tmp_path, OLDER))
    assert older.sparse is older.looked_up is older.repeats is None


@pytest.mark.parametrize(
    "content",
    [
        [],
        {**SOUND, "name": [0, 2, 0]},
        {**SOUND, "thread": [0, 0, 3]},
        {**SOUND, "step": [0, 0, 2]},
        {**SOUND, "step": [0, 1, 0]},
        {**SOUND, "backward": [0, 1]},
        {**SOUND, "makes": [1, 0, -1]},
        {**SOUND, "same": [-1, -1, 3]},
        {**SOUND, "uses": [3]},
        {**SOUND, "used": [0, 0]},
        {**SOUND, "used": [-2]},
        {**SOUND, "sparse": [0, 0, 1001]},
        {**SOUND, "looked_up": [-1, 3, 0]},
        {**SOUND, "repeats": [0, 0, 2]},
        {name: value for name, value in SOUND.items() if name != "same"},
        {**SOUND, "names": ["x"] * (packed.MOST_NAMES + 1)},
    ],
)
def test_what_is_no_list_of_ops(tmp_path: Path, content: Any) -> None:
    with pytest.raises(ValueError, match="is no list of ops"):
        read_values(written(tmp_path, content))


@pytest.mark.parametrize(("bound", "most"), [("MOST_NAMES", 1), ("MOST_ITEMS", 2), ("MOST_EDGES", 0)])
def test_what_is_too_large_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(packed, bound, most)
    with pytest.raises(ValueError, match="too large"):
        read_values(written(tmp_path, SOUND))


def recording(folder: Path) -> Path:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    (folder / "rank0.trace.json").write_text(json.dumps({"traceEvents": [event]}))
    return folder


def test_values_beside_a_trace_are_no_trace(tmp_path: Path) -> None:
    written(recording(tmp_path), SOUND)
    (files,) = find([tmp_path]).ranks
    assert files.values == tmp_path / "rank0.values.json.gz"
    assert read(files).values is not None


def test_without_sound_values_the_trace_is_read_all_the_same(tmp_path: Path) -> None:
    written(recording(tmp_path), [])
    rank = read(find([tmp_path]).ranks[0])
    assert rank.values is None
    assert "rank0.values.json.gz is no list of ops." in [note.what for note in rank.integrity]
