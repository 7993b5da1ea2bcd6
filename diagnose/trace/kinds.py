"""What a kernel, op, API call, annotation or frame name *is*: the only place with name patterns. Linear in any text."""

import re
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar

from diagnose.trace.enums import Direction, HostMemory

_K = TypeVar("_K", bound="_Kind")


class _Kind(str, Enum):
    """A member is a kind and the pattern of its names. They are tried in order; the last takes the rest."""

    pattern: re.Pattern[str]

    def __new__(cls, value: str, pattern: str) -> Any:
        member = str.__new__(cls, value)
        member._value_, member.pattern = value, re.compile(pattern)
        return member


def _kind_of(kinds: type[_K], name: str) -> _K:
    return next(kind for kind in kinds if kind.pattern.search(name))


# Names of cuBLAS, cuDNN, CUTLASS, ATen, Triton, NCCL, ROCm's libraries; the first kind that matches counts.
class KernelKind(_Kind):
    """What device work computes, as far as its name tells. MEMORY is a copy or fill by the driver, COPY by a kernel."""

    MEMORY = "memory", r"^(Memcpy|Memset)\b|^MEMORY_COPY_|__amd_rocclr_(copy|fill)Buffer|^(copy|fill)Buffer"
    COMMUNICATION = (
        "communication",
        r"^(nccl|rccl|mscclpp?|hccl)(_|[A-Z])|deep_?ep|(inter|intra)node(_ll)?::|(latency|notify)_(dispatch|combine)"
        + r"|get_dispatch_layout|hybrid_ep|nvshmem|userbuffers|cross_device_reduce|_shot_all_?reduce|multimem_|lamport",
    )
    TRITON_TEMPLATE = "triton_template", r"^triton_(tem|mm|bmm|flex)_"
    TRITON_POINTWISE = "triton_pointwise", r"^triton_poi_"
    TRITON_REDUCTION = "triton_reduction", r"^triton_(red|per|spl)_"
    TRITON_FOREACH = "triton_foreach", r"^triton_for_"
    TRITON_OTHER = "triton_other", r"^triton_"
    EMBEDDING = (
        "embedding",
        r"split_embedding|EmbeddingBag|embedding_(bag|backward|dense|codegen)|bounds_check_indices|linearize_|lxu_cache"
        + r"|compute_grad_weight|krn_partial|sum_and_scatter|fbgemm_gpu::permute",
    )
    OPTIMIZER = "optimizer", r"(?i)Fused(Ada|Opt|Sgd)|Adam(W|(Math)?Functor)|LAMB(Stage|_cuda)|SGDFunctor|NovoGrad|muon"
    FOREACH = "foreach", r"multi_tensor_apply_kernel|multi_tensor_(l2norm|scale|axpby)"
    ATTENTION = (
        "attention",
        r"flash_(fwd|bwd)|flash::|Flash(Attn|Attention)|[Ff]mha|FMHA|Attention(Backward)?Kernel|mem_eff|native_sdpa|sage_fwd"
        + r"|attn_(fwd|bwd)|bwd_kernel_(dk_dv|dq|fuse)|(paged|unified)_attention|flex_attention|attn_softmax",
    )
    SOFTMAX_LOSS = "softmax_loss", r"(?i)softmax|cross_entropy|nll_loss|NLLCriterion|_ce_fwd"
    NORM = (
        "norm",
        r"(?i)(layer|rms|batch|group|instance)_?norm(?!alize)|RowwiseMoments|GammaBeta|ln_(fwd|bwd)_|fused_ln\b|cudnn::bn_"
        + r"|ComputeInternalGradients|Compute(Backward)?FusedParams|Welford",
    )
    CONV = (
        "conv",
        r"(?i)conv(?!er)|implicit_?gemm|[sh]cudnn|winograd|[fdw]prop|[dw]grad|igemm_(fwd|bwd|wrw)|depthwise|fft[12]d_"
        + r"|im2(d2)?col|col2im|computeOffsetsKernel|(cask|cutlass)_cudnn|^flip_filter|^pointwise_mult_and_sum_complex",
    )
    LAYOUT = "layout", r"(?i)nchwToN|nhwcToN|(?<!cast_)transpose_(\d|[NC]\w+2|kernel|readW)|TransformGeneric|SubTensor"
    ROPE = "rope", r"(?i)rotary|(^|_)rope"
    GEMM = (
        "gemm",
        r"(?i)(?<!fb)gemm|nvjet|^Cijk_|Custom_Cijk|Tensile|wvSplitK|splitKreduce|gemv|cublas|_matmul|matmul_|^bmm_|xmma_"
        + r"|cutlass::(Kernel2?|device_kernel)|epilogue::impl::globalKernel",
    )
    INDEX_SORT = (
        "index_sort",
        r"(?i)radixsort|Device(Scan|Select|Reduce|Compact)|rocprim|thrust|sort|topk|index_?(select|put|add|copy|elementwise)"
        + r"|indexing_|indexFunc|gather|scatter|nonzero|masked_|unique|bitonic",
    )
    CAST_QUANT = "cast_quant", r"(?i)quant|per_token_cast|cast_(t|back|and)|to_fp8|hfp8|FP8row|float16\w*_copy|_cast_"
    COPY = "copy", r"CatArray|chunk_cat|split_with_sizes|copy_(kernel_cuda|device)|_copy_|reshape_and_cache|store_kv"
    FILL = "fill", r"FillFunctor|fill_kernel"
    RNG_DROPOUT = "rng_dropout", r"(?i)dropout|distribution_|philox|bernoulli|curand"
    POOL_INTERP = "pool_interp", r"(?i)_pool|pool_|upsample|interpolat|grid_sample|roi_align|nms"
    RNN = "rnn", r"(?i)lstm|gru_|rnn"
    MOE_ROUTE = "moe_route", r"(?i)moe|permute|routing|expert"
    REDUCTION = "reduction", r"reduce_kernel|ReduceOp|reduce_1Block|dot_kernel|reduce_segments|reduce_fused"
    ELEMENTWISE = "elementwise", r"(?i)elementwise|CUDAFunctor|silu|(g|sw|ge)[ei]?g?lu|act_and_mul|(Un|Bin)aryFunctor"
    OTHER = "other", ""


