"""What a spec of an op stands for, as a call that can be repeated: of ATen by its schema, attention, optimizers."""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from functools import partial
from typing import Any

import torch

from diagnose.capture.timed.tensors import (
    WORKSPACE,
    CannotTime,
    Tensor,
    ask,
    filled,
    filled_by,
    inputs,
    narrowed,
    padded,
    sizes,
)

LONGEST = 120  # Characters of an error.

_SCALARS: dict[str, object] = {"alpha": 1, "beta": 1, "dim": -1, "eps": 1e-5, "keepdim": False, "half_to_float": False}
"""Arguments whose value changes little of what an op takes; of others it is not known."""

ATTENTION = "attention"
"""Written out: matmul, softmax, matmul. It takes queries, keys and values of shape (batch times heads, n, size)."""
OPTIMIZER = re.compile(r"torch\.optim\.(Adadelta|Adagrad|Adam|AdamW|Adamax|ASGD|NAdam|RAdam|RMSprop|Rprop|SGD)")
SETTINGS = frozenset({"foreach", "momentum", "weight_decay"})  # What is passed on to optimizers.
_BACKWARD_OF_ATTENTION = re.compile(r"aten::_scaled_dot_product_(flash|efficient|cudnn)_attention(_for_cpu)?_backward")
_BACKENDS = {"flash": "FLASH_ATTENTION", "efficient": "EFFICIENT_ATTENTION", "cudnn": "CUDNN_ATTENTION"}


Call = Callable[[], object]


def first_line(error: Exception) -> str:
    """What an error says, in few characters."""
    return (str(error).strip() or "no reason given").splitlines()[0][:LONGEST]


def call_of(device: torch.device, one: dict[str, str], words: list[str]) -> Call:
    """What a spec stands for, after a change, with inputs as recorded. Raises CannotTime."""
    if OPTIMIZER.fullmatch(one["op"]):
        return updating(device, one, words)
    given = [narrowed(some, words) for some in inputs(one)]
    if one["op"].startswith(ATTENTION):
        return written_out(device, one, words, given)
    if _BACKWARD_OF_ATTENTION.fullmatch(one["op"]):
        return backward_of_attention(device, one, words, given)
    if "padded" in words:
        given = padded(given)
    return bound(device, one["op"], given)


def bound(device: torch.device, op: str, given: list[Any]) -> Call:
    """A call of an op of ATen by its schema. Raises CannotTime."""
    if device.type == "cuda" and "attention" in op and op.endswith("backward"):
        raise CannotTime("its random state was not recorded")
    whys = list[str]()
    for overload in overloads(op, len(given)):
        try:
            arguments = fitted(overload, given)
            ask(device, sizes(given) + _result_bytes(op, overload, arguments))
            call = partial(overload, **made(device, op, arguments))
            call()
        except CannotTime as error:
            whys.append(str(error))
        except (RuntimeError, TypeError, IndexError, ValueError, NotImplementedError) as error:
            whys.append(first_line(error))
        else:
            return call
    raise CannotTime(whys[0] if whys else "torch has no such op")


def overloads(op: str, count: int) -> Iterator[Any]:
    """The overloads of an op, such as aten::add.Tensor: those that take so many inputs, if there are such."""
    space, _, name = op.partition("::")
    packet = getattr(getattr(torch.ops, space, None), name, None) if space == "aten" and name.isidentifier() else None
    names = packet.overloads() if packet is not None else ()
    found = [getattr(packet, one) for one in names if not one.endswith("out") and "out" not in one.split("_")]
    alike = [one for one in found if len(one._schema.arguments) == count]
    yield from alike or found


def fitted(overload: Any, given: list[Any]) -> dict[str, Any]:
    """The arguments of an overload by what was recorded, in its order. Raises CannotTime where one is not known."""
    some = overload._schema.arguments
    recorded = [*given, *[""] * len(some)]
    found = dict[str, Any]()
    for argument, value, later in zip(some, recorded, range(1, len(recorded)), strict=False):
        kind = str(argument.type)
        if "Tensor" in kind:
            missing = not value or isinstance(value, str)
            if (missing and "Optional" not in kind) or (isinstance(value, list) and "List" not in kind):
                raise CannotTime(f"its {argument.name} was not recorded")
            found[argument.name] = None if missing else value
        else:
            found[argument.name] = number(argument, value, [one for one in given[later:] if one], given)
    return found


def number(argument: Any, value: Any, behind: list[Any], given: list[Any]) -> Any:
    """What is no tensor: as recorded, else some usual value. Raises CannotTime."""
    kind, name = str(argument.type), argument.name
    if isinstance(value, Tensor | list):
        if isinstance(value, list) or value.shape:
            raise CannotTime(f"its {name} is a tensor")
        value = "1.0" if kind in ("number", "float") else ""
    if name == "input_dtype":
        return next((one.dtype for one in given if isinstance(one, Tensor)), torch.float32)
    if value and name != "dtype":
        return read(value, kind, name)
    if argument.has_default_value():
        return argument.default_value
    weight = next((one for one in behind if isinstance(one, Tensor)), None)
    if name == "normalized_shape" and weight is not None:
        return list(weight.shape)
    if kind.startswith("Optional"):
        return None
    if name not in _SCALARS:
        raise CannotTime(f"its {name} was not recorded")
    return _SCALARS[name]


