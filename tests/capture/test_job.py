"""Which commands record the same job."""

import pytest

from diagnose.capture.job import of

STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "4"}
PODS = {"WORLD_SIZE": "2", "MASTER_ADDR": "train-master-0", "MASTER_PORT": "23456"}


@pytest.mark.parametrize(
    ("command", "environment"),
    [
        ("python train.py", {}),
        ("torchrun --nproc-per-node 8 train.py", {}),
        ("torchrun --nnodes 1 --master-addr h train.py", {}),
        ("torchrun --standalone --nnodes=1 train.py", {}),
        ("srun torchrun --nnodes 2 train.py", {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}),  # a batch script
        ("python train.py", {**STEP, "SLURM_STEP_NUM_TASKS": "1"}),
        ("python train.py", {**PODS, "WORLD_SIZE": "1"}),
        ("python train.py", {"WORLD_SIZE": "many"}),
    ],
)
def test_a_command_that_records_alone(command: str, environment: dict[str, str]) -> None:
    assert of(command.split(), environment) is None


@pytest.mark.parametrize(
    ("first", "second", "environments"),
    [
        ("torchrun --nnodes 2 --node-rank 0 --master-addr h", "torchrun --nnodes 2 --node-rank 1 --master-addr h", {}),
        ("torchrun --nnodes=1:4 --rdzv-id=a", "torchrun --nnodes=1:4 --rdzv_id a", {}),
        ("accelerate launch --num_machines 2 --main_process_ip h", "x --num_machines 2 --main_process_ip h", {}),
        ("python a.py", "python a.py --local-rank 1", STEP),
        ("torchrun a.py", "torchrun b.py", PODS),
        ("python a.py", "python a.py", {"OMPI_COMM_WORLD_SIZE": "2", "PMIX_NAMESPACE": "prte-1@1"}),
        ("torchrun a.py", "torchrun a.py", {"PET_NNODES": "2", "PET_RDZV_ID": "x"}),
    ],
)
def test_commands_of_one_job_say_the_same(first: str, second: str, environments: dict[str, str]) -> None:
    found = of(first.split(), environments)
    assert found is not None
    assert found == of(second.split(), environments)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (STEP, {**STEP, "SLURM_STEP_ID": "1"}),
        (STEP, {**STEP, "SLURM_RESTART_COUNT": "1"}),
        (PODS, {**PODS, "MASTER_ADDR": "other-master-0"}),
    ],
)
def test_other_jobs_say_something_else(first: dict[str, str], second: dict[str, str]) -> None:
    assert of(["python"], first) != of(["python"], second)
