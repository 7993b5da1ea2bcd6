"""Reading autograd's graph, and which ops made equal values, whatever someone has put into the files."""

import gzip
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import diagnose
from diagnose.source import beside
from diagnose.source.beside import read_graph, read_values
from diagnose.source.recording import find, read
from tests.trace.test_lenient import changed, paths

GRAPH = {"names": ["MmBackward0", "Adds"], "name": [0, 1], "number": [12, -1], "uses": [0], "used": [1]}
OLDER_VALUES = {"names": ["aten::mm", "aten::t"], "name": [0, 1, 0], "thread": [0, 0, 0], "step": [0, 0, 1]}
OLDER_VALUES |= {"backward": [0, 1, 0], "makes": [1, 0, 1], "same": [-1, -1, 0], "uses": [1], "used": [0]}
VALUES = {**OLDER_VALUES, "sparse": [0, 0, 1000], "looked_up": [-1, 0, 0], "repeats": [0, 0, 1]}
FILES: dict[str, tuple[Any, Any, str]] = {
    "graph": (read_graph, GRAPH, "graph"),
    "values": (read_values, VALUES, "list of ops"),
}


def written(folder: Path, content: Any, kind: str) -> Path:
    path = folder / f"rank0.{kind}.json.gz"
    path.write_bytes(gzip.compress(json.dumps(content).encode()))
    return path


def test_a_graph(tmp_path: Path) -> None:
    graph, lost = read_graph(written(tmp_path, GRAPH | {"more": 1}, "graph"))
    assert (graph.names, lost) == (("MmBackward0", "Adds"), [])
    found = (graph.name, graph.number, graph.uses, graph.used, graph.optimizer)
    assert [one.tolist() for one in found] == [[0, 1], [12, -1], [0], [1], [-1, -1]]
    known, _ = read_graph(written(tmp_path, GRAPH | {"optimizer": [-1, 3]}, "graph"))
    assert known.optimizer.tolist() == [-1, 3]


def test_values(tmp_path: Path) -> None:
    found, lost = read_values(written(tmp_path, VALUES | {"more": 1}, "values"))
    assert (found.names, lost) == (("aten::mm", "aten::t"), [])
    for name in VALUES.keys() - {"names"}:
        assert getattr(found, name).tolist() == VALUES[name]
    older, _ = read_values(written(tmp_path, OLDER_VALUES, "values"))
    assert older.sparse is older.looked_up is older.repeats is None


TOO_MANY = {"names": ["x"] * (beside.MOST_NAMES + 1)}
CHANGES = {
    "graph": (
        *({"name": [0, 2]}, {"name": [0]}, {"number": [12, -2]}, {"number": [12, 1 << 70]}, {"number": [12, 0.5]}),
        *(
            {"uses": [2]},
            {"uses": None},
            {"used": [-1]},
            {"used": [1, 1]},
            {"optimizer": [-1]},
            {"optimizer": [-1, -2]},
        ),
        TOO_MANY,
    ),
    "values": (
        *({"name": [0, 2, 0]}, {"thread": [0, 0, 3]}, {"step": [0, 0, 2]}, {"step": [0, 1, 0]}, {"backward": [0, 1]}),
        *({"makes": [1, 0, -1]}, {"same": [-1, -1, 3]}, {"same": [-1, None, 0]}, {"uses": [3]}, {"used": [0, 0]}),
        *({"used": [-2]}, {"sparse": [0, 0, 1001]}, {"looked_up": [-1, 3, 0]}, {"repeats": [0, 0, 2]}, TOO_MANY),
    ),
}


@pytest.mark.parametrize(("kind", "change"), [(kind, change) for kind, some in CHANGES.items() for change in some])
def test_what_does_not_fit_is_not_used(tmp_path: Path, kind: str, change: dict[str, Any]) -> None:
    """A lost edge or op would make results look unread, so these go as a whole."""
    reader, sound, what = FILES[kind]
    with pytest.raises(ValueError, match=f"is no {what}"):
        reader(written(tmp_path, {**sound, **change}, kind))