# Kineto CuptiCbidRegistry.cpp and the API references, without the leading cuda, cu, hip or the like.
class ApiKind(_Kind):
    """What a runtime or driver call does. HOST_MALLOC also registers; stream-ordered allocation never blocks: OTHER."""

    KERNEL_LAUNCH = "kernel_launch", r"^(Ext|Hcc|Drv)?(Module)?Launch(Kernel|Cooperative|Multi|Grid|ByPtr|\Z)"
    GRAPH_LAUNCH = "graph_launch", r"^GraphLaunch\Z"
    COPY = "copy", r"^(Drv)?Memcpy"
    MEMSET = "memset", r"^(Drv)?Memset"
    STREAM_SYNC = "stream_sync", r"^StreamSynchronize\Z"
    DEVICE_SYNC = "device_sync", r"^(Device|Ctx|Thread)Synchronize\Z"
    EVENT_SYNC = "event_sync", r"^EventSynchronize\Z"
    EVENT_RECORD = "event_record", r"^EventRecord(WithFlags)?\Z"
    EVENT_QUERY = "event_query", r"^EventQuery\Z"
    STREAM_WAIT = "stream_wait", r"^StreamWaitEvent\Z"
    MALLOC = "malloc", r"^(Malloc(3D|Pitch|Managed|(3D|Mipmapped)?Array)?|MemAlloc(Pitch|Managed)?|Mem(Create|Map))\Z"
    FREE = "free", r"^(Free((Mipmapped)?Array)?|Mem(Free|Unmap|Release))\Z"
    HOST_MALLOC = "host_malloc", r"^(Mem)?(Host(Alloc|Malloc|Register)|(Alloc|Malloc)Host)\Z"
    HOST_FREE = "host_free", r"^(Mem)?(Host(Free|Unregister)|FreeHost)\Z"
    OTHER = "other", ""


