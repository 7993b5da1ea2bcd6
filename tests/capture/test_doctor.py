"""What the doctor says of machines: this one, and others drawn as a folder of /proc, /sys and the like."""

import json
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from diagnose.capture import doctor
from diagnose.capture.doctor import ALLOW_COUNTERS, Check, Torch
from diagnose.cli import COMMANDS, group
from diagnose.cli.record import report
from tests.capture.test_agent_about import draw
from tests.cli.invoking import refused, run
from tests.hostile import ROOT

NO_CAPABILITY, SYS_ADMIN, PERFMON = "0000000000000000", f"{1 << 21:016x}", f"{1 << 38:016x}"


@pytest.fixture
def fake_torch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty module `torch` that is found before any real one."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "modules"))
    return draw(tmp_path, modules__torch____init____py="") / "modules" / "torch" / "__init__.py"


@pytest.mark.slow
def test_a_python_with_torch() -> None:
    torch = pytest.importorskip("torch")
    found = doctor.look_at_torch(sys.executable)
    assert found.error is None
    assert found.torch == torch.__version__
    assert (found.cuda, found.hip) == (torch.version.cuda, torch.version.hip)
    assert len(found.devices) == torch.cuda.device_count()
    assert bool(found.kernels) == torch.cuda.is_available()


def test_a_python_without_torch(tmp_path: Path) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    found = doctor.checks(python)
    assert found[0].state == "missing"
    assert found[0].what == f"{python} cannot import it: ModuleNotFoundError: No module named 'torch'"
    assert f"`{python} -m pip install torch`" in found[0].fix
    assert "GPU" not in [check.name for check in found]
    assert not doctor.can_record(found)


@pytest.mark.parametrize(
    ("module", "error"),
    [
        (
            "raise ImportError('first line\\nlibcudart.so.12: cannot open shared object file')",
            "ImportError: libcudart.so.12: cannot open shared object file",
        ),
        ("raise SystemExit", "SystemExit"),
        ("import os; os.abort()", "the process ended with -6"),
        ("import os; os._exit(7)", "the process ended with 7"),
        ("import os; os._exit(0)", "the process died"),
        ("", "AttributeError: module 'torch' has no attribute '__version__'"),
    ],
    ids=["missing library", "exits", "crashes", "ends with a code", "ends well", "empty folder"],
)
def test_a_torch_that_cannot_be_imported(fake_torch: Path, module: str, error: str) -> None:
    fake_torch.write_text(module)
    found = doctor.look_at_torch(sys.executable)
    assert doctor.check_torch("python", found).what == f"python cannot import it: {error}"


@pytest.mark.slow
def test_a_torch_that_hangs(fake_torch: Path) -> None:
    fake_torch.write_text("import time; print('torch says hello', flush=True); time.sleep(600)")
    found = doctor.look_at_torch(sys.executable, timeout_s=2)
    assert found == Torch(error="no answer within 2 s")


GPU_TORCH = """
import sys, types, warnings
__version__ = "2.13.0+cu130"
version = types.SimpleNamespace(cuda="13.0", hip=None)
cuda = types.SimpleNamespace(is_available=lambda: True, device_count=lambda: 1, get_device_name=lambda index: "GPU X")
profiler = sys.modules["torch.profiler"] = types.ModuleType("torch.profiler")
profiler.ProfilerActivity = profiler.profile = None
def ones(*size, device):
    {fails}
"""


@pytest.mark.parametrize(
    ("fails", "error"),
    [
        ("raise RuntimeError('CUDA error: out of memory\\n')", "RuntimeError: CUDA error: out of memory"),
        ("import os; os.abort()", "the process ended with -6"),
    ],
    ids=["raises", "crashes"],
)
def test_a_try_that_fails_leaves_what_was_found_before(
    fake_torch: Path, tmp_path: Path, fails: str, error: str
) -> None:
    fake_torch.write_text(GPU_TORCH.format(fails=fails))
    cupti = draw(tmp_path, modules__nvidia__cu13__lib__libcupti="").joinpath("modules/nvidia/cu13/lib/libcupti")
    found = doctor.look_at_torch(sys.executable)
    assert found == Torch(torch="2.13.0+cu130", cuda="13.0", devices=("GPU X",), cupti=str(cupti), error=error)
    gpu, kernels = doctor.check_gpu(found, tmp_path)
    assert gpu == Check("GPU", "ok", "GPU X")
    assert (kernels.state, kernels.what) == ("missing", f"not recorded: {error} ({cupti})")
    assert kernels.fix.startswith("Free the GPU")


CUDA = Torch(torch="2.13.0", cuda="12.8", devices=("GPU X", "GPU Y"), cupti="/lib/libcupti.so.12")


def test_kernels_that_are_recorded(tmp_path: Path) -> None:
    assert list(doctor.check_gpu(replace(CUDA, kernels=1), tmp_path)) == [
        Check("GPU", "ok", "GPU X, GPU Y"),
        Check("GPU kernels", "ok", "a test kernel was recorded (/lib/libcupti.so.12)"),
    ]


