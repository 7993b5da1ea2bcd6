"""Puts off what takes half the time of a short training: torch loads its compiler for each optimizer and recording.

It asks the compiler for a setting, and for two things that do nothing where nothing compiles: a break of the graph,
and functions that are not to be compiled. Whatever else is asked of the compiler loads the real one. Importing torch
takes a third less without its exporter and without the shapes of results, which only fake tensors are asked for.
"""

import functools
import sys
from importlib.machinery import PathFinder
from types import ModuleType

SHAPES = "torch._meta_registrations"
PARTS = {"torch._dynamo": (), "torch._inductor": ("config", "custom_graph_pass"), "torch.export": (), SHAPES: ()}
"""What is put off, and what within it can be had without the rest."""

WITH_SHAPES = ("torch._decomp", "torch._prims", "torch._refs", "torch.utils._content_store")
"""What fake tensors are made with: the shapes load it, in the one order that works."""


class Later(ModuleType):
    """One of them until it is needed."""

    def __getattr__(self, name):
        if name.startswith("__") or name in PARTS[self.__name__]:
            raise AttributeError(name)
        if self.__name__ == "torch._dynamo" and name in BEFORE:
            return BEFORE[name]
        return getattr(load(self), name)


def put_off(package):
    """What the real one does for others as it is loaded: torch 2.13 makes no random generator before that."""
    make_able = getattr(sys.modules["torch"]._C, "_set_generator_metaclass", None)
    if package.__name__ == SHAPES and make_able is not None:
        make_able(sys.modules["torch._opaque_base"].OpaqueBaseMeta)


def load(package):
    """The real package, in place of what stands for it."""
    if type(package) is Later:
        package.__class__ = ModuleType
        package.__spec__.loader.exec_module(package)
    return package


def disable(fn=None, recursive=True, **options):
    """A function that is kept from being compiled as soon as something can be."""
    if fn is None:
        return functools.partial(disable, recursive=recursive, **options)
    dynamo, real = sys.modules["torch._dynamo"], []

    @functools.wraps(fn)
    def inner(*given, **named):
        if type(dynamo) is Later:
            return fn(*given, **named)
        if not real:
            real.append(dynamo.disable(fn, recursive, **options))
        return real[0](*given, **named)

    inner.__code__ = inner.__code__.replace(co_filename=dynamo.__spec__.origin)  # Recordings take it for torch's too.
    return inner


BEFORE = {"graph_break": lambda *_, **__: None, "disable": disable}
"""What is asked of torch._dynamo where nothing compiles."""


class Finder:
    """Finds what is put off the first time it is imported, and loads it before what is within it."""

    def find_spec(self, name, path=None, target=None):
        outer, _, inner = name.rpartition(".")
        if name in WITH_SHAPES and type(sys.modules.get(SHAPES)) is Later:
            load(sys.modules[SHAPES])
            spec = sys.modules[name].__spec__
            spec.loader.create_module = lambda spec: sys.modules[spec.name]
            spec.loader.exec_module = lambda module: None
            return spec
        if name in PARTS:
            spec = PathFinder.find_spec(name, path)
            run = spec.loader.exec_module
            spec.loader.create_module = lambda spec: Later(spec.name)
            spec.loader.exec_module = lambda module: run(module) if type(module) is not Later else put_off(module)
            return spec
        if outer in PARTS and inner not in PARTS[outer]:
            load(sys.modules[outer])
        return None


sys.meta_path.insert(0, Finder())
