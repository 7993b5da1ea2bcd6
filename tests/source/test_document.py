"""Event lists that are not quite JSON: every sound event is read, every other one repaired or counted."""

import gzip
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from diagnose.source import document, ranks, stream
from diagnose.source.base import Damage, InputError
from diagnose.source.document import TraceText
from diagnose.source.events import event_type
from diagnose.source.kineto import HEADER_KEYS
from diagnose.trace.model import Rank

PIECES = (64, 700, 1 << 22)


def event(at: int, name: str = "aten::mm", **args: Any) -> str:
    fields = {"ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": 1, "ts": at, "dur": 2}
    return json.dumps({**fields, "args": {"External id": at, **args}})


def read(tmp_path: Path, content: str | bytes) -> Rank:
    path = tmp_path / "trace.json"
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return ranks.read(path)


def pieces(patch: pytest.MonkeyPatch, size: int) -> None:
    patch.setattr(stream, "PIECE_BYTES", size)


def whats(rank: Rank) -> list[str]:
    return [note.what for note in rank.integrity]


def parsed(content: bytes, piece: int) -> tuple[list[tuple[str, Any]], dict[str, Any], Damage]:
    """Names and times of all events, the header, and the damage, from pieces of that size."""
    damage = Damage()
    cut = (content[at : at + piece] for at in range(0, len(content), piece))
    found: list[tuple[str, Any]] = []
    text = TraceText(cut, Path("t.json"), event_type(False), list, HEADER_KEYS, damage)
    for batch in text.batches():
        found += [(one.name, one.ts) for one in batch]
    return found, text.header, damage


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**40), 2**40) | st.text(max_size=8) | st.just('}, {"name": "x"'),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "ph", "a", "]"]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(
    st.lists(st.tuples(st.text(max_size=12), json_values), min_size=1, max_size=12),
    st.dictionaries(st.text(max_size=6).map("x".__add__), json_values, max_size=3),
    st.sampled_from([None, 1, "\t"]),
    st.booleans(),
    st.integers(1, 200),
)
def test_valid_json_is_read_as_json_reads_it(
    some: list[tuple[str, Any]], others: dict[str, Any], indent: Any, ascii_only: bool, piece: int
) -> None:
    """Whatever is nested in the arguments, wherever the header stands, and however the text is cut."""
    events = [{"ph": "X", "name": name, "ts": k, "args": {"any": value}} for k, (name, value) in enumerate(some)]
    raw = {**others, "distributedInfo": {"rank": 3}, "traceEvents": events, "cupti_version": 24, "y": others}
    content = json.dumps(raw, indent=indent, ensure_ascii=ascii_only).encode("utf-8", "replace")
    names = [one["name"] for one in json.loads(content)["traceEvents"]]
    found, header, damage = parsed(content, piece)
    assert [at for _, at in found] == list(range(len(some)))
    if all(name.isprintable() for name in names):
        assert [name for name, _ in found] == names
    assert header == {"distributedInfo": {"rank": 3}, "cupti_version": 24}
    assert not damage.cut_off
    assert not damage.lost_events
    assert not damage.text_after_end


NAMES = [
    *('5" disk', 'say "mm" twice', 'say "}" twice', 'f({"a": 1}, {"b": 2})', '"', '"]}"', 'a "quoted, "b" c'),
    *("C:\\Users\\x.py(1): f", "C:\\dir\\", 'C:\\dir\\"x"'),
]