@pytest.mark.parametrize(
    ("fields", "what", "fix"),
    [
        ({"kernels": 0}, "the recording of a test kernel is empty (/lib/libcupti.so.12)", "without any other profiler"),
        (
            {"said_of_cupti": "failed with error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35)"},
            "failed with error CUPTI_ERROR_INSUFFICIENT_PRIVILEGES (35) (/lib/libcupti.so.12)",
            ALLOW_COUNTERS,
        ),
        ({"cupti": None}, "(torch has no CUPTI library)", "`pip install nvidia-cuda-cupti-cu12`"),
        ({"cupti": None, "cuda": "13.0"}, "(torch has no CUPTI library)", "`pip install nvidia-cuda-cupti`"),
        ({"kernels": 0, "cuda": None, "hip": "6.4"}, "is empty (ROCm)", "without any other profiler"),
    ],
    ids=["silently", "privileges", "no library", "no library for CUDA 13", "ROCm"],
)
def test_kernels_that_are_not_recorded(tmp_path: Path, fields: dict[str, object], what: str, fix: str) -> None:
    _, kernels = doctor.check_gpu(replace(CUDA, **fields), tmp_path)
    assert (kernels.name, kernels.state) == ("GPU kernels", "missing")
    assert what in kernels.what
    assert fix in kernels.fix


@pytest.mark.parametrize(
    ("torch", "driver", "state", "what"),
    [
        (Torch(torch="2.13.0+cpu"), False, "ok", "none; CPU trainings can be recorded"),
        (Torch(torch="2.13.0", cuda="12.8"), False, "ok", "none; CPU trainings can be recorded"),
        (Torch(torch="2.13.0+cpu"), True, "limited", "this machine has one, but torch was built for the CPU only"),
        (
            Torch(torch="2.13.0", cuda="12.8", device_warning="The NVIDIA driver is too old"),
            True,
            "limited",
            "torch cannot use this machine's: The NVIDIA driver is too old",
        ),
        (
            Torch(torch="2.13.0", cuda="12.8", error="the process ended with -11"),
            False,
            "limited",
            "torch cannot use this machine's: the process ended with -11",
        ),
    ],
    ids=["CPU", "no driver", "wrong build", "old driver", "crash"],
)
def test_no_gpu(tmp_path: Path, torch: Torch, driver: bool, state: str, what: str) -> None:
    root = draw(tmp_path, proc__driver__nvidia__version="NVRM version: 570") if driver else tmp_path
    [gpu] = doctor.check_gpu(torch, root)
    assert (gpu.name, gpu.state, gpu.what) == ("GPU", state, what)
    assert bool(gpu.fix) == (state != "ok")


def test_a_folder_that_is_not_there_yet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    found = doctor.check_folder(doctor.FOLDER)
    assert found == Check("folder", "ok", "diagnose-runs is writable")
    assert list(tmp_path.iterdir()) == []


def test_a_file_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "runs").write_text("")
    found = doctor.check_folder(tmp_path / "runs" / "train")
    assert (found.state, found.what) == ("missing", f"{tmp_path / 'runs'} is not writable: Not a directory")
    assert not doctor.can_record([Check("torch", "ok", ""), found])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="where only Linux has a folder that root cannot write")
def test_a_folder_that_cannot_be_written() -> None:
    assert doctor.check_folder(Path("/proc/runs")).state == "missing"


