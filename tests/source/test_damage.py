"""Damaged and hostile files: read as far as they are sound, with a note of what was lost, or refused in a sentence."""

import gzip
import json
import math
import random
import shutil
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import diagnose
from diagnose import pipeline
from diagnose.facts.core.base import Facts
from diagnose.source import document, ranks, stream
from diagnose.source.base import InputError
from diagnose.trace.model import Rank, Severity
from tests import laws
from tests.diagnoses import of_ranks
from tests.drawing import Drawing
from tests.source.nsight import synthetic
from tests.trace.test_lenient import changed, paths

EVENTS = 60


def events() -> list[dict[str, Any]]:
    draw = Drawing()
    for number in range(EVENTS // 6):
        at = 1000 + number * 100
        draw.step(number, at, at + 100).op("aten::mm", at + 1, at + 9).launch(
            "gemm", (at + 2, at + 3), (at + 10, at + 60)
        )
        draw.launch("relu", (at + 4, at + 5), (at + 60, at + 70))
    return draw.events


def text(some: list[dict[str, Any]] | None = None) -> str:
    return json.dumps(
        {"schemaVersion": 1, "traceEvents": events() if some is None else some, "traceName": "t"}, indent=1
    )


def read(tmp_path: Path, content: str | bytes) -> Rank:
    path = tmp_path / "trace.json"
    path.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
    return ranks.read(path)


def warned(rank: Rank, *words: str) -> bool:
    """Whether a note of at least warning gravity has all the words."""
    notes = [note.what for note in rank.integrity if note.severity != Severity.NOTE]
    return any(all(word in note for word in words) for note in notes)


def analysed(path: Path) -> None:
    """The whole analysis must hold on whatever was read, or be refused as input."""
    try:
        rank = ranks.read(path)
        found = pipeline.present(Facts(rank), [])
    except InputError as error:
        refusal = str(error)
    else:
        assert laws.broken(rank) == ()
        assert of_ranks(found).to_json()
        return
    assert refusal
    assert "\n" not in refusal


def test_a_file_cut_behind_its_events_loses_only_the_header(tmp_path: Path) -> None:
    whole = text()
    found = read(tmp_path, whole[: whole.index('"traceName"') + 3])
    assert len(found.spans) == EVENTS
    assert warned(found, "ends in the middle")


def test_a_gzip_that_ends_early_or_has_a_wrong_checksum(tmp_path: Path) -> None:
    packed = gzip.compress(text(events() * 20).encode())
    found = read(tmp_path, packed[:-6] + bytes([packed[-6] ^ 0xFF]) + packed[-5:])
    assert warned(found, "gzip file is damaged")
    for share in (0.3, 0.6, 0.95):
        found = read(tmp_path, packed[: int(len(packed) * share)])
        assert 0 < len(found.spans) <= EVENTS * 20
        assert warned(found, "gzip file is damaged")
    with pytest.raises(InputError):
        read(tmp_path, packed[:12])


BAD = {
    "not a number": ('"ts": 1001,', '"ts": NaN,'),
    "bare infinity": ('"dur": 8,', '"dur": inf,'),
    "Infinity": ('"dur": 8,', '"dur": Infinity,'),
    "a quote in the name": ('"name": "aten::mm"', '"name": "say "mm" twice"'),
    "an odd quote in the name": ('"name": "aten::mm"', '"name": "5" disk"'),
    "quotes and braces in the name": ('"name": "aten::mm"', '"name": "{"a": 1}, {"b": "c"}"'),
    "a Windows path": ('"name": "aten::mm"', '"name": "C:\\Users\\new\\x.py(1): f"'),
    "a raw newline": ('"name": "aten::mm"', '"name": "a\nb"'),
    "control characters": ('"name": "aten::mm"', '"name": "a\x00\x1b[2Jb"'),
    "half a surrogate pair": ('"name": "aten::mm"', '"name": "\ud800"'),
    "bytes that are not UTF-8": ('"name": "aten::mm"', '"name": "\udcff\udcfe"'),
}


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("apart", [False, True])
def test_one_bad_event_leaves_all_others(
    tmp_path: Path, name: str, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when other processes do the decoding, and give up at that event."""
    if apart:
        monkeypatch.setattr("diagnose.source.stream.PIECE_BYTES", 700)
        monkeypatch.setattr("diagnose.source.kineto.WORTH_WORKERS_BYTES", 0)
    good, bad = BAD[name]
    whole = text()
    assert good in whole
    found = read(tmp_path, whole.replace(good, bad, 1))
    assert len(found.spans) >= EVENTS - 1
    untouched = found.spans[~found.spans["name"].isin(["aten::mm"])]
    assert (untouched["name"] == "gemm").sum() == EVENTS // 6
    notes = " ".join(note.what for note in found.integrity)
    assert "repaired" in notes or "left out" in notes or "no duration" in notes


@pytest.mark.parametrize(
    "program",
    [
        "raise SystemExit(1)",
        "import sys; from struct import pack; sys.stdout.buffer.write(pack('<Q', 100) + b'only the beginning')",
    ],
)
def test_workers_that_die_are_done_without(program: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("diagnose.source.stream.PIECE_BYTES", 700)
    monkeypatch.setattr("diagnose.source.kineto.WORTH_WORKERS_BYTES", 0)
    monkeypatch.setattr("diagnose.source.collector._PROGRAM", program)
    found = read(tmp_path, text())
    assert len(found.spans) == EVENTS
    assert not warned(found)


def test_exact_repeats_are_dropped_and_counted(tmp_path: Path) -> None:
    some = events()
    found = read(tmp_path, text(some + some))
    work = found.spans[found.spans["kind"].isin(["kernel", "runtime"])]
    assert len(work) == EVENTS // 6 * 4
    assert any("exact repeats" in note.what for note in found.integrity)


@pytest.mark.parametrize("dur_us", [7.2e9, 1e18])
@pytest.mark.parametrize("kind", ["kernel", "cuda_runtime"])
def test_what_never_ends_is_cut_at_the_next(kind: str, dur_us: float, tmp_path: Path) -> None:
    some = events()
    [event for event in some if event["cat"] == kind][3]["dur"] = dur_us
    found = read(tmp_path, text(some))
    assert int((found.spans["start_ns"] + found.spans["dur_ns"]).max()) < 10_000_000
    assert warned(found, "1 events last longer than they can")


def test_spans_that_overlap_without_nesting_do_no_harm(tmp_path: Path) -> None:
    some = events()
    for k in range(200):
        some.append({**some[1], "name": f"aten::op{k}", "ts": 1000 + 7 * k % 900, "dur": 13 * k % 300, "args": {}})
    path = tmp_path / "trace.json"
    path.write_text(text(some))
    analysed(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        *((b"", "empty"), (b"   \n ", "not JSON"), (b"\x89PNG\r\n\x1a\n", "not JSON"), (b"hello", "not JSON")),
        *((b"PK\x03\x04zip", "zip archive"), (b"\x80\x04\x95pickle", "pickle"), (b"SQLite format 3\x00", "SQLite")),
        *(
            (b"\x0a\x05proto", "binary"),
            (b"{", "ends before its traceEvents"),
            (b"[", "no events"),
            (b"[]", "no events"),
        ),
        *((b"{}", "no traceEvents"), (b"[1, 2, 3]", "no events"), (b'"traceEvents"', "not JSON")),
        *((b'{"traceEvents": {}}', "no traceEvents list"), (b'{"traceEvents": []}', "no events")),
        (b'{"traceEvents": [{}]}', "no timed events"),
        (b'{"traceEvents": [{"ph": "M", "name": "process_name"}]}', "no timed events"),
        (b'{"traceEvents": [{"ph": "X", "cat": "kernel", "name": "x", "ts": null}]}', "no event with a valid time"),
        (b'{"nodes": [], "schema": "1.1.0-chakra.0.0.4"}', "no traceEvents"),
        *((b"[" * 100_000, "no events"), (b'{"a":' * 100_000, "ends before its traceEvents")),
    ],
)
def test_what_is_no_trace_is_refused_in_a_sentence(tmp_path: Path, content: bytes, words: str) -> None:
    with pytest.raises(InputError, match=words) as refusal:
        read(tmp_path, content)
    assert "trace.json" in str(refusal.value)


def test_a_refused_file_leaves_no_thread_behind(tmp_path: Path) -> None:
    """Also while the refusal is held, and with it the frames that read: their end would be left to the collector."""
    with pytest.raises(InputError) as refusal:
        read(tmp_path, b'{"nodes": []' + b" " * 9_000_000 + b"}")
    assert refusal.value.__traceback__ is not None
    assert not [one for one in threading.enumerate() if one.name.startswith("diagnose-read")]


@given(st.binary(max_size=300))
def test_any_bytes_are_refused_or_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("any") / "trace.json"
    path.write_bytes(content)
    analysed(path)


@given(st.integers(0, 2**32), st.integers(1, 30), st.sampled_from([64, 4096, 1 << 22]))
def test_flipped_bytes_never_break_the_analysis(
    tmp_path_factory: pytest.TempPathFactory, seed: int, flips: int, piece: int
) -> None:
    chance = random.Random(seed)
    content = bytearray(text().encode())
    for _ in range(flips):
        content[chance.randrange(len(content))] = chance.choice(b'{}[]",:0\\\x00\xff')
    path = tmp_path_factory.mktemp("flip") / "trace.json"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(stream, "PIECE_BYTES", piece)
        analysed(path)


VALUES: tuple[Any, ...] = (None, "", "x", -1, 0, 1.5, 1e308, 1 << 31, 1 << 62, 1 << 70, [], {}, True, [[1, 2]], "\0")
VALUES += (math.inf, math.nan)
CELLS = [value for value in VALUES if not isinstance(value, list | dict) and value != 1 << 70]
RECORDED = Path(__file__).parents[2] / "sample_traces/planted/optimizer/all_words_get_a_gradient/medium"


def damaged(whole: Any, chance: random.Random) -> Any:
    """Other values, or none, in some of its places."""
    for _ in range(chance.choice([1, 2, 20])):
        value = () if chance.random() < 0.1 else (chance.choice(VALUES),)
        whole = changed(whole, chance.choice(list(paths(whole))), *value)
    return whole


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["trace", "export", "recording"])
def test_random_damage_leaves_a_report_or_one_sentence(tmp_path: Path, kind: str) -> None:
    """Failures of ours are raised in tests."""
    chance = random.Random(kind)
    for _ in range(15):
        path = tmp_path / "trace.json"
        if kind == "trace":
            path.write_text(json.dumps(damaged(json.loads(text()), chance)))
        elif kind == "export":
            made = synthetic("2 steps of 10\ncpu aten::mm 0-1 | sync 2-3\ngpu sgemm 1-2 @0.5 | h2d 2-3 @1 4KB")
            for _ in range(chance.choice([1, 2, 20])):
                row = chance.choice(chance.choice(list(made.tables.values())))
                row[chance.choice(list(row))] = chance.choice(CELLS)
            path = made.write(tmp_path / "report.sqlite")
        else:
            path = Path(shutil.copytree(RECORDED, tmp_path / "run", dirs_exist_ok=True))
            name = chance.choice([one.name for one in RECORDED.iterdir()])
            raw = (path / name).read_bytes()
            whole = json.loads(gzip.decompress(raw) if name.endswith(".gz") else raw)
            content = json.dumps(damaged(whole, chance)).encode()
            (path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        try:
            said = diagnose.analyze(path).to_json()
        except InputError as error:
            said = str(error)
        assert said.startswith("{") or "\n" not in said


def test_a_flipped_byte_costs_a_real_trace_an_event_or_none(corpus: Path, tmp_path: Path) -> None:
    raw = gzip.decompress((corpus / "kineto/hta/nccl_a100_rank0_of_2.json.gz").read_bytes())
    path = tmp_path / "trace.json"
    path.write_bytes(raw)
    whole = len(ranks.read(path).spans)
    chance = random.Random(3)
    for _ in range(10):
        flipped = bytearray(raw)
        flipped[chance.randrange(raw.index(b'"traceEvents"') + 20, len(raw) - 4000)] = chance.choice(b'{}[]",:\\')
        path.write_bytes(flipped)
        assert whole - len(ranks.read(path).spans) <= 2


def test_an_event_without_an_end_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_EVENT_BYTES", 1 << 20)
    monkeypatch.setattr(stream, "PIECE_BYTES", 1 << 16)
    with pytest.raises(InputError, match="one event is over"):
        read(tmp_path, '{"traceEvents": [{"name": "' + "x" * (3 << 20))
