"""Each form of a fix as a change of a script: the diff applies, the script is what an engineer would have written."""

from __future__ import annotations

import textwrap
from pathlib import Path

import msgspec
import pytest

from diagnose.contracts.finding import RankedFinding
from diagnose.trace.frames import Site
from diagnose.trace.manifest import Manifest, Optimizer, RankManifest
from tests.capture.scripts import script
from tests.patches.patching import apply, finding, line_of, made, manifest, patch, why_not

ENUMERATED = Site("train.py", 1, "main")


def changed(
    folder: Path,
    before: str,
    *trials: str | RankedFinding,
    loader: str = "",
    optimizer: tuple[str, str] = ("", ""),
    ddp: str = "",
    environment: dict[str, str] | None = None,
) -> str:
    """The script after its patch. `loader`, `ddp`: part of the line that makes it; `optimizer`: its class, and that."""
    path, known = prepared(folder, before, loader, optimizer, ddp, environment)
    apply(folder, patch(folder, trials, known))
    text = path.read_text()
    compile(text, "train.py", "exec")
    return text


def prepared(
    folder: Path,
    before: str,
    loader: str = "",
    optimizer: tuple[str, str] = ("", ""),
    ddp: str = "",
    environment: dict[str, str] | None = None,
) -> tuple[Path, Manifest]:
    text = textwrap.dedent(before)
    path = script(folder, text)
    known = manifest(
        path,
        loader=line_of(text, loader) if loader else None,
        optimizer=(optimizer[0], line_of(text, optimizer[1])) if optimizer[0] else None,
        ddp=line_of(text, ddp) if ddp else None,
        environment=environment,
    )
    return path, known


def refused(folder: Path, before: str, trial: str | RankedFinding, **places: object) -> str:
    """Why a fix is not in the patch of a script."""
    _, known = prepared(folder, before, **places)  # type: ignore[arg-type]
    return why_not(patch(folder, [trial], known))


IMPORTS = "import torch\nfrom torch.utils.data import DataLoader\n"
WORKERS = "patch:DataLoader(num_workers=4)"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("DataLoader(data)", "DataLoader(data, num_workers=4)"),
        ("DataLoader(data, num_workers=0)", "DataLoader(data, num_workers=4)"),
        ("DataLoader(data, num_workers = 0 , shuffle=True)", "DataLoader(data, num_workers = 4 , shuffle=True)"),
        ("DataLoader(data, 8, True, None, None, 0)", "DataLoader(data, 8, True, None, None, 4)"),
        ("DataLoader(data, 8,)", "DataLoader(data, 8, num_workers=4,)"),
        ("list(enumerate(DataLoader(data)))", "list(enumerate(DataLoader(data, num_workers=4)))"),
        ("DataLoader(DataLoader)", "DataLoader(DataLoader, num_workers=4)"),
        ("DataLoader(\n    data\n)", "DataLoader(\n    data,\n    num_workers=4\n)"),
        ("DataLoader(\n    data,  # all\n)", "DataLoader(\n    data,  # all\n    num_workers=4,\n)"),
        (
            "DataLoader(\n    data,\n    batch_size=8  # few\n    # more\n)",
            "DataLoader(\n    data,\n    batch_size=8,  # few\n    # more\n    num_workers=4\n)",
        ),
        (
            "DataLoader(data,\n           batch_size=8)",
            "DataLoader(data,\n           batch_size=8,\n           num_workers=4)",
        ),
        (
            "DataLoader(\n\tdata, batch_size=8,  # few\n)",
            "DataLoader(\n\tdata, batch_size=8, num_workers=4,  # few\n)",
        ),
        ("DataLoader(data, num_workers=0, **options)", "DataLoader(data, num_workers=4, **options)"),
    ],
)
def test_an_argument_is_set_in_the_layout_of_the_call(tmp_path: Path, before: str, after: str) -> None:
    text = IMPORTS + f"loader = {before}  # load\nx = 1\n"
    assert changed(tmp_path, text, WORKERS, loader="loader = ") == text.replace(before, after)


