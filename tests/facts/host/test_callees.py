"""What the pauses of the host are filled with: functions of libraries and C functions, by hand-made frames."""

import pytest

from diagnose.facts.core.base import Facts
from diagnose.facts.host.callees import Callee
from diagnose.facts.host.python import PythonPause, python_pauses
from diagnose.synthetic.reading import facts_of
from diagnose.trace.frames import OWN, TORCH, Site, named, short
from diagnose.trace.joining import joined
from diagnose.trace.kinds import CalleeKind, callee_kind
from tests.drawing import Drawing

MS = 1_000_000


@pytest.mark.parametrize(
    ("frame", "name", "kind"),
    [
        ("<built-in function collect>", "gc.collect", CalleeKind.GARBAGE_COLLECTION),
        ("<built-in function sleep>", "time.sleep", CalleeKind.WAIT),
        ("torch/utils/tensorboard/writer.py(4): close", "torch.utils.tensorboard.writer.close", CalleeKind.LOG),
        ("/usr/lib/python3.12/json/__init__.py(183): dumps", "json.dumps", CalleeKind.LOG),
        ("numpy/lib/_npyio_impl.py(309): load", "numpy.lib.load", CalleeKind.LOAD),
        ("numpy/lib/_arraysetops_impl.py(146): unique", "numpy.lib.unique", CalleeKind.NUMERIC),
        ("torch/serialization.py(940): save", "torch.serialization.save", CalleeKind.SAVE),
        ("copy.py(119): deepcopy", "copy.deepcopy", CalleeKind.COPY),
        ("<built-in method read of _io.BufferedReader object at 0x7f01>", "BufferedReader.read", CalleeKind.LOAD),
        ("<built-in method tolist of Tensor object at 0x7f01>", "Tensor.tolist", CalleeKind.READ),
        ("<built-in method tensor of type object at 0x7f01>", "torch.tensor", CalleeKind.CONVERT),
        ("<built-in method findall of re.Pattern object at 0x7f01>", "Pattern.findall", CalleeKind.OTHER),
        ("/env/lib/python3.11/site-packages/cucim/skimage/_f.py(3): zoom", "cucim.skimage.zoom", CalleeKind.NUMERIC),
    ],
)
def test_a_call_is_named_as_a_person_would_and_is_of_a_kind(frame: str, name: str, kind: CalleeKind) -> None:
    assert (short(named(frame)), callee_kind(frame)) == (name, kind)


@pytest.mark.parametrize(
    ("frame", "name"),
    [
        ("nn.Module: Linear_0", TORCH),
        ("torch/optim/optimizer.py(509): wrapper", TORCH),
        ("<built-in method add_ of Parameter object at 0x7f01>", TORCH),
        ("<built-in method append of list object at 0x7f01>", OWN),
        ("<built-in function len>", OWN),
        ("/home/me/train.py(7): loss", OWN),
        ("transformers/trainer.py(2500): _inner_training_loop", OWN),
    ],
)
def test_calls_of_the_framework_and_of_the_language_have_no_name_of_their_own(frame: str, name: str) -> None:
    assert named(frame) == name


def steps_with(*frames: tuple[str, float, float], ops: str = "") -> PythonPause:
    """Where most pauses in steps of 10 ms: ops take all but 2 to 8 ms, where `frames` are open, and `ops` run."""
    opened = "".join(f' | "{name}" {start}-{end}' for name, start, end in frames)
    step = f'aten::mm 0-2 | "/home/me/train.py(3): main" 0-10{opened} | {ops}aten::add 8-10'
    found = python_pauses(facts_of(f"4 steps of 10\n1 threads, 2 cores\ncpu  {step}"))
    return found[0]


def test_a_pause_has_the_name_of_the_c_function_that_fills_it() -> None:
    found = steps_with(("<built-in function fsync>", 2.5, 7.5))
    assert found.callee == Callee("fsync", CalleeKind.SAVE, 5 * MS, 1.0)
    assert found.is_work