class Activity(_Kind):
    """What a host span is to a training loop, by the name that torch 2.13, diagnose.capture or a frame gives it."""

    STEP = "step", r"^ProfilerStep#[0-9]{1,18}\Z"
    LOADER = "loader", r"^enumerate\(DataLoader\)#"
    OPTIMIZER_STEP = "optimizer_step", r"^Optimizer\.step#"
    ZERO_GRAD = "zero_grad", r"^Optimizer\.zero_grad#"
    COMPILE = "compile", r" \(dynamo_timed\)\Z|^_compile\.compile_inner\Z|/convert_frame\.py\(\d+\): _compile\Z"
    GARBAGE_COLLECTION = "garbage_collection", r"^(Python GC|<built-in function collect>)\Z"
    COLLECTIVE = "collective", r"^(record_param_comms\Z|(nccl|gloo|mpi):|_?c10d(_functional)?::|symm_mem::|nccl[A-Z])"
    CHECKPOINT = "checkpoint", r"\btorch/(serialization|\w+/checkpoint/\w+)\.py\(\d+\): (async_)?save\Z|^torch\.save "
    TEXT = "text", r"^Tensor\.__repr__ |\btorch/_tensor_str\.py\(\d+\): _str\Z"
    OTHER = "other", ""


_TEXT_FILES = r"(_io\.)?(TextIOWrapper|Buffered\w+|FileIO|BytesIO|StringIO)"


class CalleeKind(_Kind):
    """What a function of a library does, by the frame that a recording with stacks has of it."""

    GARBAGE_COLLECTION = "garbage_collection", r"^<built-in function collect>"
    READ = "read", r"^<built-in method (item|tolist|numpy|cpu|__(bool|float|int|index)__) of (Tensor|Parameter) object"
    CONVERT = "convert", r"^<built-in method (tensor|as_tensor|asarray) of type object"
    SAVE = (
        "save",
        r"(?i)(^|/)(torch/serialization|pickle|numpy/[\w/]*(npyio|_npyio_impl)|joblib/[\w/]*|safetensors/[\w/]*|h5py/[\w/]*)"
        r"(\.py)?\(\d+\): _?(save|dump|write|create_dataset)|: to_(csv|parquet|pickle|json|feather)\Z"
        r"|^<built-in function (f?sync|fdatasync|dump|savez?\w*|imwrite)>",
    )
    LOG = (
        "log",
        r"(^|/)(torch/utils/tensorboard|tensorboard\w*|wandb|mlflow|comet_ml|neptune|aim|clearml|tqdm|rich|matplotlib|seaborn"
        r"|plotly|logging|loguru|csv|json|pprint|traceback)(\.py|/)|^<built-in function print>"
        rf"|^<built-in method (write|flush|writelines) of {_TEXT_FILES} object",
    )
    METRIC = (
        "metric",
        r"(^|/)(torchmetrics|torcheval|sklearn/metrics|evaluate|sacrebleu|rouge_score|pycocotools|jiwer|seqeval|nltk)(\.py|/)",
    )
    LOAD = (
        "load",
        r"(?i)(^|/)(torch/serialization|numpy/[\w/]*(npyio|_npyio_impl)|pickle|joblib/[\w/]*|soundfile|librosa/[\w/]*"
        r"|imageio/[\w/]*|PIL/Image|pandas/io/[\w/]*|h5py/[\w/]*|zipfile|tarfile|gzip|lzma|pathlib)(/__init__)?(\.py)?"
        r"\(\d+\): |^<built-in function (load|open|imread|loads|frombuffer|fromfile)>"
        rf"|^<built-in method read\w* of {_TEXT_FILES}",
    )
    WAIT = (
        "wait",
        r"(^|/)(requests|urllib\d?|http|socket|ssl|subprocess|threading|queue|selectors|asyncio|multiprocessing|concurrent"
        r"|grpc|redis|boto\w*)(\.py|/)|^<built-in function (sleep|select|waitpid|poll)>"
        r"|^<built-in method (acquire|recv\w*|send\w*|wait|poll|connect|get|put) of ",
    )
    COPY = "copy", r"(^|/)copy\.py\(\d+\): (deep)?copy\Z"
    NUMERIC = (
        "numeric",
        r"(^|/)((numpy|scipy|pandas|polars|sklearn|skimage|cv2|PIL|librosa|numba|networkx|albumentations)(\.py|/)"
        r"|torchvision/(transforms|io)/)"
        r"|^<built-in method \w+ of (numpy|cv2|scipy|pandas)\.|^<built-in function (c_einsum|\w*resize|warp\w+)>",
    )
    TORCH = (
        "torch",
        r"^nn\.Module: |(^|/)(torch(vision|audio)?|triton|functorch)(\.py|/)"
        r"|^<built-in (function|method) \w+ of (torch\.\S+|type|Tensor|Parameter|\w*Function|PyCapsule) object"
        r"|^<built-in function (linear|_?\w*conv\w*|gelu|softplus|scaled_dot_product_attention|avg_pool\w*|one_hot"
        r"|next|iter)>",
    )
    LANGUAGE = (
        "language",
        r"^<built-in function (len|isinstance|issubclass|getattr|setattr|hasattr|id|hash|iter|next|abs|min|max|sum|any"
        r"|all|ord|chr|round|divmod|pow|repr|sorted|callable|perf_counter\w*|time|monotonic\w*|exec|eval)>"
        r"|^<built-in method \w+ of (str|bytes|bytearray|list|tuple|dict|set|frozenset|int|float|complex"
        r"|dict_\w+|(collections\.)?(deque|OrderedDict|defaultdict)|(_?random\.)?Random|method\w*|generator|module|range)"
        r" object",
    )
    OTHER = "other", ""