@pytest.mark.parametrize(
    ("imports", "name"),
    [
        ("from torch.utils.data import DataLoader as DL", "DL"),
        ("import torch", "torch.utils.data.DataLoader"),
        ("import torch.utils.data as data_", "data_.DataLoader"),
        ("from torch.utils import data as tud", "tud.DataLoader"),
        ("from torch.utils.data.dataloader import DataLoader", "DataLoader"),
        ("if True:\n    from torch.utils.data import DataLoader", "DataLoader"),
    ],
)
def test_a_class_is_known_by_whatever_name_it_was_imported(tmp_path: Path, imports: str, name: str) -> None:
    text = f"{imports}\nloader = {name}(data)\n"
    expected = f"{imports}\nloader = {name}(data, num_workers=4)\n"
    assert changed(tmp_path, text, WORKERS, loader="loader = ") == expected


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("DataLoader(data, num_workers=args.workers)", "num_workers comes from `args.workers` at train.py:3"),
        ("DataLoader(data, num_workers=4 if fast else 0)", "num_workers comes from `4 if fast else 0` at train.py:3"),
        ("DataLoader(data, **options)", "its arguments come from `**options`"),
        ("DataLoader(*everything)", "its arguments come from `*everything`"),
        ("DataLoader(data, num_workers=4)", "num_workers is 4 at train.py:3 already"),
        ("DataLoader(data), DataLoader(other)", "several calls of torch's DataLoader() stand at train.py:3"),
        (
            "make(data)",
            "no call of torch's DataLoader() stands at train.py:3: it is made by a library, by another name or by"
            " functools.partial",
        ),
    ],
)
def test_a_value_that_comes_from_elsewhere_is_left_to_the_user(tmp_path: Path, call: str, why: str) -> None:
    assert refused(tmp_path, f"{IMPORTS}loader = {call}\n", WORKERS, loader="loader = ") == why


def test_a_class_of_that_name_that_is_not_torch_s_is_left_alone(tmp_path: Path) -> None:
    text = "from own.data import DataLoader\nloader = DataLoader(data)\n"
    assert refused(tmp_path, text, WORKERS, loader="loader = ").startswith("no call of torch's DataLoader() stands at")


def test_without_a_recorded_line_the_only_call_is_meant(tmp_path: Path) -> None:
    text = f"{IMPORTS}loader = DataLoader(data)\n"
    assert changed(tmp_path, text, WORKERS) == f"{IMPORTS}loader = DataLoader(data, num_workers=4)\n"
    why = refused(tmp_path, f"{text}other = DataLoader(data)\n", WORKERS)
    assert why == "DataLoader() is called at train.py:3, train.py:4, and the recording does not say which it is"
    assert refused(tmp_path, IMPORTS, WORKERS) == "no call of torch's DataLoader() stands in your files"


def test_what_belongs_to_workers_needs_some(tmp_path: Path) -> None:
    persistent = "patch:DataLoader(persistent_workers=True)"
    text = f"{IMPORTS}loader = DataLoader(data, num_workers=2)\n"
    assert changed(tmp_path, text, persistent, loader="loader = ") == text.replace("=2", "=2, persistent_workers=True")
    text = f"{IMPORTS}loader = DataLoader(data, num_workers=args.workers)\n"
    done = changed(tmp_path, text, persistent, "patch:DataLoader(prefetch_factor=8)", loader="loader = ")
    added = "s, persistent_workers=args.workers > 0, prefetch_factor=8 if args.workers > 0 else None)"
    assert done == text.replace("s)", added)
    for bad in ("DataLoader(data)", "DataLoader(data, num_workers=0)"):
        why = refused(tmp_path, f"{IMPORTS}loader = {bad}\n", persistent, loader="loader = ")
        assert why == "the DataLoader at train.py:3 has no workers"
    why = refused(tmp_path, f"{IMPORTS}loader = DataLoader(data, num_workers=f())\n", persistent, loader="loader = ")
    assert why == "whether there are workers is decided by `f()` at train.py:3"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("optim.AdamW(model.parameters(), lr=1e-3)", "optim.AdamW(model.parameters(), lr=1e-3, fused=True)"),
        ("optim.AdamW(model.parameters(), foreach=True)", "optim.AdamW(model.parameters(), foreach=False, fused=True)"),
        ("optim.AdamW(model.parameters(), fused=False)", "optim.AdamW(model.parameters(), fused=True)"),
        (
            "optim.AdamW([{'params': a}, {'params': b}], foreach=None)",
            "optim.AdamW([{'params': a}, {'params': b}], foreach=None, fused=True)",
        ),
    ],
)
def test_an_optimizer_is_fused(tmp_path: Path, before: str, after: str) -> None:
    text = f"from torch import nn, optim\noptimizer = {before}\n"
    fused = changed(tmp_path, text, "patch:torch.optim(fused=True)", optimizer=("AdamW", "optimizer ="))
    assert fused == text.replace(before, after)


