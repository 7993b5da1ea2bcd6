"""Fixes in the terms of the program: rules advise for trainings in Python, and other programs want other calls."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

import msgspec

from diagnose.contracts.finding import Finding, Fix, RuleName, Safety
from diagnose.facts.run.program import Language, Program

LABEL = "# in Python:"


@dataclass(frozen=True)
class _Alternative:
    """What to do in place of a fix whose code holds `call`. Code that is empty: words alone."""

    call: re.Pattern[str]
    do: str = ""
    """Empty: as the fix says."""
    code: dict[Language, str] | str = ""
    """By language, or for all."""
    safety: Safety | None = None


_CPP, _CUDA = Language.CPP, Language.CUDA

_NATIVE = (
    _Alternative(
        re.compile(r"pin_memory|non_blocking"),
        "Copy asynchronously from page-locked memory.",
        {
            _CPP: "x = x.pin_memory();\nx = x.to(at::kCUDA, /*non_blocking=*/true);",
            _CUDA: "cudaHostAlloc(&x, bytes, cudaHostAllocDefault);  // once, in place of malloc\n"
            "cudaMemcpyAsync(device_x, x, bytes, cudaMemcpyHostToDevice, stream);",
        },
    ),
    _Alternative(
        re.compile(r"torch\.cuda\.Stream\("),
        "Copy on a stream of its own, beside the kernels.",
        {
            _CPP: "auto copying = c10::cuda::getStreamFromPool();  // once\nc10::cuda::CUDAStreamGuard guard(copying);",
            _CUDA: "cudaStreamCreateWithFlags(&copying, cudaStreamNonBlocking);  // once\n"
            "cudaMemcpyAsync(device_x, x, bytes, cudaMemcpyHostToDevice, copying);\n"
            "cudaStreamWaitEvent(computing, copied);",
        },
    ),
    _Alternative(
        re.compile(r"reduce-overhead|make_graphed_callables"),
        "Launch the same work as one CUDA graph, if sizes and addresses stay the same.",
        {
            _CPP: "at::cuda::CUDAGraph graph;\ngraph.capture_begin();  // on a side stream\nforward();\n"
            "graph.capture_end();\ngraph.replay();  // for each batch",
            _CUDA: "cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);\nlaunch_all(stream);\n"
            "cudaStreamEndCapture(stream, &graph);\ncudaGraphInstantiate(&exec, graph, 0);\n"
            "cudaGraphLaunch(exec, stream);  // for each batch",
        },
    ),
    _Alternative(re.compile(r"inference_mode|no_grad"), code={_CPP: "at::NoGradGuard guard;"}),
    _Alternative(
        re.compile(r"elapsed_time"),
        code={
            _CPP: "end.record();  // at::cuda::CUDAEvent; start.elapsed_time(end) some steps later",
            _CUDA: "cudaEventRecord(end, stream);  // cudaEventElapsedTime some steps later",
        },
    ),
    _Alternative(
        re.compile(r"float32_matmul_precision|allow_tf32|fp32_precision"),
        code={
            _CPP: "at::globalContext().setAllowTF32CuBLAS(true);\nat::globalContext().setAllowTF32CuDNN(true);",
            _CUDA: "cublasSetMathMode(handle, CUBLAS_TF32_TENSOR_OP_MATH);",
        },
    ),
    _Alternative(re.compile(r"cudnn\.benchmark"), code={_CPP: "at::globalContext().setBenchmarkCuDNN(true);"}),
    _Alternative(re.compile(r"channels_last"), code={_CPP: "x = x.contiguous(at::MemoryFormat::ChannelsLast);"}),
    _Alternative(
        re.compile(r"\.item\(\)"),
        code={
            _CPP: "total += loss.detach();  // total.item<float>() once every 100 steps",
            _CUDA: "cudaMemcpyAsync(pinned, value, bytes, cudaMemcpyDeviceToHost, stream);  // read it later",
        },
    ),
    _Alternative(
        re.compile(r"batch_size=2 \* batch_size"), "Give each launch more work: larger batches.", {_CPP: "", _CUDA: ""}
    ),
)
"""First match counts. The calls are those of the CUDA runtime, cuBLAS, ATen and c10 of PyTorch 2."""

_INFERENCE = (
    _Alternative(
        re.compile(r"GradScaler|autocast\("),
        "Run the model with weights in 16 bits.",
        "model = model.to(torch.bfloat16)  # torch.float16 before Ampere",
        Safety.PRECISION,
    ),
    _Alternative(re.compile(r"batch_size=2 \* batch_size"), "Put more requests into one batch."),
)


def fitting(program: Program, found: Iterable[tuple[RuleName, Finding]]) -> list[tuple[RuleName, Finding]]:
    """The findings with fixes that such a program can follow; code that stays Python's is labelled so elsewhere."""
    return [(page, replace(one, fixes=tuple(_fitting(program, fix) for fix in one.fixes))) for page, one in found]


def _fitting(program: Program, fix: Fix) -> Fix:
    if program.infers and (other := _alternative(_INFERENCE, fix)) and isinstance(other.code, str):
        safety = other.safety or fix.safety
        fix = msgspec.structs.replace(
            fix, do=other.do or fix.do, before="", after=other.code, safety=safety, trial=None
        )
    if program.language is Language.PYTHON or not _is_python(fix):
        return fix
    other = _alternative(_NATIVE, fix)
    if other is not None and isinstance(other.code, dict) and program.language in other.code:
        code = other.code[program.language]
        return msgspec.structs.replace(fix, do=other.do or fix.do, before="", after=code, trial=None)
    return msgspec.structs.replace(fix, before="", after=f"{LABEL}\n{fix.after}", trial=None)


def _alternative(known: tuple[_Alternative, ...], fix: Fix) -> _Alternative | None:
    return next((one for one in known if one.call.search(fix.after)), None)


def _is_python(fix: Fix) -> bool:
    """Whether a fix's code is Python, rather than a command or nothing."""
    try:
        return bool(ast.parse(fix.after).body)
    except SyntaxError:
        return False