def program(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


NSYS = "#!/bin/sh\necho 'NVIDIA Nsight Systems version 2025.5.1.121-255136380782v0'\n"
VERSION = "2025.5.1.121-255136380782v0"


def test_nsys_on_the_path(tmp_path: Path) -> None:
    nsys = program(tmp_path / "bin" / "nsys", NSYS)
    assert doctor.check_nsys(str(nsys.parent)) == Check("nsys", "ok", f"{nsys} ({VERSION})")


@pytest.mark.parametrize("text", [None, "#!/bin/sh\nexit 1\n", "#!/no/such/shell\n"], ids=["none", "fails", "broken"])
def test_no_nsys(tmp_path: Path, text: str | None) -> None:
    if text:
        program(tmp_path / "bin" / "nsys", text)
    found = doctor.check_nsys(str(tmp_path / "bin"))
    assert (found.name, found.state) == ("nsys", "missing")
    assert doctor.can_record([found])


@pytest.mark.parametrize(
    ("level", "capabilities", "container", "state", "what"),
    [
        ("2", NO_CAPABILITY, False, "ok", "allowed: kernel.perf_event_paranoid is 2"),
        ("-1", NO_CAPABILITY, False, "ok", "allowed: kernel.perf_event_paranoid is -1"),
        ("3", NO_CAPABILITY, False, "limited", "not for nsys: kernel.perf_event_paranoid is 3"),
        ("4", SYS_ADMIN, True, "ok", "allowed, by capability"),
        ("4", PERFMON, False, "ok", "allowed, by capability"),
        ("2", NO_CAPABILITY, True, "limited", "not for nsys: this container lacks CAP_SYS_ADMIN"),
        ("", SYS_ADMIN, False, "limited", "this kernel has no perf events"),
    ],
)
def test_sampling(tmp_path: Path, level: str, capabilities: str, container: bool, state: str, what: str) -> None:
    root = draw(tmp_path, proc__self__status=f"Name:\tpython\nCapEff:\t{capabilities}\n")
    draw(root, proc__sys__kernel__perf_event_paranoid=f"{level}\n")
    if container:
        draw(root, **{".dockerenv": ""})
    [found] = doctor.check_sampling(root)
    assert (found.name, found.state, found.what) == ("CPU sampling", state, what)
    assert bool(found.fix) == (state != "ok")


@pytest.mark.parametrize(
    ("value", "capabilities", "state"),
    [("1", NO_CAPABILITY, "limited"), ("1", SYS_ADMIN, "ok"), ("0", NO_CAPABILITY, "ok")],
)
def test_counters(tmp_path: Path, value: str, capabilities: str, state: str) -> None:
    root = draw(
        tmp_path,
        proc__driver__nvidia__params=f"ResmanDebugLevel: 4294967295\nRmProfilingAdminOnly: {value}\n",
        proc__self__status=f"CapEff:\t{capabilities}\n",
    )
    [found] = doctor.check_counters(root)
    assert (found.name, found.state) == ("GPU counters", state)
    assert found.fix == (ALLOW_COUNTERS if state == "limited" else "")


def test_no_word_on_counters_without_a_driver_and_on_sampling_without_linux(tmp_path: Path) -> None:
    assert [*doctor.check_counters(tmp_path), *doctor.check_sampling(tmp_path)] == []


@pytest.mark.slow
def test_the_report(tmp_path: Path) -> None:
    done = run("doctor", cwd=tmp_path)
    assert done.stderr == ""
    assert "\x1b" not in done.stdout
    lines = done.stdout.splitlines()
    assert lines[0].split()[1] == "torch"
    has_torch = subprocess.run([sys.executable, "-c", "import torch"], capture_output=True, check=False).returncode == 0
    assert lines[0].split()[0] == ("ok" if has_torch else "missing")
    assert done.returncode == (0 if has_torch else 2)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.exhaustive
def test_json_says_the_same(tmp_path: Path) -> None:
    done = run("doctor", "--json", cwd=tmp_path)
    said = json.loads(done.stdout)
    assert said["can_record"] == (done.returncode == 0)
    assert [check["name"] for check in said["checks"]][:1] == ["torch"]
    text = run("doctor", cwd=tmp_path).stdout.splitlines()
    assert [line.split()[0] for line in text[: len(said["checks"])]] == [check["state"] for check in said["checks"]]


def test_a_torch_that_breaks(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('libcudart.so.12: cannot open shared object file')")
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 2
    assert "cannot import it: ImportError: libcudart.so.12: cannot open shared object file" in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.slow
def test_the_report_names_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "diagnose-runs").write_text("")
    done = run("doctor", cwd=tmp_path)
    assert done.returncode == 2
    assert f"missing  folder        {tmp_path / 'diagnose-runs'} is not writable: Not a directory" in done.stdout


FOUND = [
    Check("torch", "ok", "2.13.0, built for CUDA 12.8"),
    Check("shared memory", "limited", "/dev/shm: 67.1 MB free", "Give more."),
    Check("nsys", "missing", "not found", "Install it."),
]


def test_the_layout() -> None:
    runner = CliRunner()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("diagnose.capture.doctor.checks", lambda: FOUND)
        done = runner.invoke(group, ["doctor"])
        colored = runner.invoke(group, ["doctor"], color=True)
        patch.setenv("NO_COLOR", "1")
        plain = runner.invoke(group, ["doctor"], color=True)
    assert done.exit_code == 0
    assert done.output == (
        "ok       torch          2.13.0, built for CUDA 12.8\n"
        "limited  shared memory  /dev/shm: 67.1 MB free\n"
        "missing  nsys           not found\n"
        "\n"
        "How to fix:\n"
        "shared memory  Give more.\n"
        "nsys           Install it.\n"
        "\n"
        "This machine can record trainings.\n"
    )
    assert "\x1b[33mlimited\x1b[0m" in colored.output
    assert plain.output == done.output


def test_nothing_to_mend() -> None:
    assert report(FOUND[:1], recordable=True).splitlines()[1:] == ["", "This machine can record trainings."]


MAIN = "from diagnose.cli import main; main()"


@pytest.mark.parametrize("module", ["mcp", "mcp.server", "pydantic"])
def test_without_the_sdk_there_is_one_sentence(module: str) -> None:
    program = (
        f"import sys; sys.modules[{module!r}] = None; sys.argv[1:] = ['mcp']; from diagnose.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False)
    refused(done, "Error: The Model Context Protocol SDK is missing. Run: pip install torch-diagnose[mcp]")


def test_help_needs_no_sdk() -> None:
    program = (
        "import sys; sys.modules['mcp'] = None; sys.argv[1:] = ['mcp', '-h']; from diagnose.cli import main; main()"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert COMMANDS["mcp"].split()[0] in done.stdout