_EXAMINED = 2000  # Characters of a kernel's name that are looked at: bounds the time of every pattern.
# SIMT includes cuDNN's direct convolutions. Helpers run beside a matmul and multiply nothing.
MATMULS = (KernelKind.GEMM, KernelKind.CONV, KernelKind.ATTENTION, KernelKind.TRITON_TEMPLATE)
_HELPER = re.compile(r"splitKreduce|ReduceSplitK|globalKernel|OffsetsKernel|dot_do_o|convert_dq|_combine")
_SIMT = re.compile(
    r"_ffma_|simt|(maxwell|pascal|volta|turing|ampere|hopper)_[sdhczg]c?gemm|_scudnn|magma_[sdcz]gemm|^sgemm|gemv|dot_kernel"
    r"|winograd|fft[12]d_|_engine<float|plicit_convolve_sgemm|dgrad2d_alg\w{1,9}<float"
)
_TENSOR_CORE = re.compile(
    r"[shidcb](884|1688|16816|16832|8816|161616)(?!\d)|tensorop|tensor16x8x|nvjet|[Gg]mma|wgmma|hmma|imma|qmma|mma_sync|xdl"
    r"|MI\d+x\d+x\d+|mfma|gtcx\d|sm(90|100|103|120)_xmma|sm(7|8)\d_xmma_\w*(tf32|bf16|f16|fp16|i8|e4m3|e5m2)"
)
_TENSILE = "Cijk_[A-Za-z]+_[A-Za-z]+_"
_DTYPES = (
    ("fp8", r"(?i:e4m3|e5m2|fp8(?!KVCache))|F8|^nvjet_(sm\d+_)?q"),
    ("fp4", r"(?i:e2m1)"),
    ("tf32", rf"tf32|tfloat32|xf32|{_TENSILE}(S_?MX|X)"),
    ("bf16", rf"(?i:bf16|bfloat16)|^nvjet_(sm\d+_)?t|{_TENSILE}B|DF16b|_ZN2ck\w*[IE_]t{{2,3}}ft"),
    ("fp16", rf"(?i:fp16|float16|half)|f16|h(884|1688|16816)|hgemm|^nvjet_(sm\d+_)?h|{_TENSILE}H|DF16_"),
    ("tf32", r"[sc]1688"),
    ("int8", rf"_i8_|I8II|i(8816|16832)|{_TENSILE}(4x)?[iI]8"),
    ("fp64", rf"double|f64|fp64|[dz](884|gemm)|{_TENSILE}[DZ]"),
    ("fp32", rf"float|f32|[sc]gemm|scudnn|{_TENSILE}[SC]"),
)
# What Nsight's demangler writes otherwise than Kineto's; Itanium-mangled names.
_NSIGHT_LAMBDA = re.compile(r"\[lambda\(([^()\[\]]*)\) \(instance (\d+)\)\]")
_NSIGHT_CAST = re.compile(r"\((?:unsigned )?(?:int|bool|char|short|long|long long)\)(?=-?\d)")
_MANGLED = re.compile(r"_Z[NKL]*(?=\d)")
_GROUP = re.compile(r"<[^<>(){}]*>|\([^<>(){}]*\)|\{[^<>(){}]*\}")
_ARGUMENT = re.compile(
    r"\b(?!([a-z]+|\w*(_t|Half|Params|Metadata|_traits|Type|Accessor|Batched|Iterator|IteratorBase)|\w*[Ff]loat(\d+|8_\w+)"
    r"|gpu_kernel_impl\w*|gpu_index_kernel|ReduceOp|[AB]UnaryFunctor|BinaryFunctor)\b)[A-Za-z_]\w{2,}\b(?!::)"
)
# Before NCCL 2.7 ncclAllReduceRingLLKernel_sum_f32.
_NCCL = re.compile(r"nccl(?:\w*Kernel_)?(AllReduce|AllGather|ReduceScatter|Broadcast|Reduce|SendRecv|AllToAll)")