def test_what_fills_less_than_half_of_a_pause_is_not_named() -> None:
    assert steps_with(("<built-in function fsync>", 2.5, 5)).callee is None


def test_of_calls_within_each_other_the_one_that_the_line_makes_is_named() -> None:
    found = steps_with(("wandb/sdk/run.py(70): log", 2, 7.9), ("json/__init__.py(183): dumps", 2.1, 7.8))
    assert found.callee.name == "wandb.sdk.run.log"


def test_the_user_s_function_that_a_library_calls_back_is_a_line_of_its_own() -> None:
    found = steps_with(("tqdm/std.py(1160): __iter__", 2, 7.9), ("/home/me/data.py(8): rows", 2.1, 7.8))
    assert (found.site.function, found.callee) == ("rows", None)


def test_ops_that_a_log_asks_for_are_the_log_s() -> None:
    """Of 6 ms the log takes 5, and 2 of these in an op; of numpy's function the op is not."""
    found = steps_with(("wandb/sdk/run.py(70): log", 2.5, 7.5), ops="aten::stack 4-6 | ")
    assert (found.idle_ns, found.gaps) == (6 * MS, found.steps)
    assert found.callee == Callee("wandb.sdk.run.log", CalleeKind.LOG, 5 * MS, 1.0)
    without = steps_with(("numpy/lib/_f.py(70): unique", 2.5, 7.5), ops="aten::stack 4-6 | ")
    assert (without.idle_ns, without.gaps) == (4 * MS, 2 * without.steps)


@pytest.mark.parametrize("notes_collections", [False, True])
def test_a_detail_recording_names_what_the_device_waits_for(notes_collections: bool) -> None:
    """The device is idle from 100 to 805 us of each step, while garbage is collected, and for 12 between steps.
    A collection that a call asks for is the call's, whether or not Python's own note of it was recorded."""
    timing, detail = Drawing(), Drawing().frame("/home/me/train.py(3): main", 0, 4000)
    for at in range(0, 4000, 1000):
        for draw in (timing, detail):
            draw.step(at // 1000, at, at + 1000).op("aten::mm", at + 4, at + 7).op("aten::add", at + 799, at + 802)
            draw.launch("a", (at + 5, at + 6), (at + 10, at + 100))
            draw.launch("b", (at + 800, at + 801), (at + 805, at + 998))
        detail.frame("<built-in function collect>", at + 10, at + 790)
        if notes_collections:
            detail.frame("Python GC", at + 11, at + 789)
    longest = python_pauses(Facts(joined(timing.rank(), detail.rank())))[0]
    assert (longest.site, longest.idle_ns) == (Site("/home/me/train.py", 3, "main"), 717_000)
    assert longest.is_work
    assert longest.callee == Callee("gc.collect", CalleeKind.GARBAGE_COLLECTION, 705_000, 1.0)


def test_what_a_function_does_itself_in_one_pause_is_one_piece_of_work() -> None:
    """A loop over lines 33 and 34 takes 2 and 3 ms of each step, and json.dumps at line 36 in the same pause 1 ms."""
    lines = ((33, 2, 4), (34, 4, 7), (36, 7, 8))
    frames = " | ".join(f'"/home/me/train.py({line}): main" {begin}-{end}' for line, begin, end in lines)
    step = f'aten::mm 0-2 | {frames} | "json/__init__.py(183): dumps" 7-8 | aten::add 8-10'
    pauses = python_pauses(facts_of(f"4 steps of 10\n1 threads, 2 cores\ncpu  {step}"))
    of_line = {pause.site.line: pause for pause in pauses if pause.site}
    loop, dumps = of_line[34], of_line[36]
    assert (loop.idle_ns, loop.callee, loop.gaps) == (5 * MS, None, loop.steps)
    assert dumps.callee == Callee("json.dumps", CalleeKind.LOG, MS, 1.0)
