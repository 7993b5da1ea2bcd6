"""Each call that the agent makes of torch's CUDA, profiler and internals fails alone: it raises, hangs or answers
nonsense, and the training is as without us, what else there is gets recorded, and what is missing is told."""

import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

from diagnose.capture import run
from diagnose.capture.agent.plan import Plan
from diagnose.source.run_log import read
from tests.capture import faults
from tests.capture.scripts import STEP, Done, environment, plain, script
from tests.exhaustive import some_of

pytest.importorskip("torch")

TRAINING = f"""
from tests.capture.faults import install
install()
{STEP}
import gc

for at in range(int(sys.argv[1])):
    loss = step()
    if at % 4 == 0:
        gc.collect()
        str(model[0].weight)
torch.save(model.state_dict(), __file__ + ".pt")
print(loss.hex(), torch.rand(1).item())
sys.exit(7)
"""
SWITCH = "patch:gc.freeze(every=500)"  # Changes no number, as another number of threads does.
PLANS = {
    "profile": (100, Plan(warmup=2, steps=2, keep_running=True)),
    "nsys": (100, Plan(warmup=2, steps=2, keep_running=True, tracer="nsys")),
    "screen": (200, Plan(warmup=2, timed=3, screen_s=5.0, switches=(SWITCH,), keep_running=True)),
    "watch": (60, Plan(warmup=2, watch=True)),
}
"""Steps of a training, and what is recorded of it. Nsight Systems itself is not run."""

RANGE = ("__init__", "__enter__", "__exit__")
EVENT = ("__init__", "record", "elapsed_time", "synchronize")
PROFILE = ("__init__", "start", "stop", "export_chrome_trace")
ALL_TRACES = "There is no timing recording"
CALLS = {
    "profile": {
        "torch._C._autograd._get_sequence_nr": "the nodes of autograd's graph",
        "torch._C._autograd._profiler_type": "the end of a profiler",
        "torch._C._current_graph_task_id": "values of ops",
        "torch._C._dynamo.eval_frame.set_eval_frame": "what torch.compile compiles",
        "torch._C._profiler._ExperimentalConfig.__init__": "options of the profiler",
        **{f"torch._C._profiler._RecordFunctionFast.{name}": "the lines that run" for name in RANGE},
        "torch.autograd._profiler_enabled": "ranges of earlier recordings",
        **{f"torch.profiler.record_function.{name}": "the steps' places" for name in RANGE},
        **{f"torch.cuda.Event.{name}": "device times of steps" for name in EVENT},
        "torch.cuda._get_nvml_device_index": "",  # Figures of the device, which the manifest leaves empty.
        "torch.cuda.device_count": "the devices",
        "torch.cuda.get_device_properties": "the properties of devices",
        "torch.cuda.is_current_stream_capturing": "whether a CUDA graph is captured",
        "torch.cuda.is_initialized": "whether a GPU is used",
        "torch.cuda.memory_stats": "the allocator",
        "torch.cuda.nccl.version": "",  # A version, which the manifest leaves out.
        "torch.cuda.synchronize": "waiting for the device",
        **{f"torch.profiler.profile.__{name}__": "what recording an event costs" for name in ("enter", "exit")},
        **{f"torch.profiler.profile.{name}": ALL_TRACES for name in PROFILE},
    },
    "nsys": {
        **{f"{faults.EMIT}.{name}": "ranges of ops" for name in RANGE},
        "torch.cuda.is_available": "whether there is a GPU",
        "torch.cuda.nvtx.range_end": "the end of what nsys records",
        "torch.cuda.nvtx.range_pop": "the steps' places",
        "torch.cuda.nvtx.range_push": "the steps' places",
        "torch.cuda.nvtx.range_start": ALL_TRACES,
    },
    "screen": {
        "torch.cuda.get_rng_state_all": "",  # Outputs are not compared, which the manifest leaves empty.
        "torch.cuda.set_rng_state_all": "the random state of GPUs",
        "torch.cuda.max_memory_allocated": "the most memory",
        "torch.cuda.reset_peak_memory_stats": "the most memory of a block",
    },
    "watch": {"torch.cuda.Event.query": "", "torch.cuda.current_device": ""},  # The log has times and figures or not.
}
"""What is told to be missing where a call raises. Only what `devices` and `links` ask runs in a thread that can be left
alone: any other call that never returns holds up the training, as its own thread makes it."""

NOT_REACHED = {
    "torch._C._autograd._disable_profiler": "only where a profiler has not ended",
    "torch.cuda.Event.wait": "only of the events of threads",
    "torch.cuda.mem_get_info": "only of weights on a GPU; its caller says why a setting was not measured",
}
OF_ALL = [f"{kind} {call} {how}" for kind in CALLS for call in CALLS[kind] for how in ("raises", "hangs", "nonsense")]
KEPT = {one for one in OF_ALL if one.split()[1] in ("torch.cuda.Event.record", "torch.profiler.profile.stop")}


def test_no_call_is_forgotten() -> None:
    assert faults.calls() == {call for some in CALLS.values() for call in some} | NOT_REACHED.keys()


@pytest.fixture(scope="module")
def printed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], str]:
    """What a training of so many steps prints without us."""

    @cache
    def alone(steps: int) -> str:
        folder = tmp_path_factory.mktemp("alone")
        return plain(folder, script(folder, TRAINING), steps).stdout

    return alone


def trained(folder: Path, kind: str, broken: str) -> tuple[Done, list[str]]:
    """A recorded training, and what the agent asked of torch."""
    steps, plan = PLANS[kind]
    command, told = [sys.executable, str(script(folder, TRAINING)), str(steps)], replace(plan, tracer="torch")
    part = run.prepare(folder / "out", told, command)
    plan.write(part)
    variables = {faults.ASKED: str(folder / "asked"), faults.BROKEN: broken, "NSYS_PROFILING_SESSION_ID": "1"}
    with (folder / "said").open("wb") as output:
        done = run.run(command, part, told, lambda text: None, environment() | variables, output)
    said = (folder / "said").read_text()
    return Done(done.exit_code, said, "", folder / "out"), (folder / "asked").read_text().splitlines()


@pytest.mark.slow
@pytest.mark.parametrize("case", some_of(OF_ALL, KEPT))
def test_a_call_fails_alone(tmp_path: Path, printed: Callable[[int], str], case: str) -> None:
    kind, call, how = case.split()
    done, asked = trained(tmp_path, kind, f"{call} {how}")
    assert call in asked
    assert (done.code, done.stdout) == (7, printed(PLANS[kind][0]))
    missing = CALLS[kind][call]
    if kind == "watch":
        assert read(done.folder / "rank0.watch").ended == "itself"
        return
    assert how != "raises" or missing in " ".join(done.rank.notes)
    assert done.rank.unprofiled is not None
    traces = {"profile": {"trace", "detail"}, "nsys": {"detail"}, "screen": set[str]()}[kind]
    if missing != ALL_TRACES or kind == "nsys" or how == "hangs":
        assert {kind for kind in ("trace", "detail") if getattr(done.rank, kind) is not None} == traces