def normalise(name: str) -> str:
    """`name` in Kineto's spelling, whichever tool demangled it, without `void ` and the list of arguments."""
    text = name.strip().replace("<unnamed>", "(anonymous namespace)").replace("operator ()", "operator()")
    text = _NSIGHT_CAST.sub("", _NSIGHT_LAMBDA.sub(r"{lambda(\1)#\2}", text))
    text = re.sub(" (?=[>*&])", "", text).removeprefix("void ").removesuffix(".kd").strip()
    depth = 0
    for at in range(len(text) - 1, 0, -1) if text.endswith(")") else ():
        depth += (text[at] == ")") - (text[at] == "(")
        if depth == 0:
            return text if text[at - 1].isspace() or text.endswith(("operator", "::"), 0, at) else text[:at]
    return text


def short_name(name: str, width: int = 60) -> str:
    """A kernel's name for people: no namespaces, no arguments, of template arguments the one that says the most."""
    text = " ".join(normalise(name[:_EXAMINED]).split()) or name[:width]
    text = _demangled(text) or text
    plain = text.replace(")>(", ")(")
    for _ in range(64 if "::" in text or "<" in text else 0):
        plain = _GROUP.sub("", plain)
    head = re.split(r"[<({]", plain)[0].split(" ")[-1] if plain != text or "::" in text else text
    kernel = next((part for part in reversed(head.split("::")) if part not in ("", "operator")), text)
    start = text.find(kernel + "<")
    argument = _ARGUMENT.search(text, start + len(kernel)) if start >= 0 else None
    short = f"{kernel}<{argument[0]}>" if argument else kernel
    return short if len(short) <= width else short[: max(width, 2) - 1] + "…"


def _demangled(text: str) -> str:
    """The qualified name at the head of an Itanium-mangled one, without its types; empty if it is none."""
    start, parts = _MANGLED.match(text), list[str]()
    at = start.end() if start else len(text)
    while size := re.compile(r"[0-9]{1,4}").match(text, at):
        at = size.end() + int(size[0])
        parts.append(text[size.end() : at])
    return "::".join(part for part in parts if not part.startswith("_GLOBAL__N"))


