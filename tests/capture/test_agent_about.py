"""What the agent says of a process and its machine: of this one with real torch, and of others drawn as a folder."""

import asyncio
import ctypes
import ctypes.util
import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from diagnose.capture.agent import about, about_devices, about_settings, alone
from diagnose.capture.agent.about_settings import Settings
from diagnose.trace import manifest
from tests.capture.scripts import plain

pytestmark = pytest.mark.slow

torch = pytest.importorskip("torch")

OWN_GROUP = {"proc__self__cgroup": "0::/\n"}


def as_json(found: object, kind: Any) -> Any:
    """Through JSON, as the manifest's type, which must have every field."""
    fields = set(kind.__struct_fields__)
    for one in found if isinstance(found, list) else [found]:
        assert set(one) <= fields
    return msgspec.convert(json.loads(json.dumps(found)), list[kind] if isinstance(found, list) else kind)


def draw(root: Path, **files: str) -> Path:
    for name, text in files.items():
        path = root / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.fixture
def settings() -> Iterator[Settings]:
    found = Settings()
    found.install()
    yield found
    about_settings._settings = Settings()
    assert alone.failures == []


def test_this_machine() -> None:
    found = as_json(about.host(), manifest.Host)
    assert (found.system, found.cpus) == (f"{platform.system()} {platform.release()}", os.cpu_count())
    assert 1 <= found.cpus_allowed <= found.cpus
    assert found.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ({}, 16),
        ({**OWN_GROUP, "sys__fs__cgroup__cpu.max": "max 100000\n"}, 16),
        ({**OWN_GROUP, "sys__fs__cgroup__cpu.max": "250000 100000\n"}, 3),
        ({**OWN_GROUP, "sys__fs__cgroup__cpu.max": "20000 100000\n"}, 1),
        ({**OWN_GROUP, "sys__fs__cgroup__cpu.max": "6400000 100000\n"}, 16),
        ({"proc__self__cgroup": "0::/a/b\n", "sys__fs__cgroup__a__cpu.max": "400000 100000\n"}, 4),
        (
            {
                "proc__self__cgroup": "7:memory:/x\n4:cpu,cpuacct:/job\n0::/\n",
                "sys__fs__cgroup__cpu__job__cpu.cfs_quota_us": "600000\n",
                "sys__fs__cgroup__cpu__job__cpu.cfs_period_us": "100000\n",
                "sys__fs__cgroup__cpu__cpu.cfs_quota_us": "-1\n",
                "sys__fs__cgroup__cpu__cpu.cfs_period_us": "100000\n",
            },
            6,
        ),
        ({"proc__self__cgroup": "nonsense\n"}, None),
    ],
)
def test_cpus_that_a_container_leaves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str], expected: int | None
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert about.host(draw(tmp_path, **files))["cpus_allowed"] == expected


def test_the_name_of_a_cpu(tmp_path: Path) -> None:
    cpuinfo = "processor\t: 0\nmodel name\t: AMD EPYC 7763 64-Core Processor\n\nprocessor\t: 1\nmodel name\t: other\n"
    assert about.host(draw(tmp_path / "amd", proc__cpuinfo=cpuinfo))["cpu"] == "AMD EPYC 7763 64-Core Processor"
    assert about.host(draw(tmp_path / "arm", proc__cpuinfo="processor\t: 0\n"))["cpu"] == platform.machine()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19 01:15:15 UTC 2023\n", "535.104.05"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  560.35.03  Release Build\n", "560.35.03"),
        ("something else\n", None),
    ],
)
def test_the_driver(tmp_path: Path, text: str, expected: str | None) -> None:
    assert about.versions(draw(tmp_path, proc__driver__nvidia__version=text)).get("driver") == expected


