"""What torch tells of an op, and what is in the tensors that it takes and makes."""

from collections.abc import Iterator
from typing import Any, NamedTuple

SAMPLED = 64  # Elements of a result that are compared where two should be equal (our choice).

UNFILLED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")
"""Ops whose results hold anything."""


OTHER_MEMORY = ("resize_", "resize_as_", "set_")
"""Ops that change which memory a tensor has, and not only how it looks at that."""


class Op(NamedTuple):
    """What is the same for all calls of an op."""

    name: str
    writes: frozenset[str]  # Names of the arguments that it writes to.
    arguments: tuple[str, ...]
    comparable: bool  # Whether equal inputs give equal results.
    turns: bool  # Whether it changes how a tensor looks at its memory.
    computes: bool
    """Whether it looks at the values of what it takes: not views of memory, nor what is only made as large."""


def described(func: Any, torch: Any) -> Op:
    """An overload of an op."""
    schema = func._schema
    space, _, name = schema.name.partition("::")
    seeded = torch.Tag.nondeterministic_seeded in func.tags
    turns = torch.Tag.inplace_view in func.tags and name not in OTHER_MEMORY
    views = turns or any(argument.alias_info and not argument.alias_info.is_write for argument in schema.arguments)
    return Op(
        name=schema.name,
        arguments=tuple(argument.name for argument in schema.arguments),
        writes=frozenset() if turns else _written(schema),
        comparable=space == "aten" and name not in UNFILLED and not seeded,
        turns=turns,
        computes=not views and not name.endswith("_like") and not name.startswith("new_"),
    )


def _written(schema: Any) -> frozenset[str]:
    return frozenset(
        argument.name for argument in schema.arguments if argument.alias_info and argument.alias_info.is_write
    )


def tensors_in(values: list[Any], torch: Any) -> Iterator[Any]:
    """All tensors in nested lists."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(list(value), torch)


def plain(tensor: Any, torch: Any) -> bool:
    """Whether it has memory of its own, and is not of a class that computes in its own way."""
    own = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    special = own or tensor.is_nested or tensor.is_quantized or tensor.device.type == "meta" or tensor._is_zerotensor()
    return tensor.layout is torch.strided and not special


def is_one_number(tensor: Any) -> bool:
    """Whether it is all that is in its memory, and of the host: such tensors are made of Python's numbers."""
    alone = tensor.numel() == 1 and tensor.untyped_storage().nbytes() == tensor.element_size()
    return bool(alone and tensor.device.type == "cpu")


