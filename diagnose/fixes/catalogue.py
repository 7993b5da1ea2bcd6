"""All kinds of settings, and the one place that reads their names."""

from .calls import NoBarrier, NoCheckpointing, NoEmptyCache, NoSynchronize, SaveInBackground, SeldomCollect
from .distributed import CommunicationHook, DdpArgument, FsdpArgument, NoSync
from .environment import Environment, Tf32
from .loaders import LoaderArgument
from .model_calls import Autocast, NoGradInEvaluation
from .models import Attention, ChannelsLast, Compile, CompileArgument, GraphCapture
from .optimizers import OptimizerArgument, ZeroGrad
from .process import AnomalyMode, CollectByHand, CudnnBenchmark, Determinism, Threads
from .setting import Multiple, Setting, split

KINDS: tuple[type[Setting], ...] = (
    *(NoBarrier, NoCheckpointing, NoEmptyCache, NoSynchronize, SaveInBackground, SeldomCollect),
    *(CommunicationHook, DdpArgument, FsdpArgument, NoSync),
    *(Environment, Tf32),
    LoaderArgument,
    *(Autocast, NoGradInEvaluation),
    *(Attention, ChannelsLast, Compile, CompileArgument, GraphCapture),
    *(OptimizerArgument, ZeroGrad),
    *(AnomalyMode, CollectByHand, CudnnBenchmark, Determinism, Threads),
)

_BY_FORM = {(kind.form, argument): kind for kind in KINDS for argument in kind.takes}


def parsed(name: str) -> Setting | None:
    """The setting of a name; None if there is none of that name, or it does not take that value."""
    try:
        if name.startswith(Environment.form):
            return _of_environment(name.removeprefix(Environment.form))
        form, argument, value = split(name) or ("", "", None)
        kind = _BY_FORM.get((form, argument))
        return None if kind is None else kind(argument, value)
    except ValueError:
        return None


def _of_environment(text: str) -> Setting:
    """Tf32 if `text` is exactly its variables, else Environment; `text`: "NAME=value ...". Raises ValueError."""
    pairs = tuple((left, right) for left, _, right in (part.partition("=") for part in text.split()))
    for tf32 in (Tf32(), Tf32(value=True)):
        if pairs == tf32.variables:
            return tf32
    return Environment(value=pairs)