@pytest.mark.parametrize(
    ("optimizer", "why"),
    [
        ("SGD(p, differentiable=True)", "differentiable is True at train.py:2, which excludes fused"),
        ("SGD(p, foreach=many)", "foreach is many at train.py:2, which excludes fused"),
        ("SGD(p, fused=on_gpu)", "fused comes from `on_gpu` at train.py:2"),
    ],
)
def test_an_optimizer_that_cannot_be_fused_is_left(tmp_path: Path, optimizer: str, why: str) -> None:
    text = f"import torch\noptimizer = torch.optim.{optimizer}\n"
    assert refused(tmp_path, text, "patch:torch.optim(fused=True)", optimizer=("SGD", "optimizer =")) == why


def test_all_optimizers_that_can_be_fused_are_where_the_recording_saw_them(tmp_path: Path) -> None:
    text = "import torch\none = torch.optim.SGD(p)\ntwo = torch.optim.Adam(q)\nthree = torch.optim.LBFGS(r)\n"
    path = script(tmp_path, text)
    seen = [("SGD", 2), ("Adam", 3), ("LBFGS", 4)]
    optimizers = tuple(Optimizer(name=name, made=made(path, line)) for name, line in seen)
    known = Manifest(command=("python", "train.py"), ranks=(RankManifest(rank=0, optimizers=optimizers),))
    done = patch(tmp_path, ["patch:torch.optim(fused=True)"], known)
    assert done.fixes[0].places == ("train.py:2: SGD(fused=True)", "train.py:3: Adam(fused=True)")
    apply(tmp_path, done)
    assert path.read_text() == text.replace("SGD(p", "SGD(p, fused=True").replace("Adam(q", "Adam(q, fused=True")


def test_every_zero_grad_that_writes_zeros_sets_none(tmp_path: Path) -> None:
    text = "a.zero_grad(set_to_none=False)\nb.zero_grad(False)\nc.zero_grad()\nd.zero_grad(set_to_none=True)\n"
    assert changed(tmp_path, text, "patch:zero_grad(set_to_none=True)") == (
        "a.zero_grad(set_to_none=True)\nb.zero_grad(True)\nc.zero_grad()\nd.zero_grad(set_to_none=True)\n"
    )
    why = refused(tmp_path, "a.zero_grad()\n", "patch:zero_grad(set_to_none=True)")
    assert why == "no call of zero_grad() in your files gives set_to_none"


def test_anomaly_detection_is_switched_off(tmp_path: Path) -> None:
    trial = "patch:set_detect_anomaly(mode=False)"
    text = "import torch\nfrom torch import autograd\ntorch.autograd.set_detect_anomaly(True)\n"
    text += "with autograd.set_detect_anomaly(mode=True):\n    pass\n"
    assert changed(tmp_path, text, trial) == text.replace("True", "False")
    why = refused(tmp_path, "import torch\ntorch.autograd.set_detect_anomaly(args.debug)\n", trial)
    assert why == "mode comes from `args.debug` at train.py:2"


def test_torch_compile_gets_an_argument(tmp_path: Path) -> None:
    text = "import torch\nmodel = torch.compile(model)\n"
    expected = text.replace("(model)", "(model, dynamic=True)")
    assert changed(tmp_path, text, "patch:torch.compile(dynamic=True)") == expected