def test_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of frameworks those that are imported and installed."""
    monkeypatch.setattr(about, "FRAMEWORKS", ("msgspec", "absent", "never_imported"))
    monkeypatch.setitem(sys.modules, "absent", SimpleNamespace())  # type: ignore[arg-type]
    found = about.versions()
    wanted = (platform.python_version(), str(torch.__version__), msgspec.__version__)
    assert (found["python"], found["torch"], found["msgspec"]) == wanted
    assert found.get("cuda") == torch.version.cuda
    assert set(found) <= {"python", "torch", "cuda", "hip", "cudnn", "nccl", "driver", "msgspec"}
    assert type(found["torch"]) is str


def test_the_version_of_cudnn() -> None:
    assert [about._cudnn(number) for number in (8902, 8907, 90100, 91002)] == ["8.9.2", "8.9.7", "9.1.0", "9.10.2"]


def test_variables_that_change_speed() -> None:
    kept = {
        **{"CUDA_VISIBLE_DEVICES": "0,1", "KINETO_LOG_LEVEL": "6", "LOCAL_RANK": "0", "NCCL_ALGO": "Ring"},
        **{"NCCL_IB_GID_INDEX": "3", "NCCL_SOCKET_IFNAME": "^lo,docker0", "OMP_NUM_THREADS": "8"},
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
    never = (
        *("AWS_SECRET_ACCESS_KEY", "HF_TOKEN", "HOSTNAME", "KINETO_CONFIG", "MASTER_ADDR", "NCCL_COMM_ID"),
        *("NCCL_DEBUG_FILE", "NCCL_HOSTID", "NCCL_OOB_NET_TOKEN", "NCCL_RAS_ADDR", "PATH", "WANDB_API_KEY"),
        "TORCH_NCCL_DEBUG_INFO_TEMP_FILE",
    )
    path = {"NCCL_NET_PLUGIN": "/home/someone/libnet.so"}
    assert about.environment({**dict.fromkeys(never, "x"), **path, **kept}) == kept
    assert about.environment({"TORCH_LOGS": "x" * 300}) == {"TORCH_LOGS": "x" * 200}


def test_optimizers() -> None:
    model = torch.nn.Linear(3, 2)
    half = torch.nn.Parameter(torch.zeros(5, dtype=torch.bfloat16, device="meta"))
    groups = [*({"params": [one]} for one in model.parameters()), {"params": [half], "foreach": False}]
    plain, fused = torch.optim.SGD(groups, lr=0.1, foreach=True), torch.optim.AdamW(model.parameters(), fused=True)
    found = as_json(about.optimizers([plain, fused]), manifest.Optimizer)
    first = {"name": "SGD", "foreach": None, "momentum": 0.0, "weight_decay": 0.0}  # By foreach the groups differ.
    first |= {"groups": 3, "distinct_groups": 2, "parameters": 3, "elements": 13, "bytes": 8 * 4 + 5 * 2}
    second = {"name": "AdamW", "fused": True, "capturable": False, "weight_decay": 0.01}
    second |= {"groups": 1, "distinct_groups": 1, "parameters": 2, "elements": 8, "bytes": 32}
    wanted = [
        {**first, "dtypes": {"float32": 8, "bfloat16": 5}, "devices": ("cpu", "meta")},
        {**second, "dtypes": {"float32": 8}, "devices": ("cpu",)},
    ]
    without_lines = [msgspec.structs.replace(one, made=None) for one in found]
    assert without_lines == msgspec.convert(wanted, list[manifest.Optimizer])


def test_an_optimizer_that_wraps_another() -> None:
    class Wrapper(torch.optim.Optimizer):  # type: ignore[misc]
        def __init__(self, inner: Any) -> None:
            self.inner, self.param_groups = inner, inner.param_groups

    inner = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    assert [optimizer["name"] for optimizer in about.optimizers([Wrapper(inner), inner])] == ["SGD"]


def test_flags(settings: Settings) -> None:
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    deterministic = torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    try:
        found = as_json(settings.flags(), manifest.Flags)
    finally:
        torch.set_num_threads(threads)
    told = (found.float32_matmul_precision, found.threads, found.deterministic_algorithms)
    assert told == (precision, 1, deterministic)
    assert found.onednn is bool(torch.backends.mkldnn.enabled)
    assert (found.anomaly_mode, found.fill_uninitialized_memory) == (False, True)
    assert found.cudnn_benchmark is torch.backends.cudnn.benchmark
    assert found.cuda_matmul_allow_tf32 is False
    assert (found.autocast, found.grad_scaler) == ({}, None)
    assert (settings.distributed(), settings.allocator()) == (None, {})
    assert about_devices.devices() == about_devices.links() == []


def test_autocasts(settings: Settings) -> None:
    with torch.autocast("cpu", dtype=torch.float16, enabled=False):
        assert settings.flags()["autocast"] == {}

    @torch.autocast("cpu", dtype=torch.bfloat16)  # type: ignore[untyped-decorator]
    def multiply(one: Any) -> Any:
        return one @ one

    assert settings.flags()["autocast"] == {}  # It was made, but not entered.
    assert multiply(torch.ones(2, 2)).dtype == torch.bfloat16
    assert settings.flags()["autocast"] == {"cpu": "bfloat16"}


def test_anomaly_detection_of_a_part_of_the_step(settings: Settings) -> None:
    with pytest.warns(UserWarning, match="Anomaly Detection"), torch.autograd.detect_anomaly():
        pass
    assert settings.flags()["anomaly_mode"] is True


def test_scalers(settings: Settings) -> None:
    torch.amp.GradScaler("cpu", enabled=False)
    assert settings.flags()["grad_scaler"] is False
    scaler = torch.amp.GradScaler("cpu")
    assert settings.flags()["grad_scaler"] is True
    assert torch.equal(scaler.scale(torch.ones(())), torch.tensor(65536.0))


def test_a_torch_in_which_it_is_a_property() -> None:
    class GradScaler:
        @property
        def _enabled(self) -> bool:
            return True

    other = ModuleType("torch.amp.grad_scaler")
    other.GradScaler = GradScaler  # type: ignore[attr-defined]
    about_settings._hook(other)
    assert isinstance(GradScaler.__dict__["_enabled"], property)
    assert isinstance(GradScaler.__dict__["_init_scale"], about_settings._NotedWhenSet)


SCRIPT = """
import json, sys
from diagnose.capture.agent import about, about_devices, about_settings, alone
assert "torch" not in sys.modules
settings = about_settings.Settings()
settings.install()
assert "torch" not in sys.modules
assert settings.flags() == {} and settings.distributed() is None and settings.allocator() == {}
assert about.optimizers([]) == about_devices.devices() == about_devices.links() == []
assert "torch" not in about.versions()
import torch
"""


def run(folder: Path, script: str, before: str = SCRIPT) -> str:
    """What a script prints that is observed before it imports torch."""
    (folder / "script.py").write_text(before + script)
    done = plain(folder, "script.py")
    assert done.returncode == 0, done.stderr
    return done.stdout


COMPILED = """
def train(compile):
    model, x = torch.nn.Linear(2, 1), torch.ones(1, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    step = torch.compile(model, backend="eager") if compile else model
    with torch.autocast("cpu", dtype=torch.bfloat16):
        step(x).sum().backward()
    optimizer.step()
train(False)
before = settings.flags()["compiled"]
train(True)
print(json.dumps([before, settings.flags()["compiled"], settings.flags()["autocast"], alone.failures]))
"""


def test_compiling(tmp_path: Path) -> None:
    assert json.loads(run(tmp_path, COMPILED)) == [False, True, {"cpu": "bfloat16"}, []]


AUTOCAST = """
import torch
def multiply(x):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return x @ x
scripted = torch.jit.script(multiply)
compiled = torch.compile(multiply, backend="eager", fullgraph=True)
exported = torch.export.export(Model(), (torch.ones(2, 2),)).graph
for made in (multiply, scripted, compiled):
    print(made(torch.ones(2, 2)))
print(exported)
"""


def test_what_compiles_an_autocast_sees_no_difference(tmp_path: Path) -> None:
    model = "import torch\nclass Model(torch.nn.Module):\n    def forward(self, x):\n        return multiply(x)\n"
    assert run(tmp_path, model + AUTOCAST) == run(tmp_path, model + AUTOCAST, before="")


ALONE = """
import os, tempfile
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
store = torch.distributed.FileStore(tempfile.mktemp(), 1)
torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
linear = lambda: torch.nn.Linear(2, 1)
"""
DDP = """
wrap = torch.nn.parallel.DistributedDataParallel
first = wrap(linear())
second = wrap(linear(), bucket_cap_mb=100, find_unused_parameters=True, gradient_as_bucket_view=True)
third = wrap(linear(), static_graph=True)
del first
torch.distributed.destroy_process_group()
print(json.dumps([settings.distributed(), alone.failures]))
"""
FSDP = """
from torch.distributed.fsdp import fully_shard, MixedPrecisionPolicy
mesh = torch.distributed.init_device_mesh("cpu", (1,))
model = torch.nn.Sequential(linear(), linear(), torch.nn.Linear(1, 1))
half = MixedPrecisionPolicy(param_dtype=torch.bfloat16)
fully_shard(model[0], mesh=mesh, mp_policy=half)
fully_shard(model[1], mesh=mesh, mp_policy=half)
fully_shard(model, mesh=mesh, reshard_after_forward=False)
from torch.distributed.fsdp import FullyShardedDataParallel, MixedPrecision
half = MixedPrecision(param_dtype=torch.bfloat16)
FullyShardedDataParallel(linear(), mixed_precision=half, forward_prefetch=True, device_id=torch.device("cpu"))
print(json.dumps([settings.distributed(), alone.failures]))
torch.distributed.destroy_process_group()
"""


@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")
def test_ddp(tmp_path: Path) -> None:
    found, failures = json.loads(run(tmp_path, ALONE + DDP))
    plain = dict.fromkeys(("find_unused_parameters", "static_graph", "gradient_as_bucket_view"), False)
    plain |= {"bucket_cap_mb": 25, "broadcast_buffers": True}
    other = {"bucket_cap_mb": 100, "find_unused_parameters": True, "gradient_as_bucket_view": True}
    known = as_json(found, manifest.Distributed)
    assert msgspec.structs.replace(known, ddp_made=()) == manifest.Distributed(
        backend="gloo", ddp=(plain, {**plain, **other}, {**plain, "static_graph": True})
    )
    assert {Path(one.file).name for one in known.ddp_made} == {"script.py"}
    assert failures == []


@pytest.mark.exhaustive
@pytest.mark.skipif(not torch.distributed.is_available(), reason="torch was built without torch.distributed")
def test_fsdp(tmp_path: Path) -> None:
    found, failures = json.loads(run(tmp_path, ALONE + FSDP))
    inner = {"reshard_after_forward": True, "param_dtype": "bfloat16", "cpu_offload": False, "modules": 2}
    outer = {"reshard_after_forward": False, "param_dtype": None, "cpu_offload": False, "modules": 1}
    first_kind = {
        "sharding_strategy": "NO_SHARD",  # There is one rank.
        **{"param_dtype": "bfloat16", "cpu_offload": False, "limit_all_gathers": True, "use_orig_params": False},
        **{"backward_prefetch": "BACKWARD_PRE", "forward_prefetch": True, "modules": 1},
    }
    known = as_json(found, manifest.Distributed)
    assert (known.backend, known.ddp) == ("gloo", ())
    assert sorted(map(str, known.fsdp)) == sorted(map(str, (inner, outer, first_kind)))
    assert failures == []


NVML = r"""
#include <string.h>
typedef void *device;
static int first, second;
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlDeviceGetHandleByUUID(const char *uuid, device *found) {
    if (!strcmp(uuid, "GPU-aa")) *found = &first; else if (!strcmp(uuid, "GPU-bb")) *found = &second; else return 6;
    return 0;
}
int nvmlDeviceGetClockInfo(device it, unsigned kind, unsigned *mhz) {
    *mhz = it == &first ? 1410 : 345; return kind != 1;
}
int nvmlDeviceGetMaxClockInfo(device it, unsigned kind, unsigned *mhz) { *mhz = 1980; return kind != 1; }
int nvmlDeviceGetPowerUsage(device it, unsigned *mw) { *mw = 698500; return 0; }
int nvmlDeviceGetEnforcedPowerLimit(device it, unsigned *mw) { *mw = 700000; return it == &first ? 0 : 3; }
int nvmlDeviceGetTemperature(device it, unsigned kind, unsigned *c) { *c = 71; return kind != 0; }
int nvmlDeviceGetCurrentClocksThrottleReasons(device it, unsigned long long *bits) {
    *bits = it == &first ? 0x24 : 0; return 0;
}
int nvmlDeviceGetP2PStatus(device one, device other, unsigned kind, unsigned *status) {
    *status = kind == 2 && one == &first && other == &second ? LINKED : 7; return 0;
}
"""


@pytest.fixture
def two_devices(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Two devices in torch, and a library that knows them."""
    compiler = shutil.which("cc")
    if compiler is None or sys.platform == "win32":
        pytest.skip("there is no C compiler")
    library = tmp_path / "libnvml.so"
    source = tmp_path / "nvml.c"
    source.write_text(NVML)
    linked = f"-DLINKED={getattr(request, 'param', 0)}"
    subprocess.run([compiler, "-shared", "-fPIC", linked, "-o", str(library), str(source)], check=True)
    monkeypatch.setattr(about_devices.Nvml.__init__, "__defaults__", (str(library),))
    one = {"name": "NVIDIA H100", "total_memory": 80 << 30, "major": 9, "minor": 0, "multi_processor_count": 132}
    known = [SimpleNamespace(**one, uuid=uuid) for uuid in ("aa", "GPU-bb")]
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(known))
    monkeypatch.setattr(torch.cuda, "get_device_properties", known.__getitem__)


