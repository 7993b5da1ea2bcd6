"""Attributes of objects, of whose readings we are told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .compiled import compiler_switch


class Noticed:
    """An attribute of objects, of whose readings we are told.

    Unlike a wrapper of the function that reads it, it adds no frame, so that torch's warnings point where they would.
    """

    def __init__(self, name: str, told: Callable[[], None]) -> None:
        self._name, self._told, self._compile_with = name, told, compiler_switch()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        if instance is None:
            return self
        compiler = self._compile_with(None)
        self._compile_with(compiler)
        if not compiler:
            self._told()
        try:
            return instance.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, instance: Any, value: Any) -> None:
        instance.__dict__[self._name] = value

    def __delete__(self, instance: Any) -> None:
        try:
            del instance.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None
