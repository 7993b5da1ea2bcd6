"""Forms of fixes by what their names are parsed to."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from diagnose.fixes import catalogue as fixes
from diagnose.fixes.setting import Setting
from diagnose.patches.editor import edits_of
from diagnose.patches.errors import CannotEdit
from diagnose.patches.project import Project
from tests.capture.scripts import script
from tests.patches.patching import line_of, manifest


def edited(
    folder: Path,
    text: str,
    setting: Setting,
    optimizer: str = "",
    environment: dict[str, str] | None = None,
    loop: str | None = None,
) -> str:
    """The script with the fix. `optimizer`: its class. Raises CannotEdit."""
    path = script(folder, text)
    known = manifest(
        path,
        optimizer=(optimizer, line_of(text, f"{optimizer}(")) if optimizer else None,
        environment=environment,
        loop=loop,
    )
    edits = edits_of(setting, Project(known, 0, (), folder), None)
    changed = edits[0].code.changed(edits).decode()
    compile(changed, "train.py", "exec")
    return changed


@pytest.mark.parametrize(
    ("setting", "before", "after"),
    [
        (
            fixes.FsdpArgument(),
            "from torch.distributed.fsdp import fully_shard\nfully_shard(net)\nfully_shard(net, mesh=m)\n",
            "from torch.distributed.fsdp import fully_shard\nfully_shard(net, reshard_after_forward=False)\n"
            "fully_shard(net, mesh=m, reshard_after_forward=False)\n",
        ),
        (
            fixes.Determinism(),
            "import torch\ntorch.use_deterministic_algorithms(True, warn_only=True)\n",
            "import torch\ntorch.use_deterministic_algorithms(False, warn_only=True)\n",
        ),
        (
            fixes.CompileArgument("mode", "reduce-overhead"),
            "import torch\nnet = torch.compile(net)\nnet = torch.jit.compile(net)\n",
            'import torch\nnet = torch.compile(net, mode="reduce-overhead")\nnet = torch.jit.compile(net)\n',
        ),
        (
            fixes.NoBarrier(),
            "import torch.distributed as dist\nfor x in y:\n    f(x)\n    dist.barrier()\n",
            "import torch.distributed as dist\nfor x in y:\n    f(x)\n",
        ),
        (
            fixes.Attention(),
            "from transformers import AutoModelForCausalLM as Auto, AutoTokenizer\nAutoTokenizer.from_pretrained()\n"
            "m = Auto.from_pretrained(n)\n",
            "from transformers import AutoModelForCausalLM as Auto, AutoTokenizer\nAutoTokenizer.from_pretrained()\n"
            'm = Auto.from_pretrained(n, attn_implementation="sdpa")\n',
        ),
        (
            fixes.Environment(value=(("OMP_NUM_THREADS", ""), ("CUDA_LAUNCH_BLOCKING", ""))),
            "import os\n# off\nos.environ['OMP_NUM_THREADS'] = '0'\nimport torch\n",
            "import os\n# off\nimport torch\n",
        ),
    ],
    ids=lambda one: one.name if isinstance(one, Setting) else "",
)
def test_a_form_changes_the_script(tmp_path: Path, setting: Setting, before: str, after: str) -> None:
    assert edited(tmp_path, before, setting) == after


def test_foreach_takes_the_place_of_fused(tmp_path: Path) -> None:
    text = "from torch.optim import RAdam, SGD\na = {}\n"
    setting = fixes.OptimizerArgument("foreach", True)
    done = edited(tmp_path, text.format("RAdam(p, foreach=False)"), setting, "RAdam")
    assert done == text.format("RAdam(p, foreach=True)")
    done = edited(tmp_path, text.format("SGD(p, fused=True)"), setting, "SGD")
    assert done == text.format("SGD(p, fused=False, foreach=True)")


@pytest.mark.parametrize(
    ("setting", "text", "why"),
    [
        (
            fixes.Attention(),
            "from transformers import GPT2LMHeadModel\nm = GPT2LMHeadModel(config)\n",
            "no call of from_pretrained() or from_config() loads a model of transformers in your files",
        ),
        (
            fixes.Attention(),
            "from transformers import AutoModel\na = AutoModel.from_pretrained(b)\nc = AutoModel.from_config(d)\n",
            "several calls load a model of transformers in your files",
        ),
        (
            fixes.FsdpArgument(),
            "import torch\n",
            "no call of fully_shard() stands in your files",
        ),
        (
            fixes.Environment(value=(("OMP_NUM_THREADS", ""), ("CUDA_LAUNCH_BLOCKING", ""))),
            "import torch\n",
            "nothing in your files sets OMP_NUM_THREADS or CUDA_LAUNCH_BLOCKING",
        ),
        (fixes.LoaderArgument("batch_size", fixes.Multiple(2)), "import torch\n", "it needs an edit by hand"),
        (fixes.NoSync(), "import torch\n", "it needs an edit by hand"),
        (fixes.CommunicationHook(), "import torch\n", "it needs an edit by hand"),
        (fixes.CollectByHand(), "import gc\n", "it needs an edit by hand"),
    ],
    ids=lambda one: one.name if isinstance(one, Setting) else "",
)
def test_a_form_that_does_not_fit_is_left_to_the_user(tmp_path: Path, setting: Setting, text: str, why: str) -> None:
    with pytest.raises(CannotEdit, match=rf"^{re.escape(why)}$"):
        edited(tmp_path, text, setting)


def test_a_variable_that_the_shell_sets_is_left_to_the_user(tmp_path: Path) -> None:
    setting = fixes.Environment(value=(("OMP_NUM_THREADS", ""),))
    with pytest.raises(CannotEdit, match=r"^OMP_NUM_THREADS is set where the script is started: unset it there$"):
        edited(tmp_path, "import torch\n", setting, environment={"OMP_NUM_THREADS": "1"})


@pytest.mark.parametrize(
    ("loop", "setting", "before", "after"),
    [
        (
            "transformers",
            fixes.Tf32(),
            "from transformers import TrainingArguments\na = TrainingArguments('out')\n",
            "from transformers import TrainingArguments\na = TrainingArguments('out', tf32=True)\n",
        ),
        (
            "lightning",
            fixes.Autocast(),
            "import lightning as L\nt = L.Trainer(max_epochs=2)\n",
            'import lightning as L\nt = L.Trainer(max_epochs=2, precision="bf16-mixed")\n',
        ),
        (
            "lightning",
            fixes.Autocast(),
            "from pytorch_lightning import Trainer\nt = Trainer()\n",
            'from pytorch_lightning import Trainer\nt = Trainer(precision="bf16-mixed")\n',
        ),
        (
            "transformers",
            fixes.Autocast(),
            "from transformers import Seq2SeqTrainingArguments as A\na = A('out')\n",
            "from transformers import Seq2SeqTrainingArguments as A\na = A('out', bf16=True)\n",
        ),
        (
            "accelerate",
            fixes.Autocast(),
            "from accelerate import Accelerator\na = Accelerator()\n",
            'from accelerate import Accelerator\na = Accelerator(mixed_precision="bf16")\n',
        ),
    ],
)
def test_what_a_framework_sets_is_an_argument_of_its_class(
    tmp_path: Path, loop: str, setting: Setting, before: str, after: str
) -> None:
    assert edited(tmp_path, before, setting, loop=loop) == after


def test_what_stands_in_no_file_of_the_user_s_is_left_to_them(tmp_path: Path) -> None:
    for loop, why in (("transformers", r"^no call of transformers.TrainingArguments\(\)"), ("deepspeed", "by hand$")):
        with pytest.raises(CannotEdit, match=why):
            edited(tmp_path, "import torch\n", fixes.Autocast(), loop=loop)