def test_options_of_ddp_are_set_by_name_or_position(tmp_path: Path) -> None:
    text = "from torch.nn.parallel import DistributedDataParallel as DDP\nnet = DDP(net, [0], None, 0, True)\n"
    trials = [f"wrap:DistributedDataParallel({one})" for one in ("broadcast_buffers=False", "bucket_cap_mb=25")]
    assert changed(tmp_path, text, *trials, ddp="net = ") == text.replace("0, True", "0, False, bucket_cap_mb=25")


def test_an_argument_that_is_newer_than_the_torch_that_ran_is_not_given(tmp_path: Path) -> None:
    text = "from torch.nn.parallel import DistributedDataParallel\nnet = DistributedDataParallel(net)\n"
    path, known = prepared(tmp_path, text, ddp="net = ")
    trial = "wrap:DistributedDataParallel(batched_grad_copy=True)"
    for versions, has in (
        ({}, "the recording does not say which ran"),
        ({"torch": "2.4.1+cu121"}, "PyTorch 2.4.1+cu121 was recorded"),
    ):
        done = patch(tmp_path, [trial], msgspec.structs.replace(known, versions=versions))
        assert why_not(done) == f"batched_grad_copy takes PyTorch 2.13, and {has}"
    apply(tmp_path, patch(tmp_path, [trial], msgspec.structs.replace(known, versions={"torch": "2.13.0"})))
    assert path.read_text() == text.replace("(net)", "(net, batched_grad_copy=True)")


SYNCHRONISED = """
import torch


def main():
    torch.cuda.synchronize()
    for batch in loader:
        # time only what is done
        torch.cuda.synchronize()  # wait
        step(batch)
        if slow:
            torch.cuda.synchronize()


def other():
    torch.cuda.synchronize()
"""


def test_a_call_in_the_loop_of_the_function_that_waits_is_left_out(tmp_path: Path) -> None:
    """The comment above it stays, and a block that has nothing left passes."""
    trial = finding("patch:torch.cuda.synchronize", site=Site("train.py", 5, "main"))
    assert changed(tmp_path, SYNCHRONISED, trial) == SYNCHRONISED.replace(
        "        torch.cuda.synchronize()  # wait\n", ""
    ).replace("            torch.cuda.synchronize()\n\n\ndef", "            pass\n\n\ndef")
    assert refused(tmp_path, SYNCHRONISED, "patch:torch.cuda.synchronize") == (
        "torch.cuda.synchronize() is called at train.py:6, train.py:9, train.py:12, train.py:16, and the recording does"
        " not say which it is"
    )
    elsewhere = finding("patch:torch.cuda.synchronize", site=Site("train.py", 9, "step"))
    assert refused(tmp_path, SYNCHRONISED, elsewhere) == (
        "no call of torch.cuda.synchronize() stands in step() of train.py"
    )


def test_comments_of_a_call_that_was_last_stay(tmp_path: Path) -> None:
    text = "from torch.cuda import empty_cache\nfor x in y:\n    step(x)\n    # tidy\n    empty_cache()\n"
    assert changed(tmp_path, text, "patch:torch.cuda.empty_cache()") == text.replace("    empty_cache()\n", "")


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("if x: torch.cuda.synchronize()", "what stands at train.py:2 is no statement with a line of its own"),
        ("torch.cuda.synchronize(); x = 1", "what stands at train.py:2 is no statement with a line of its own"),
        ("x = torch.cuda.synchronize()", "what the call at train.py:2 returns is used"),
        ("times.append(torch.cuda.synchronize())", "what the call at train.py:2 returns is used"),
    ],
)
def test_a_call_that_is_no_line_of_its_own_stays(tmp_path: Path, line: str, why: str) -> None:
    assert refused(tmp_path, f"import torch\n{line}\n", "patch:torch.cuda.synchronize") == why