@pytest.mark.parametrize(
    ("kind", "field", "damage"),
    [("graph", "optimizer", [None, 3]), ("values", "sparse", "often"), ("values", "looked_up", [-1, 0, {}])],
)
def test_a_column_that_is_no_must_is_left_out_alone(tmp_path: Path, kind: str, field: str, damage: Any) -> None:
    _, sound, _ = FILES[kind]
    written(recording(tmp_path), {**sound, field: damage}, kind)
    rank = read(find([tmp_path]).ranks[0])
    assert getattr(rank, kind) is not None
    (note,) = [note for note in rank.integrity if note.what.startswith(f"rank0.{kind}.json.gz cannot be read in part")]
    assert f": {field} (" in note.what


@pytest.mark.parametrize(("bound", "most"), [("MOST_NAMES", 1), ("MOST_ITEMS", 2), ("MOST_EDGES", 0)])
def test_what_is_too_large_is_not_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str, most: int
) -> None:
    monkeypatch.setattr(beside, bound, most)
    with pytest.raises(ValueError, match="too large"):
        read_values(written(tmp_path, VALUES, "values"))


def test_a_damaged_file(tmp_path: Path) -> None:
    path = written(tmp_path, GRAPH, "graph")
    whole = path.read_bytes()
    for damaged in (whole[:-12], whole[:15], whole[:20] + b"\xff" * 8 + whole[28:], b"no gzip", b""):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"is cut off or damaged|is no graph"):
            read_graph(path)


def test_a_file_that_grows_beyond_all_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beside, "MOST_PACKED_BYTES", 1 << 20)
    with pytest.raises(ValueError, match="is larger than 1 MB"):
        read_graph(written(tmp_path, {**GRAPH, "more": " " * (2 << 20)}, "graph"))


def recording(folder: Path) -> Path:
    event = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 1, "ts": 1, "dur": 5}
    (folder / "rank0.trace.json").write_text(json.dumps({"traceEvents": [event]}))
    return folder


@pytest.mark.parametrize("kind", FILES)
def test_what_is_beside_a_trace_is_no_trace_and_costs_none(tmp_path: Path, kind: str) -> None:
    _, sound, what = FILES[kind]
    written(recording(tmp_path), sound, kind)
    (files,) = find([tmp_path]).ranks
    assert list(files.beside) == [kind]
    assert getattr(read(files), kind) is not None
    assert getattr(read(find([tmp_path / "rank0.trace.json"]).ranks[0]), kind) is None  # Named, it is used alone.
    written(tmp_path, [], kind)
    rank = read(files)
    assert getattr(rank, kind) is None
    said = f"rank0.{kind}.json.gz is no {what}: Expected `object`, got `array`."
    assert said in [note.what for note in rank.integrity]


RECORDED = Path(__file__).parents[2] / "sample_traces/planted/data_loading/one_worker_too_few/medium"
RESTS_ON = {
    *("host", "host.cpus_allowed", "ranks", "ranks.0", "ranks.0.loaders", "ranks.0.loaders.0"),
    *("ranks.0.loaders.0.fetch_ns", "ranks.0.flags", "ranks.0.flags.threads"),
}
"""Of the manifest: the finding there counts workers by the time to load a batch, and by cores and threads."""


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["manifest.json", "rank0.graph.json.gz", "rank0.values.json.gz"])
@pytest.mark.parametrize("damage", [(None,), ({"no": ["such"]},), ()])
def test_findings_that_do_not_rest_on_a_damaged_field_stay(tmp_path: Path, name: str, damage: tuple[Any, ...]) -> None:
    """Failures of ours are raised in tests."""
    folder = Path(shutil.copytree(RECORDED, tmp_path / "run"))
    raw = (folder / name).read_bytes()
    whole = json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw)
    for path in paths(whole):
        text = json.dumps(changed(whole, path, *damage)).encode()
        (folder / name).write_bytes(gzip.compress(text) if name.endswith(".gz") else text)
        rests = name == "manifest.json" and ".".join(map(str, path)) in RESTS_ON
        codes = [one.code for one in diagnose.analyze(folder).findings]
        assert "DL02" in codes or rests, path
