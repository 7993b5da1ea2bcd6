"""Names as recorders write them. tests/data/names.tsv has most, and what they say."""

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import astuple

from diagnose.trace import frames, kinds
from diagnose.trace.enums import Direction, HostMemory
from diagnose.trace.kinds import Activity, ApiKind, KernelKind

TABLE = (Path(__file__).parents[1] / "data" / "names.tsv").read_text(encoding="utf-8")
ROWS = [tuple(line.split("\t")) for line in TABLE.splitlines() if not line.startswith("#")]
ROWS += [
    *(("kernel", "OTHER", ""), ("plain", "", "  "), ("short", "two lines", "two\nlines"), ("activity", "OTHER", "")),
    *(("step", "None", "ProfilerStep#" + "9" * 5000), ("frame", "library", "a.py(" + "9" * 5000 + "): f")),
    ("frame", "library", ""),
]
SAID: dict[str, Callable[[str], tuple[object, ...]]] = {
    "kernel": lambda name: (kinds.kernel_kind(name).name,),
    "math": lambda name: (kinds.uses_tensor_cores(name), kinds.math_dtype(name)),
    "plain": lambda name: (kinds.normalise(name),),
    "short": lambda name: (kinds.short_name(name),),
    "call": lambda name: (kinds.api_kind(name).name,),
    "copy": lambda name: (kinds.copy_direction(name).name, kinds.host_memory(name).name),
    "activity": lambda name: (kinds.activity(name).name,),
    "step": lambda name: (kinds.step_number(name),),
    "collective": lambda name: (kinds.collective_of(name),),
    "frame": lambda name: (*_site(name), "user" if frames.is_user_frame(name) else "library"),
}


def _site(name: str) -> tuple[object, ...]:
    site = frames.frame_site(name)
    return astuple(site) if site else ()


@pytest.mark.parametrize("row", ROWS)
def test_what_a_name_says(row: tuple[str, ...]) -> None:
    question, *expected, name = row
    assert [str(one) for one in SAID[question](name)] == expected


@pytest.mark.parametrize(("question", "kind"), [("kernel", KernelKind), ("call", ApiKind)])
def test_every_kind_has_a_name(question: str, kind: type[KernelKind | ApiKind]) -> None:
    assert {row[1] for row in ROWS if row[0] == question} == {one.name for one in kind}


def test_both_demanglers_give_one_name() -> None:
    head, fill = "void at::native::vectorized_elementwise_kernel", "at::native::FillFunctor<float>"
    nsight = f"{head}<(int)4, {fill}, std::array<char *, (unsigned long)1>>(int, T2, T3)"
    kineto = f"{head}<4, {fill}, std::array<char*, 1> >(int, {fill}, std::array<char*, 1>)"
    assert kinds.normalise(nsight) == kinds.normalise(kineto)


def test_short_name_keeps_to_its_width() -> None:
    assert kinds.short_name("nvjet_tst_144x128_64x6_2x1_v_bz_bias_TNN", 20) == "nvjet_tst_144x128_6…"
    assert kinds.short_name("volta_sgemm", 11) == "volta_sgemm"


def test_what_is_known_to_be_installed_is_not_the_user_s_own() -> None:
    """Names are cut to where Python finds a file: only who recorded it knows."""
    name = "gymnasium/spaces/discrete.py(198): contains"
    assert frames.is_user_frame(name)
    assert not frames.is_user_frame(name, ("gymnasium",))
    assert not frames.is_user_frame("six.py(3): moves", ("six",))
    assert frames.is_user_frame("gymnasium_of_mine.py(3): contains", ("gymnasium",))


PIECES = ["void ", "(", ")", "<", ">", "::", " ", ", ", "{lambda", "[lambda()", " (instance 1)]", "operator()", "a"]
PIECES += ["_ZN", "12", "nccl", "Kernel_", "cuda", "Memcpy", "_v7000", "(int)1", "ProfilerStep#", "f.py(3): "]
PIECES += ["…", "\n", "\x00", "²"]
NAMES = st.text() | st.lists(st.sampled_from(PIECES), max_size=30).map("".join)


@given(NAMES)
def test_any_text_has_an_answer(name: str) -> None:
    assert isinstance(kinds.normalise(name), str)
    assert isinstance(kinds.kernel_kind(name), KernelKind)
    assert isinstance(kinds.api_kind(name), ApiKind)
    assert isinstance(kinds.activity(name), Activity)
    assert isinstance(kinds.copy_direction(name), Direction)
    assert isinstance(kinds.host_memory(name), HostMemory)
    assert kinds.uses_tensor_cores(name) in (True, False, None)
    assert frames.is_user_frame(name) in (True, False)
    kinds.math_dtype(name), kinds.collective_of(name), kinds.step_number(name)
    short = kinds.short_name(name)
    assert short.strip() or not name.strip()
    assert len(short) <= 60
    assert bool(short) == bool(name)


@pytest.mark.parametrize(
    "piece", ["<", "(", ")", " ", "<a(", "[lambda(", "_ZN1a", "(1): ", "float16", "cuda_v1", "nccl_Kernel_", "Cijk_"]
)
def test_a_hostile_name_costs_linear_time(piece: str) -> None:
    """No clock: time quadratic in a million characters would be hours."""
    name = piece * (1_000_000 // len(piece))
    assert kinds.normalise(name).strip() or not name.strip()
    assert 0 < len(kinds.short_name(name)) <= 60
    assert kinds.kernel_kind(name) in KernelKind
    assert kinds.uses_tensor_cores(name) is None
    assert kinds.activity(name) is Activity.OTHER
    assert kinds.copy_direction(name) is Direction.UNKNOWN
    assert kinds.host_memory(name) is HostMemory.UNKNOWN
    assert kinds.collective_of(name) is None
    assert isinstance(kinds.api_kind(name), ApiKind)
    assert isinstance(frames.is_user_frame(name), bool)
