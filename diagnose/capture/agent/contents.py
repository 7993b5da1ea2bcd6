"""What torch's schema says of an op, and which tensors that ops take and make have equal contents."""

from collections.abc import Iterator
from typing import Any, NamedTuple

NUMBER = bool | int | float
SAMPLED = 64  # Elements of a result that are compared where two should be equal (chosen).
UNFILLED = ("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided")  # Results hold anything.
OTHER_MEMORY = ("resize_", "resize_as_", "set_")  # Change which memory a tensor has, not only how it looks at it.


class Op(NamedTuple):
    """What is the same for all calls of an op."""

    name: str
    writes: frozenset[str]  # Names of the arguments that it writes to.
    arguments: tuple[str, ...]
    comparable: bool  # Whether equal inputs give equal results.
    turns: bool  # Whether it changes the shape or strides of a tensor in place.
    computes: bool  # Whether it reads the values of what it takes: not views, nor `new_zeros` and the like.


def described(func: Any, torch: Any) -> Op:
    """What is recorded of an ATen op: argument names, what it writes to, whether equal inputs give equal results."""
    schema = func._schema
    space, _, name = schema.name.partition("::")
    seeded = torch.Tag.nondeterministic_seeded in func.tags
    turns = torch.Tag.inplace_view in func.tags and name not in OTHER_MEMORY
    aliases = [argument for argument in schema.arguments if argument.alias_info]
    views = turns or any(not one.alias_info.is_write for one in aliases)
    return Op(
        name=schema.name,
        arguments=tuple(argument.name for argument in schema.arguments),
        writes=frozenset() if turns else frozenset(one.name for one in aliases if one.alias_info.is_write),
        comparable=space == "aten" and name not in UNFILLED and not seeded,
        turns=turns,
        computes=not views and not name.endswith("_like") and not name.startswith("new_"),
    )


def tensors_in(values: list[Any], torch: Any) -> Iterator[Any]:
    """All tensors in nested lists and tuples."""
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from tensors_in(list(value), torch)


def plain(tensor: Any, torch: Any) -> bool:
    """Whether it is a strided tensor with real memory, of no class that handles ops itself."""
    own = type(tensor).__torch_dispatch__ is not torch.Tensor.__torch_dispatch__
    special = own or tensor.is_nested or tensor.is_quantized or tensor.device.type == "meta" or tensor._is_zerotensor()
    return tensor.layout is torch.strided and not special


def is_one_number(tensor: Any) -> bool:
    """Whether it is one number on the CPU, alone in its memory: torch makes such tensors of Python's numbers."""
    alone = tensor.numel() == 1 and tensor.untyped_storage().nbytes() == tensor.element_size()
    return bool(alone and tensor.device.type == "cpu")


def some_of(tensor: Any) -> list[Any]:
    """Some SAMPLED elements, evenly taken from the tensor's memory; none of kinds that torch cannot show."""
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
    """What is known of a storage: the number of its content, and the ops that made and filled it."""

    def __init__(self, alive: Any, content: int, made_by: int, version: int) -> None:
        self.alive = alive  # A weak reference, so that no other memory gets this one's identity.
        self.content, self.version = content, version
        self.made_by = self.filled_by = made_by  # Ops that allocated it, and wrote to it last; -1 if that was no op.
        self.writes = 0  # Of ours since the version was looked at, which it may or may not count yet.


class Contents:
    """What all memory that ops use contains, as numbers: equal ones, equal contents."""

    def __init__(self, torch: Any) -> None:
        from torch.multiprocessing.reductions import StorageWeakRef

        self._torch, self._weak = torch, StorageWeakRef
        self._numbers: dict[object, int] = {}
        self._memory: dict[int, _Memory] = {}

    def number(self, key: object) -> int:
        """The number for this key: a new one if the key is new."""
        return self._numbers.setdefault(key, len(self._numbers))

    def fresh(self) -> int:
        """A number that nothing else has."""
        return self.number(object())

    def key(self, value: Any) -> object:
        """A key of an op's argument, equal for equal arguments. Raises Unknown if it cannot be compared."""
        torch = self._torch
        if isinstance(value, torch.Tensor):
            if not plain(value, torch):
                raise Unknown
            geometry = (value.storage_offset(), tuple(value.shape), tuple(value.stride()))
            return self._memory_of(value).content, geometry, str(value.dtype), value.is_conj(), value.is_neg()
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

    def made(self, tensor: Any, content: int, op: int) -> _Memory:
        """Note that this op (its position; -1: none) has made the tensor's memory, with this content."""
        memory = _Memory(self._weak(tensor.untyped_storage()), content, op, _version(tensor))
        self._memory[_identity(tensor)] = memory
        return memory

    def written(self, tensor: Any, content: int, op: int) -> int:
        """Note that this op has written to the tensor. Returns the op that made its memory; -1: none, or unknown."""
        if not plain(tensor, self._torch):
            return -1
        memory = self._memory_of(tensor)
        memory.content, memory.filled_by, memory.writes = content, op, memory.writes + 1
        return memory.made_by

    def turned(self, tensor: Any) -> None:
        """An op has changed the tensor's shape or strides in place: torch counts that like writing to it."""
        if plain(tensor, self._torch):
            self._memory_of(tensor).writes += 1

    def filled_by(self, tensor: Any) -> int:
        """The op that wrote to the tensor's memory last; -1 if none was seen to."""
        memory = self._memory.get(_identity(tensor)) if plain(tensor, self._torch) else None
        return -1 if memory is None else memory.filled_by

    def forget(self) -> None:
        """Let go of all memory."""
        self._memory.clear()

    def _memory_of(self, tensor: Any) -> _Memory:
        """What is known of a tensor's memory; new content if anything we do not see has written to it since."""
        memory, version = self._memory.get(_identity(tensor)), _version(tensor)
        if memory is None:
            # What comes from elsewhere: a single number is known by what it is.
            is_single = is_one_number(tensor)
            content = ("holds", str(tensor.dtype), repr(tensor.tolist())) if is_single else object()
            memory = self.made(tensor, self.number(content), -1)
        elif not memory.version <= version <= memory.version + memory.writes:
            memory.content, memory.filled_by = self.fresh(), -1
        if memory.version != version:
            memory.version, memory.writes = version, 0
        return memory


