"""The files of docs/clusters: what can run here runs, with processes that play machines, pods and Slurm."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from diagnose.trace.manifest import Manifest
from tests.capture.scripts import Done, environment, manifest_of, script
from tests.capture.test_clusters import DDP, free_port

pytest.importorskip("torch")
pytestmark = pytest.mark.slow

FILES = Path(__file__).parents[2] / "docs" / "clusters"
__all__ = ["free_port"]

SRUN = """#!/bin/bash
# One task on each of two nodes, as srun starts them.
for node in 0 1; do
    SLURM_STEP_ID=0 SLURM_PROCID=$node SLURM_NODEID=$node SLURM_LOCALID=0 SLURM_STEP_NUM_TASKS=2 \\
        SLURM_STEP_TASKS_PER_NODE='1(x2)' "$@" &
    tasks[$node]=$!
done
code=0
for task in "${tasks[@]}"; do wait "$task" || code=$?; done
exit $code
"""
SCONTROL = "#!/bin/bash\necho localhost\necho other\n"


def programs(folder: Path, **scripts: str) -> dict[str, str]:
    """An environment in which these programs, `diagnose` and `torchrun` are found first."""
    modules = {"diagnose": "diagnose", "torchrun": "torch.distributed.run"}
    ours = {name: f'#!/bin/bash\nexec {sys.executable} -m {module} "$@"\n' for name, module in modules.items()}
    (folder / "bin").mkdir()
    for name, text in {**ours, **scripts}.items():
        (folder / "bin" / name).write_text(text)
        (folder / "bin" / name).chmod(0o755)
    given = environment()
    return {**given, "PATH": f"{folder / 'bin'}{os.pathsep}{given['PATH']}"}


def whole(found: Manifest) -> None:
    assert [(rank.rank, rank.node, rank.peers) for rank in found.ranks] == [(0, 0, 1), (1, 1, 1)]
    assert (found.complete, found.notes) == (True, ())


@pytest.mark.exhaustive
def test_the_batch_script_of_slurm(tmp_path: Path, free_port: int) -> None:
    script(tmp_path, DDP)
    given = programs(tmp_path, srun=SRUN, scontrol=SCONTROL)
    job = {"SLURM_JOB_ID": "4711", "SLURM_JOB_NODELIST": "n[0-1]", "SLURM_JOB_NUM_NODES": "2"}
    more = {"SLURM_SUBMIT_DIR": str(tmp_path), "RANKS_PER_NODE": "1", "PORT": str(free_port)}
    words = ["bash", str(FILES / "slurm.sbatch")]
    assert subprocess.run([*words[:1], "-n", words[1]], capture_output=True, text=True).stderr == ""
    done = subprocess.run(
        words, cwd=tmp_path, env={**given, **job, **more}, capture_output=True, text=True, timeout=180
    )
    assert done.returncode == 0, done.stderr[-3000:]
    whole(manifest_of(tmp_path / "diagnose-runs" / "4711"))
    assert (tmp_path / "diagnose-runs" / "4711" / "report.html").is_file()


@pytest.mark.exhaustive
def test_the_job_of_kubernetes(tmp_path: Path, free_port: int) -> None:
    """Two pods are played; the volume that they share is a folder."""
    script(tmp_path, DDP)
    given = programs(tmp_path)
    job = yaml.safe_load((FILES / "pytorchjob.yaml").read_text(encoding="utf-8"))
    replicas = job["spec"]["pytorchReplicaSpecs"]
    assert (job["kind"], sum(replica["replicas"] for replica in replicas.values())) == ("PyTorchJob", 2)
    pods = []
    for rank, kind in enumerate(("Master", "Worker")):
        (container,) = replicas[kind]["template"]["spec"]["containers"]
        (mount,) = container["volumeMounts"]
        words = [
            word.replace(mount["mountPath"], str(tmp_path)) for word in (*container["command"], *container["args"])
        ]
        told = {"WORLD_SIZE": "2", "RANK": str(rank), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port)}
        pods.append(subprocess.Popen(words, cwd=tmp_path, env={**given, **told, "RANKS_PER_POD": "1"}))
    assert [pod.wait(timeout=180) for pod in pods] == [0, 0]
    whole(manifest_of(tmp_path / "runs" / "train"))


def test_the_script_of_ray_train(tmp_path: Path) -> None:
    pytest.importorskip("ray.train.torch")
    words = [sys.executable, str(FILES / "ray_train.py"), str(tmp_path / "out")]
    assert subprocess.run(words, cwd=tmp_path, env=environment(), timeout=300).returncode == 0
    found = Done(0, "", "", tmp_path / "out").manifest
    assert [(rank.rank, rank.steps_by, rank.trace is not None) for rank in found.ranks] == [
        (0, "code", True),
        (1, "code", True),
    ]
    assert found.complete


PDSH = """#!/bin/bash
# Plays machines: each gets only what the command itself exports.
while [ "$1" != "-w" ]; do shift; done
hosts=$2; shift 2; number=0
for host in ${hosts//,/ }; do
    env -i PATH="$PATH" HOME="$HOME" DS_ACCELERATOR=cpu bash -c "$(echo "$*" | sed "s/%n/$number/g")" &
    number=$((number + 1))
done
wait
"""


def test_one_command_around_the_launcher_of_deepspeed(tmp_path: Path, free_port: int) -> None:
    """It passes PYTHONPATH on to other machines, and no variable of ours. `pdsh` and `ssh` are played."""
    pytest.importorskip("deepspeed")
    shutil.copy(FILES / "deepspeed_train.py", tmp_path / "train.py")
    (tmp_path / "hosts").write_text("node0 slots=1\nnode1 slots=1\n")
    given = programs(tmp_path, pdsh=PDSH, ssh="#!/bin/bash\n", deepspeed=DEEPSPEED)
    words = f"diagnose profile -o out --no-analyze -- deepspeed --hostfile hosts --force_multi --master_addr 127.0.0.1 \
--master_port {free_port} train.py --steps 3000"
    done = subprocess.run(
        words.split(), cwd=tmp_path, env={**given, "DS_ACCELERATOR": "cpu"}, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = manifest_of(tmp_path / "out")
    assert [(rank.rank, rank.trace is not None) for rank in found.ranks] == [(0, True), (1, True)]
    assert found.complete


DEEPSPEED = f'#!/bin/bash\nexec {sys.executable} -m deepspeed.launcher.runner "$@"\n'