H100 = manifest.DeviceState(
    index=0, name="NVIDIA H100", memory_bytes=80 << 30, compute_capability=(9, 0), multiprocessors=132
)


@pytest.mark.usefixtures("two_devices")
def test_devices() -> None:
    asked = {"sm_clock_mhz": 1410, "most_sm_clock_mhz": 1980, "power_w": 698.5, "power_limit_w": 700.0}
    why = ("SwPowerCap", "SwThermalSlowdown")
    first = msgspec.structs.replace(H100, **asked, temperature_c=71, throttled_by=why)
    second = msgspec.structs.replace(first, index=1, sm_clock_mhz=345, power_limit_w=None, throttled_by=())
    assert as_json(about_devices.devices(), manifest.DeviceState) == [first, second]


@pytest.mark.usefixtures("two_devices")
@pytest.mark.parametrize(("two_devices", "kind"), [(0, "nvlink"), (4, "pcie")], indirect=["two_devices"])
def test_links(kind: str) -> None:
    assert as_json(about_devices.links(), manifest.Links) == [manifest.Links(devices=(0, 1), kind=kind)]


@pytest.mark.usefixtures("two_devices")
def test_devices_without_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(about_devices.Nvml.__init__, "__defaults__", ("no-such-library.so",))
    found = as_json(about_devices.devices(), manifest.DeviceState)
    assert found == [H100, msgspec.structs.replace(H100, index=1)]
    assert about_devices.links() == []


def test_a_library_that_is_none() -> None:
    with about_devices.Nvml(ctypes.util.find_library("m") or "libm.so.6") as nvml:
        assert nvml.ask("nvmlDeviceGetPowerUsage", ctypes.c_void_p(1)) is None


def test_installed_packages_are_told_apart_from_python_s_and_the_script_s(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = str(Path(pytest.__file__).parent.parent)
    for name, file in (
        ("spaces.inner", f"{installed}/spaces/inner.py"),  # A package without a file of its own.
        ("elsewhere", "/usr/lib/python3/dist-packages/elsewhere/__init__.py"),
        ("mine", "/home/me/project/mine.py"),
        ("asyncio", asyncio.__file__),
    ):
        module = ModuleType(name)
        module.__file__ = file
        monkeypatch.setitem(sys.modules, name, module)
    found = about.libraries()
    assert {"spaces", "elsewhere", "pytest"} <= set(found)
    assert not {"mine", "asyncio", "spaces.inner"} & set(found)