@pytest.mark.parametrize(
    "head", ["for step, x in enumerate(data):", "for step in range(9):", "for step, (x, y) in enumerate(d):"]
)
def test_a_collection_is_made_seldom_where_the_loop_counts(tmp_path: Path, head: str) -> None:
    text = f"import gc\n{head}\n    train()\n\n    # free\n    gc.collect()  # now\n    log()\n"
    after = text.replace("    gc.collect()", "    if step % 500 == 0:\n        gc.collect()")
    assert changed(tmp_path, text, "patch:gc.collect(every=500)") == after
    why = refused(tmp_path, after, "patch:gc.collect(every=500)")
    assert why == f"it is made if step % 500 == 0 at train.py:{line_of(after, 'gc.collect')} already"


def test_a_collection_in_a_loop_that_counts_nothing_stays(tmp_path: Path) -> None:
    for head in ("for x in data:", "while True:", "for a, b in zip(c, d):"):
        text = f"import gc\n{head}\n    gc.collect()\n"
        why = refused(tmp_path, text, "patch:gc.collect(every=500)")
        assert why == "the loop around train.py:3 does not count its steps"
    assert refused(tmp_path, "x = 1\n", "patch:gc.collect(every=500)") == (
        "no call of gc.collect() stands in your files"
    )


def test_a_setting_is_changed_where_it_is_made(tmp_path: Path) -> None:
    text = "import torch\ntorch.backends.cudnn.benchmark = False  # why\ntorch.set_num_threads(8)\n"
    done = changed(
        tmp_path, text, "patch:torch.backends.cudnn(benchmark=True)", "patch:torch.set_num_threads(threads=2)"
    )
    assert done == text.replace("False", "True").replace("8", "2")
    why = refused(
        tmp_path,
        "from torch.backends import cudnn\ncudnn.benchmark = args.fast\n",
        "patch:torch.backends.cudnn(benchmark=True)",
    )
    assert why == "the value comes from `args.fast` at train.py:2"


def test_a_setting_that_is_made_nowhere_comes_after_the_imports(tmp_path: Path) -> None:
    text = '"""Train."""\n\nimport os\n\nimport torch\nfrom torch import nn\n\nLR = 1\n'
    trials = ["patch:torch.backends.cudnn(benchmark=True)", "patch:torch.set_num_threads(threads=2)"]
    assert changed(tmp_path, text, *trials) == text.replace(
        "nn\n", "nn\n\ntorch.backends.cudnn.benchmark = True\ntorch.set_num_threads(2)\n"
    )


def test_torch_is_imported_where_it_is_not(tmp_path: Path) -> None:
    text = "from torch import nn\n\n\ndef main():\n    import torch\n"
    assert changed(tmp_path, text, "patch:torch.set_num_threads(threads=2)") == text.replace(
        "nn\n", "nn\n\nimport torch\ntorch.set_num_threads(2)\n"
    )


CONF = "env:PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
SET = 'os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")\n'


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("import torch\n", f"import os\n{SET}import torch\n"),
        ("#!/usr/bin/python\n# Train.\nimport torch\n", f"#!/usr/bin/python\n# Train.\nimport os\n{SET}import torch\n"),
        (
            '"""Doc."""\nfrom __future__ import annotations\nimport os\n\n# why\nimport numpy\nimport torch\n',
            f'"""Doc."""\nfrom __future__ import annotations\nimport os\n\n{SET}# why\nimport numpy\nimport torch\n',
        ),
        (
            "import sys\nif x:\n    import torch\nimport os\n",
            f"import sys\nimport os\n{SET}if x:\n    import torch\nimport os\n",
        ),
        ("from .own import f\nimport torch\n", f"import os\n{SET}from .own import f\nimport torch\n"),
        (
            "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = 'x'  # old\nimport torch\n",
            "import os\nos.environ['PYTORCH_CUDA_ALLOC_CONF'] = \"expandable_segments:True\"  # old\nimport torch\n",
        ),
    ],
)
def test_a_variable_is_set_before_anything_can_import_torch(tmp_path: Path, before: str, after: str) -> None:
    assert changed(tmp_path, before, CONF) == after