def some_of(tensor: Any) -> list[Any]:
    """Elements of a tensor, evenly taken from its memory; none of kinds that torch cannot show."""
    try:
        if not tensor.numel():
            return []
        extent = 1 + sum((many - 1) * stride for many, stride in zip(tensor.shape, tensor.stride(), strict=True))
        memory = tensor.as_strided((extent,), (1,), tensor.storage_offset())
        return list(memory[:: max(extent // SAMPLED, 1)].tolist())
    except RuntimeError:
        return []


class Unknown(Exception):
    """What an op takes cannot be compared."""


class _Memory:
    def __init__(self, alive: Any, content: int, made_by: int, version: int) -> None:
        self.alive = alive  # A weak reference, so that no other memory gets this one's identity.
        self.content, self.made_by, self.filled_by, self.version = content, made_by, made_by, version
        """`made_by` is the op that allocated it, `filled_by` the one that wrote to it last; -1 if that was no op."""
        self.writes = 0  # Of ours since the version was looked at, which it may or may not count yet.


class Contents:
    """Of all memory that ops were seen to use."""

    def __init__(self, torch: Any) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self._torch, self._weak = torch, StorageWeakRef
        self._numbers: dict[object, int] = {}
        self._memory: dict[int, _Memory] = {}

    def number(self, key: object) -> int:
        """The number of what has this key."""
        return self._numbers.setdefault(key, len(self._numbers))

    def fresh(self) -> int:
        """The number of something that is like nothing else."""
        return self.number(object())

    def key(self, value: Any) -> object:
        """Equal for equal arguments of ops. Raises Unknown."""
        torch = self._torch
        if isinstance(value, torch.Tensor):
            if not plain(value, torch):
                raise Unknown
            geometry = (value.storage_offset(), tuple(value.shape), tuple(value.stride()))
            return self._of(value).content, geometry, str(value.dtype), value.is_conj(), value.is_neg()
        if isinstance(value, list | tuple):
            return tuple(self.key(one) for one in value)
        if value is None or type(value) in (bool, int, float, complex, str):
            return type(value).__name__, value
        if isinstance(value, torch.dtype | torch.device | torch.layout | torch.memory_format):
            return str(value)
        raise Unknown

    def is_new(self, tensor: Any) -> bool:
        """Whether it lies in memory of which nothing is known yet."""
        return plain(tensor, self._torch) and _identity(tensor) not in self._memory

    def made(self, tensor: Any, content: int, op: int) -> None:
        """An op has made it."""
        self._keep(tensor, content, op)

    def written(self, tensor: Any, content: int, op: int) -> int:
        """An op has written to it; to the op that had made it, or -1."""
        if not plain(tensor, self._torch):
            return -1
        memory = self._of(tensor)
        memory.content, memory.filled_by, memory.writes = content, op, memory.writes + 1
        return memory.made_by

    def turned(self, tensor: Any) -> None:
        """An op has changed how it looks at its memory, which counts as if it had written to it."""
        if plain(tensor, self._torch):
            self._of(tensor).writes += 1

    def filled_by(self, tensor: Any) -> int:
        """The op that wrote to it last, or -1."""
        memory = self._memory.get(_identity(tensor)) if plain(tensor, self._torch) else None
        return -1 if memory is None else memory.filled_by

    def forget(self) -> None:
        """Let go of all memory."""
        self._memory.clear()

    def _of(self, tensor: Any) -> _Memory:
        memory, version = self._memory.get(_identity(tensor)), _version(tensor)
        if memory is None:
            memory = self._keep(tensor, self._brought(tensor), -1)
        elif not memory.version <= version <= memory.version + memory.writes:
            memory.content, memory.filled_by = self.fresh(), -1
        if memory.version != version:
            memory.version, memory.writes = version, 0
        return memory

    def _keep(self, tensor: Any, content: int, op: int) -> _Memory:
        memory = _Memory(self._weak(tensor.untyped_storage()), content, op, _version(tensor))
        self._memory[_identity(tensor)] = memory
        return memory

    def _brought(self, tensor: Any) -> int:
        """The number of what comes from elsewhere: a single number is known by what it is."""
        if is_one_number(tensor):
            return self.number(("holds", str(tensor.dtype), repr(tensor.tolist())))
        return self.fresh()


def _identity(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _version(tensor: Any) -> int:
    """How often it has been written to, as torch counts it: not by who writes to its memory past torch."""
    return -1 if tensor.is_inference() else int(tensor._version)


PRODUCTS = frozenset(("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::convolution"))

LOOKS_UP = frozenset(("aten::index", "aten::index_select"))
"""Ops that take rows of a table, by an index. Not embeddings: what is made of words depends on those around them."""

BETWEEN_ROWS = frozenset(("aten::mm", "aten::addmm", "aten::_cdist_forward"))
"""Ops that make something of each two rows of what they take."""


class Counts:
    """Columns of `trace.model.ValueGraph`, to which each op adds."""

    def __init__(self, torch: Any, contents: Contents) -> None:
        self._torch, self._contents = torch, contents
        self.sparse: list[int] = []
        self.looked_up: list[int] = []
        self._learnt: list[bool] = []  # Whether what the op makes depends on what is learnt.
        self._before: set[object] = set()  # What ops of the first step were given.

    def taken(self, op: Op, given: dict[str, Any], tensors: list[Any], backward: bool, step: int) -> None:
        """The next op is called in this step, with these arguments, among them these tensors."""
        at, makers = len(self._learnt), [self._contents.filled_by(tensor) for tensor in tensors]
        self._learnt.append(any(tensor.requires_grad for tensor in tensors) or any(map(self._is_learnt, makers)))
        alike = op.comparable and not self._learnt[at] and self._is_as_before(op, given, tensors, makers, step)
        self.looked_up.append(self._lookup(op.name, given, tensors, makers) if alike else -1)
        known = [one for one, maker in zip(tensors, makers, strict=True) if not self._may_learn(one, maker)]
        counts = op.name in PRODUCTS and not backward
        self.sparse.append(max(map(self._zeros, known), default=0) if counts else 0)

    def _zeros(self, matrix: Any) -> int:
        """Thousandths of its elements that are zero; 0 if it has none, or if torch cannot tell."""
        many = int(matrix.numel())
        try:
            return (1000 * (many - int(self._torch.count_nonzero(matrix)))) // max(many, 1)
        except RuntimeError:  # NotImplementedError is one.
            return 0

    def _lookup(self, name: str, given: dict[str, Any], tensors: list[Any], makers: list[int]) -> int:
        """The op that took rows of a table, if nothing but they and what never changes is taken since; or -1."""
        if name in LOOKS_UP and makers[0] < 0 and len(tensors) == 2 and tensors[1].dim() == 1 and _of_rows(given):
            return len(self._learnt) - 1
        lookups = [self.looked_up[maker] for maker in makers if maker >= 0]
        between_rows = len(lookups) > 1 and name in BETWEEN_ROWS
        return lookups[0] if len(set(lookups)) == 1 and not between_rows and not given.get("training") else -1

    def _is_as_before(self, op: Op, given: dict[str, Any], tensors: list[Any], makers: list[int], step: int) -> bool:
        """Whether the first step has had such an op, with equal numbers beside what it takes of other ops.

        Places are looked at of all tensors. What somebody else makes anew, as NumPy does, has never been there.
        """
        brought = [self._key(one) for one, maker in zip(tensors, makers, strict=True) if maker < 0]
        places = [
            (tuple(tensor.shape), tensor.stride(), tensor.storage_offset())
            for tensor in tensors
            if plain(tensor, self._torch)
        ]
        numbers = [(key, one) for key, one in given.items() if isinstance(one, bool | int | float | str | None)]
        lists = [(key, repr(one)) for key, one in given.items() if isinstance(one, list | tuple) and _of_numbers(one)]
        if op.name in LOOKS_UP:  # Other rows are looked up in each step.
            brought, places = [], []
        what = (op.name, tuple(brought), tuple(places), tuple(numbers), tuple(lists))
        if step == 0:
            self._before.add(what)
        return what in self._before

    def _is_learnt(self, maker: int) -> bool:
        return maker >= 0 and self._learnt[maker]

    def _may_learn(self, tensor: Any, maker: int) -> bool:
        return tensor.requires_grad or self._is_learnt(maker) or tensor.dim() < 2 or not plain(tensor, self._torch)

    def _key(self, tensor: Any) -> object:
        """Of equal ones equal; of those that cannot be compared none is."""
        try:
            return self._contents.key(tensor)
        except Unknown:
            return object()


def _of_rows(given: dict[str, Any]) -> bool:
    indices = given.get("indices")
    return given.get("dim") == 0 if indices is None else indices[0] is not None


def _of_numbers(values: list[Any] | tuple[Any, ...]) -> bool:
    return all(isinstance(value, bool | int | float) for value in values)