def _examined(name: str) -> str:
    """What kernel patterns are matched against: the normalised name; of a mangled one, behind its demangled form."""
    text = normalise(name[:_EXAMINED])
    return f"{_demangled(text)} {text}".lstrip()


@lru_cache(4096)
def kernel_kind(name: str) -> KernelKind:
    """What the device work of this name computes. FOREACH may be an optimizer, clipping or a copy: ask the host op."""
    return _kind_of(KernelKind, _examined(name))


def uses_tensor_cores(name: str) -> bool | None:
    """Whether a matmul-like kernel runs on Tensor Cores; None where its name does not say, or it is no such kernel."""
    text, dtype = _examined(name), math_dtype(name)
    if kernel_kind(name) not in MATMULS or _HELPER.search(text):
        return None
    if _SIMT.search(text) and not re.search("884|1688|16816", text):
        return False
    half = dtype in ("fp16", "bf16") and re.search("(?i)flash|sdpa|fmha", text)
    return True if half or dtype in ("fp8", "fp4", "tf32") or _TENSOR_CORE.search(text) else None


def math_dtype(name: str) -> str | None:
    """The type a matmul-like kernel multiplies in: fp8, fp4, tf32, bf16, fp16, int8, fp64 or fp32; None if unknown."""
    text = _examined(name)
    matching = (dtype for dtype, pattern in _DTYPES if re.search(pattern, text))
    return next(matching, None) if kernel_kind(name) in MATMULS else None


def api_kind(name: str) -> ApiKind:
    """What a call of the CUDA runtime, the CUDA driver, HIP or an API made like them does: makers differ in prefix."""
    call = re.fullmatch(r"[a-z]{2,8}([A-Z]\w*?)(?:_v\d+|_ptsz|_ptds|_spt)*", name[:200])
    return _kind_of(ApiKind, call[1]) if call else ApiKind.OTHER


def copy_direction(name: str) -> Direction:
    """Where a copy of this name goes, in the words of Kineto's cupti_strings.cpp. Arrays are device memory."""
    ends = re.search(r"\b[HDAP]to[HDAP]\b", name)
    return next((one for one in Direction if ends and one.value == ends[0].replace("A", "D")), Direction.UNKNOWN)


def host_memory(name: str) -> HostMemory:
    """The kind of host memory that a copy of this name touches. ROCm only says `Host`: UNKNOWN."""
    said = [kind for kind in (HostMemory.PAGEABLE, HostMemory.PINNED, HostMemory.MANAGED) if kind.value.title() in name]
    on_device = copy_direction(name) in (Direction.D2D, Direction.P2P)
    return said[0] if said else HostMemory.NONE if on_device else HostMemory.UNKNOWN


@lru_cache(4096)
def activity(name: str) -> Activity:
    """What the host span of this name is to the training loop."""
    return _kind_of(Activity, re.split(", (?:seq|op_id|sizes) = ", name, maxsplit=1)[0])  # As NVTX ranges end.


@lru_cache(4096)
def callee_kind(frame: str) -> CalleeKind:
    """What the function of a Python frame, or a C function as a recording names it, does."""
    return _kind_of(CalleeKind, frame[:_EXAMINED])


def step_number(name: str) -> int | None:
    """The number in a profiler step's name; None for any other name."""
    return int(name[len("ProfilerStep#") :].partition(",")[0]) if activity(name) is Activity.STEP else None


def collective_of(name: str) -> str | None:
    """The collective a NCCL or RCCL kernel runs, such as all_reduce; None for generic kernels, which run any."""
    found = _NCCL.match(_examined(name))
    return re.sub("(?<=[a-z])(?=[A-Z])", "_", found[1]).lower() if found else None


def names_python(process: str) -> bool | None:
    """Whether a process or thread has a name of Python, or one that programs of Python give themselves; None of ""."""
    return bool(re.search(r"(?i)python|^(pt_|ray::|vllm|sglang)", process)) if process else None