@pytest.mark.parametrize("position", ["first", "middle", "last", "only", "every"])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("piece", PIECES)
def test_names_that_were_not_escaped_are_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, position: str, piece: int
) -> None:
    """With all arguments of their events, and without harm to any other event."""
    pieces(monkeypatch, piece)
    count = 1 if position == "only" else 9
    bad = {"first": {0}, "middle": {4}, "last": {8}, "only": {0}, "every": set(range(9))}[position]
    events = [event(k, **{"Input Dims": [[k, 3]]}) for k in range(count)]
    events = [one.replace("aten::mm", name) if k in bad else one for k, one in enumerate(events)]
    found = read(tmp_path, '{"traceEvents": [\n' + ",\n".join(events) + '\n], "distributedInfo": {"rank": 6}}')
    assert found.spans["name"].tolist() == [name if k in bad else "aten::mm" for k in range(count)]
    assert found.ops["shapes"].tolist() == [f"[[{k}, 3]]" for k in range(count)]
    assert found.provenance.rank == 6
    assert f"{len(bad)} events were not valid JSON and were repaired." in whats(found)


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("position", range(5))
def test_an_event_beyond_repair_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int, piece: int
) -> None:
    pieces(monkeypatch, piece)
    events = [event(k) for k in range(5)]
    events[position] = events[position].replace('"ts": ', '"ts": "" ')
    found = read(tmp_path, '{"traceEvents": [' + ", ".join(events) + '], "distributedInfo": {"rank": 6}}')
    assert found.spans["external_id"].tolist() == [k for k in range(5) if k != position]
    assert found.provenance.rank == 6
    assert "1 events could not be read and were left out." in whats(found)


@pytest.mark.parametrize("first", ["zz", "scope", "color"])
def test_events_that_begin_with_an_unknown_key_are_events(tmp_path: Path, first: str) -> None:
    events = [f'{{"{first}": [{{"name": 1}}], ' + event(k)[1:] for k in range(3000)]
    found = read(tmp_path, '{"traceEvents": [' + ", ".join(events) + "]}")
    assert found.spans["external_id"].tolist() == list(range(3000))
    assert whats(found)[0] == "No training steps are marked."


@pytest.mark.slow
def test_a_text_of_which_every_event_is_broken_is_searched_near_by(tmp_path: Path) -> None:
    """What is looked at does not grow with the number of broken events squared: here 12 000 unclosed brackets."""
    events = [event(k).replace('"ts": ', '"ts": [ ') for k in range(12_000)]
    found = read(tmp_path, '{"traceEvents": [' + ", ".join([*events, event(7)]) + "]}")
    assert len(found.spans) == 1
    assert "12,000 events could not be read and were left out." in whats(found)


def test_a_type_an_argument_never_has_costs_the_argument(tmp_path: Path) -> None:
    odd = event(2, **{"Input Dims": [[4]], "Sequence number": {"a": 1}, "Fwd thread id": 3})
    found = read(tmp_path, f"[{event(1)}, {odd}]")
    assert found.ops[["shapes", "sequence", "forward_thread"]].to_numpy().tolist() == [["", -1, -1], ["[[4]]", -1, 3]]


def test_nothing_but_broken_events_is_not_called_an_empty_recording(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="all 3 are damaged"):
        read(tmp_path, "[" + ", ".join(event(k, "x").replace('"ts": ', '"ts": "" ') for k in range(3)) + "]")


@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("after", ["{}", "x", '{"traceEvents": []}', "\0\0", "]"])
def test_text_after_the_end_is_not_dropped_in_silence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str, piece: int
) -> None:
    pieces(monkeypatch, piece)
    for whole in (f"[{event(1)}]", f'{{"traceEvents": [{event(1)}], "a": {{}}}}'):
        assert "More text follows the end of the trace." in whats(read(tmp_path, whole + " \n" + after))
        assert "More text follows the end of the trace." not in whats(read(tmp_path, whole + " \r\n\n"))


@pytest.mark.parametrize("content", [b'{"traceEvents": [{"args": ' + b"[" * 100_000 + b"]" * 100_000 + b"}, %b]}"])
def test_deep_nesting_costs_the_event_that_has_it(tmp_path: Path, content: bytes) -> None:
    found = read(tmp_path, content.replace(b"%b", event(3).encode()))
    assert len(found.spans) == 1
    assert "1 events could not be read and were left out." in whats(found)


def test_a_key_or_a_name_of_nothing_but_escapes_takes_no_deep_stack(tmp_path: Path) -> None:
    escapes = "\\\\" * (1 << 20)
    found = read(tmp_path, f'{{"{escapes}": 1, "traceEvents": [{event(1)}, {event(2).replace("aten::mm", escapes)}]}}')
    assert found.spans["name"].astype(str).str.len().tolist() == [8, 1 << 20]