def test_two_variables_import_os_once(tmp_path: Path) -> None:
    done = changed(tmp_path, "import torch\n", CONF, "env:OMP_NUM_THREADS=2")
    assert done == f'import os\n{SET}os.environ.setdefault("OMP_NUM_THREADS", "2")\nimport torch\n'


def test_variables_that_a_line_of_python_cannot_set_are_left_to_the_user(tmp_path: Path) -> None:
    assert refused(tmp_path, "import torch\n", "env:MALLOC_TRIM_THRESHOLD_=2147483647") == (
        "it is read when the process starts, before any Python runs: put it before the command"
    )
    given = {"CUDA_LAUNCH_BLOCKING": "1"}
    assert refused(tmp_path, "import torch\n", "env:CUDA_LAUNCH_BLOCKING=0", environment=given) == (
        "CUDA_LAUNCH_BLOCKING is set where the script is started: unset it there"
    )
    assert refused(tmp_path, "import sys\n", CONF) == "train.py has no import before which to set it"


def test_tf32_is_allowed_by_the_call_for_it(tmp_path: Path) -> None:
    trial = "env:TORCH_ALLOW_TF32_CUBLAS_OVERRIDE=1"
    assert changed(tmp_path, "import torch\n", trial) == (
        'import torch\n\ntorch.set_float32_matmul_precision("high")\n'
    )
    text = "import torch\ntorch.set_float32_matmul_precision('highest')\n"
    assert changed(tmp_path, text, trial) == text.replace("'highest'", '"high"')


MODEL = """
import torch
from torch import nn


def main():
    model = nn.Linear(2, 2)
    # all of it
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in data:
        optimizer.zero_grad()
        # forward
        given = model(x)

        loss = nn.functional.cross_entropy(given, y)  # mean
        print(1)
        loss.backward()
        optimizer.step()
"""
SGD = ("SGD", "optimizer = ")


def test_the_model_is_compiled_in_place_after_its_optimizer_is_made(tmp_path: Path) -> None:
    line = "lr=0.1)\n"
    trials = {
        "wrap:torch.compile": "compile()",
        "wrap:torch.compile(mode=max-autotune)": 'compile(mode="max-autotune")',
    }
    trials["wrap:channels_last"] = "to(memory_format=torch.channels_last)"
    for trial, call in trials.items():
        assert changed(tmp_path, MODEL, trial, optimizer=SGD) == MODEL.replace(line, f"{line}    model.{call}\n")


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("self.opt = torch.optim.SGD(self.net.parameters(), lr=1)", "self.net"),
        ("opt = torch.optim.SGD(filter(lambda p: p.requires_grad, net.parameters()), lr=1)", "net"),
        ("opt = torch.optim.SGD([p for n, p in net.named_parameters()], lr=1)", "net"),
        ("opt = torch.optim.SGD([{'params': net.parameters()}], lr=1)", "net"),
    ],
)
def test_the_model_is_what_its_optimizer_updates(tmp_path: Path, line: str, model: str) -> None:
    text = f"import torch\nif True:\n    {line}\n    run()\n"
    done = changed(tmp_path, text, "wrap:torch.compile", optimizer=("SGD", "torch.optim.SGD"))
    assert done == f"import torch\nif True:\n    {line}\n    {model}.compile()\n    run()\n"


def test_a_function_that_returns_its_optimizer_compiles_before(tmp_path: Path) -> None:
    text = "import torch\ndef made(net):\n    return torch.optim.SGD(net.parameters())\n"
    done = changed(tmp_path, text, "wrap:torch.compile", optimizer=("SGD", "return"))
    assert done == text.replace("    return", "    net.compile()\n    return")


@pytest.mark.parametrize(
    "arguments",
    [
        "groups",
        "self.parameters()",
        "chain(a.parameters(), b.parameters())",
        "nets[0].parameters()",
        "get().parameters()",
    ],
)
def test_a_model_without_a_name_is_left_to_the_user(tmp_path: Path, arguments: str) -> None:
    text = f"import torch\nopt = torch.optim.SGD({arguments}, lr=1)\n"
    assert refused(tmp_path, text, "wrap:torch.compile", optimizer=("SGD", "opt = ")) == (
        "the optimizer at train.py:2 does not name its model, as in model.parameters()"
    )