def read(text: str, kind: str, name: str) -> Any:
    """A number, a truth or a list of them, as torch writes it. Raises CannotTime."""
    try:
        value = json.loads(re.sub(r"(?<=\d)\.(?!\d)", ".0", text.replace("True", "true").replace("False", "false")))
    except ValueError:
        raise CannotTime(f"its {name} is {text[:LONGEST]}") from None
    if "List" in kind:
        return value if isinstance(value, list) else [value]
    if isinstance(value, list):
        raise CannotTime(f"its {name} is {text[:LONGEST]}")
    if "float" in kind:
        return float(value)
    return bool(value) if "bool" in kind else value


def made(device: torch.device, op: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Arguments with numbers in their tensors: what works in place gets 1 and -1, so that nothing grows or vanishes."""
    below = _below(op, list(filled_by(arguments)))
    first = next(filled_by(arguments), None)

    def one(value: Any) -> Any:
        if isinstance(value, list) and value and isinstance(value[0], Tensor):
            return [one(some) for some in value]
        if not isinstance(value, Tensor):
            return value
        return filled(device, value, below, signs=op.endswith("_") and value is not first)

    return {name: one(value) for name, value in arguments.items()}


def _below(op: str, some: list[Tensor]) -> int:
    """What indices have to be less than: rows of a table, classes of a loss; else any size that there is."""
    floats = [one.shape for one in some if one.dtype.is_floating_point and one.shape]
    if op == "aten::embedding" and floats:
        return floats[0][0]
    return min((min(shape) for shape in floats), default=2)


def _result_bytes(op: str, overload: Any, arguments: dict[str, Any]) -> int:
    """Memory of what a call gives, by tensors without memory; where these do not tell, that of its largest input."""
    try:
        found = overload(**made(torch.device("meta"), op, arguments))
    except Exception:  # Not every op says beforehand what it gives.
        return max((one.bytes for one in filled_by(arguments)), default=0)
    given = found if isinstance(found, tuple | list) else [found]
    return sum(one.numel() * int(one.dtype.itemsize) for one in given if isinstance(one, torch.Tensor))


def updating(device: torch.device, one: dict[str, str], words: list[str]) -> Call:
    """A step of an optimizer over parameters of these sizes. Raises CannotTime."""
    given = [some for value in inputs(one) for some in (value if isinstance(value, list) else [value])]
    settings = json.loads(one["scalars"] or "{}")
    if not all(isinstance(some, Tensor) and some.dtype.is_floating_point for some in given):
        raise CannotTime("its parameters were not recorded")
    if not isinstance(settings, dict) or settings.keys() - SETTINGS:
        raise CannotTime("its settings are not known")
    for word in ("fused", "foreach"):
        if word in words:
            settings = {**settings, "foreach": None, word: True}
    # A parameter, its gradient, two states, and one to work in.
    ask(device, 5 * sum(some.bytes for some in given) // WORKSPACE)
    parameters = [filled(device, some, 0, signs=False).requires_grad_(True) for some in given]
    for parameter in parameters:
        parameter.grad = torch.ones_like(parameter)
    form = getattr(torch.optim, one["op"].rpartition(".")[2])
    step: Call = form(parameters, lr=1e-6, **settings).step
    return step


def written_out(device: torch.device, one: dict[str, str], words: list[str], given: list[Any]) -> Call:
    """Attention as matmul, softmax and matmul, or as the fused op. Raises CannotTime."""
    if len(given) != 3 or not all(isinstance(some, Tensor) and len(some.shape) == 3 for some in given):
        raise CannotTime("its queries, keys and values were not recorded")
    (batch, queries, size), keys = given[0].shape, given[1].shape[1]
    # Scores, softmax and its gradient, besides what goes in and comes out.
    ask(device, 2 * sizes(given) + 3 * batch * queries * keys * int(given[0].dtype.itemsize))

    def attention(q: Any, k: Any, v: Any) -> Any:
        if "fused" in words:
            return torch.nn.functional.scaled_dot_product_attention(q, k, v)
        return torch.softmax((q @ k.transpose(-2, -1)) * size**-0.5, -1) @ v

    some = [filled(device, one, 0, signs=False)[None] for one in given]
    if one["op"] == ATTENTION:
        return lambda: attention(*some)
    return _gradients(attention, some)


def backward_of_attention(device: torch.device, one: dict[str, str], words: list[str], given: list[Any]) -> Call:
    """The fused op's backward, by the op that it comes after: what that keeps is not recorded. Raises CannotTime."""
    overload = next(overloads(one["op"], len(given)), None)
    if overload is None:
        raise CannotTime("torch has no such op")
    told = fitted(overload, given)
    mask = told.get("attn_mask") or told.get("attn_bias")
    how = {"dropout_p": told["dropout_p"], "is_causal": told["is_causal"], "scale": told.get("scale")}
    some = [told[name] for name in ("query", "key", "value")]
    ask(device, 4 * sizes(some))
    tensors = [filled(device, tensor, 0, signs=False) for tensor in some]
    masking = None if mask is None else filled(device, mask, 0, signs=False)
    fused = torch.nn.functional.scaled_dot_product_attention
    backend = one["op"].removeprefix("aten::_scaled_dot_product_").partition("_")[0]
    chosen = torch.nn.attention.SDPBackend.__members__[_BACKENDS[backend]]
    # What is computed in another type may come to another backend.
    held = nullcontext() if words or device.type == "cpu" else torch.nn.attention.sdpa_kernel(chosen)
    with held:
        return _gradients(lambda *qkv: fused(*qkv, attn_mask=masking, **how), tensors)


def _gradients(form: Callable[..., Any], some: list[Any]) -> Call:
    with torch.enable_grad():
        leaves = [one.detach().requires_grad_(True) for one in some]
        out = form(*leaves)
    gradient = torch.ones_like(out)
    return lambda: torch.autograd.grad(out, leaves, gradient, retain_graph=True)