def test_many_names_without_an_end_are_looked_through_once(tmp_path: Path) -> None:
    found = read(tmp_path, '{"traceEvents": [' + event(1) + ", {" + '"name": "' * 100_000 + ", 1]}]}")
    assert len(found.spans) == 1
    assert "1 events could not be read and were left out." in whats(found)


def test_a_header_value_over_the_limit_is_lost_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "MAX_HEADER_BYTES", 1 << 10)
    pieces(monkeypatch, 1 << 9)
    info = json.dumps({"rank": 2, "filling": ["x" * 50] * 200})
    found = read(tmp_path, f'{{"distributedInfo": {info}, "traceEvents": [{event(1)}]}}')
    assert found.provenance.rank is None
    assert "The header value distributedInfo could not be read." in whats(found)


def cut_trace(argument: Any) -> tuple[str, list[int]]:
    """A trace of six events, and where each of them ends."""
    events = [event(k, '[]{}\\"', any=argument) for k in range(6)]
    content = '{"cupti_version": 24, "traceEvents": [' + ",\n ".join(events) + '], "distributedInfo": {"rank": 1}}'
    return content, [content.index(one) + len(one) for one in events]


@given(st.integers(0, 10**6), st.integers(1, 300))
def test_of_a_text_cut_anywhere_every_event_that_is_whole_is_read(where: int, piece: int) -> None:
    content, ends = cut_trace(["]}", "}, {"])
    cut = where % len(content)
    if cut <= content.index("["):
        with pytest.raises(InputError, match=r"ends before its traceEvents|not JSON"):
            parsed(content[:cut].encode(), piece)
        return
    found, _, damage = parsed(content[:cut].encode(), piece)
    assert [at for _, at in found] == list(range(sum(end <= cut for end in ends)))
    assert damage.cut_off
    assert damage.lost_events == 0


@given(st.integers(0, 10**6), st.integers(1, 300))
def test_a_cut_inside_lists_of_objects_is_noted_too(where: int, piece: int) -> None:
    """What such a cut leaves looks like events of its own; those before it are read, and the loss is noted."""
    content, ends = cut_trace([{"name": "}, {"}, {"ph": 1}])
    cut = ends[0] + where % (len(content) - ends[0])
    found, _, damage = parsed(content[:cut].encode(), piece)
    whole = sum(end <= cut for end in ends)
    assert [at for _, at in found][:whole] == list(range(whole))
    assert damage.cut_off or damage.lost_events


@pytest.mark.parametrize(
    ("name", "strays"),
    [
        ("hta/nccl_a100_rank0_of_2", [b'"', b"\\x"]),
        ("tracelens/h100_qwen05b", [b'" "', b"\n\x01"]),
        ("tensorboard/resnet50_autograd_4_workers", [b'"}, "', b"\xff"]),
    ],
)
def test_real_events_with_broken_names_are_all_read(
    corpus: Path, tmp_path: Path, name: str, strays: list[bytes]
) -> None:
    """In the layouts of three writers, with a hundred names broken in each."""
    raw = gzip.decompress((corpus / f"kineto/{name}.json.gz").read_bytes())
    whole = read(tmp_path, raw)
    names = [found.end() for found in re.finditer(rb'"name"\s*:\s*"(?=aten::)', raw)]
    for stray in strays:
        parts, last = [], 0
        for at in sorted(random.Random(stray).sample(names, 100)):
            parts += [raw[last:at], b"x", stray]
            last = at
        broken = read(tmp_path, b"".join([*parts, raw[last:]]))
        assert len(broken.spans) == len(whole.spans)
        assert broken.spans["start_ns"].equals(whole.spans["start_ns"])
        assert broken.spans["dur_ns"].sum() == whole.spans["dur_ns"].sum()
        shapes = [[json.loads(text or "[]") for text in rank.ops["shapes"]] for rank in (broken, whole)]
        assert shapes[0] == shapes[1]
        assert "100 events were not valid JSON and were repaired." in whats(broken)