def test_forward_pass_and_loss_run_under_autocast(tmp_path: Path) -> None:
    """What stands between the loss and backward() stays outside."""
    assert changed(tmp_path, MODEL, "wrap:torch.autocast", optimizer=SGD) == MODEL.replace(
        """        # forward
        given = model(x)

        loss = nn.functional.cross_entropy(given, y)  # mean
""",
        """        # forward
        with torch.autocast("cpu", dtype=torch.bfloat16):
            given = model(x)

            loss = nn.functional.cross_entropy(given, y)  # mean
""",
    )


def test_a_text_of_several_lines_is_not_indented_with_its_statement(tmp_path: Path) -> None:
    text = MODEL.replace("given = model(x)", 'given = model(x, """a\n  b""")')
    done = changed(tmp_path, text, "wrap:torch.autocast", optimizer=SGD)
    assert 'dtype=torch.bfloat16):\n            given = model(x, """a\n  b""")\n' in done


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            MODEL.replace("model(x)", "net(x)"),
            "no assignments from model(...) to the loss stand right before train.py:17",
        ),
        (MODEL.replace("given = model(x)\n", "given = model(x)\n        if x: y = 1\n"), "no assignments from"),
        (MODEL.replace("loss.backward()", "loss.mean()"), "no call of backward() stands in your files"),
        (MODEL + "        other.backward()\n", "several calls of backward() stand in your files"),
    ],
)
def test_another_form_of_step_is_left_to_the_user(tmp_path: Path, text: str, why: str) -> None:
    assert refused(tmp_path, text, "wrap:torch.autocast", optimizer=SGD).startswith(why)


def test_all_at_once_are_one_diff(tmp_path: Path) -> None:
    text = MODEL.replace("    for x, y in data:", "    data = DataLoader(\n        all_,\n    )\n    for x, y in data:")
    text = text.replace("import torch\n", "import torch\nfrom torch.utils.data import DataLoader\n", 1)
    trials = [
        *("patch:DataLoader(num_workers=4)", "patch:DataLoader(pin_memory=True)", "patch:torch.optim(fused=True)"),
        *("wrap:torch.compile", "wrap:torch.autocast", "patch:torch.set_num_threads(threads=2)", CONF),
    ]
    done = changed(tmp_path, text, *trials, optimizer=SGD, loader="DataLoader(\n"[:-1])
    assert (
        done
        == f"""
import os
{SET}import torch
from torch.utils.data import DataLoader
from torch import nn

torch.set_num_threads(2)


def main():
    model = nn.Linear(2, 2)
    # all of it
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, fused=True)
    model.compile()
    data = DataLoader(
        all_,
        num_workers=4,
        pin_memory=True,
    )
    for x, y in data:
        optimizer.zero_grad()
        # forward
        with torch.autocast("cpu", dtype=torch.bfloat16):
            given = model(x)

            loss = nn.functional.cross_entropy(given, y)  # mean
        print(1)
        loss.backward()
        optimizer.step()
"""
    )


def test_a_fix_that_changes_what_another_changes_is_not_made(tmp_path: Path) -> None:
    path, known = prepared(tmp_path, f"{IMPORTS}loader = DataLoader(data)\n", loader="loader = ")
    done = patch(tmp_path, [WORKERS, "patch:DataLoader(num_workers=8)", WORKERS], known)
    assert [one.why for one in done.by_hand] == ["fix 1 changes the same place"] * 2
    apply(tmp_path, done)
    assert path.read_text() == f"{IMPORTS}loader = DataLoader(data, num_workers=4)\n"


def test_a_fix_of_no_known_form_is_text(tmp_path: Path) -> None:
    for trial in ("wrap:prefetch", "patch:torch.save(in_background)", None):
        assert refused(tmp_path, IMPORTS, finding(trial)) == "it needs an edit by hand"