def _identity(tensor: Any) -> int:
    return int(tensor.untyped_storage()._cdata)


def _version(tensor: Any) -> int:
    """How often it was written to, as torch counts; writes that bypass torch do not count. -1: not counted."""
    return -1 if tensor.is_inference() else int(tensor._version)


PRODUCTS = frozenset(("aten::mm", "aten::bmm", "aten::addmm", "aten::baddbmm", "aten::convolution"))

# Take rows of a table, by an index. Not embeddings: what is made of words depends on those around them.
LOOKS_UP = frozenset(("aten::index", "aten::index_select"))
BETWEEN_ROWS = frozenset(("aten::mm", "aten::addmm", "aten::_cdist_forward"))  # Make something of each two rows.


class Counts:
    """The columns `sparse` and `looked_up` of `trace.model.ValueGraph`; each call of `taken` adds one to both."""

    def __init__(self, torch: Any, contents: Contents) -> None:
        self._torch, self._contents = torch, contents
        self.sparse: list[int] = []
        self.looked_up: list[int] = []
        self._learnt: list[bool] = []  # Whether what the op makes depends on what is learnt.
        self._before: set[object] = set()  # Ops of the first step with what they were given.

    def taken(self, op: Op, given: dict[str, Any], tensors: list[Any], backward: bool, step: int) -> None:
        """The next op is called, with arguments `given`. `tensors`: of these, if it reads values; `step`: 0 or 1."""
        at, makers = len(self._learnt), [self._contents.filled_by(tensor) for tensor in tensors]
        self._learnt.append(any(tensor.requires_grad for tensor in tensors) or any(map(self._is_learnt, makers)))
        alike = op.comparable and not self._learnt[at] and self._is_as_before(op, given, tensors, makers, step)
        self.looked_up.append(self._lookup(op.name, given, tensors, makers) if alike else -1)
        known = [one for one, maker in zip(tensors, makers, strict=True) if not self._may_learn(one, maker)]
        counts = op.name in PRODUCTS and not backward
        self.sparse.append(max(map(self._zeros, known), default=0) if counts else 0)

    def _zeros(self, matrix: Any) -> int:
        """Thousandths of the matrix's elements that are zero; 0 if it has none, or if torch cannot count them."""
        many = int(matrix.numel())
        try:
            return (1000 * (many - int(self._torch.count_nonzero(matrix)))) // max(many, 1)
        except RuntimeError:  # NotImplementedError is one.
            return 0

    def _lookup(self, name: str, given: dict[str, Any], tensors: list[Any], makers: list[int]) -> int:
        """The position of the op (of LOOKS_UP) that took the table rows which alone this op computes with; else -1."""
        if name in LOOKS_UP and makers[0] < 0 and len(tensors) == 2 and tensors[1].dim() == 1 and _of_rows(given):
            return len(self._learnt) - 1
        lookups = [self.looked_up[maker] for maker in makers if maker >= 0]
        between_rows = len(lookups) > 1 and name in BETWEEN_ROWS
        return lookups[0] if len(set(lookups)) == 1 and not between_rows and not given.get("training") else -1

    def _is_as_before(self, op: Op, given: dict[str, Any], tensors: list[Any], makers: list[int], step: int) -> bool:
        """Whether the first step had such an op, with equal arguments but for tensors that ops made.
        Of those only shapes, strides and offsets are compared. What NumPy, say, makes anew has never been there."""
        brought = [self._key(one) for one, maker in zip(tensors, makers, strict=True) if maker < 0]
        places = [(tuple(one.shape), one.stride(), one.storage_offset()) for one in tensors if plain(one, self._torch)]
        numbers = [(key, one) for key, one in given.items() if isinstance(one, NUMBER | str | None)]
        lists = [
            (key, repr(values))
            for key, values in given.items()
            if isinstance(values, list | tuple) and all(isinstance(one, NUMBER) for one in values)
        ]
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
        """A key that equal tensors share; a new one for a tensor that cannot be compared."""
        try:
            return self._contents.key(tensor)
        except Unknown:
            return object()


def _of_rows(given: dict[str, Any]) -> bool:
    indices = given.get("indices")
    return given.get("dim") == 0 if indices is None else indices[0] is not None
