"""Integer arithmetic of a graph as expressions that can be compared: sums of constants, unknowns, minima and maxima."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

import onnx_ir as ir

from maskjet.onnx.matching import MismatchError, integers, is_op

Extreme: TypeAlias = tuple[Literal["max", "min"], frozenset["Sum"]]
"""The largest or smallest of some sums."""


@dataclass(frozen=True)
class Sum:
    """A constant plus multiples of unknowns; equal sums are equal objects."""

    constant: int = 0
    """What is left when all unknowns are 0."""
    terms: frozenset[tuple[object, int]] = field(default=frozenset())
    """Unknowns, each anything hashable, with their factors, none 0."""

    def __add__(self, other: Sum | int) -> Sum:
        return self._plus(other, 1)

    def __sub__(self, other: Sum | int) -> Sum:
        return self._plus(other, -1)

    def _plus(self, other: Sum | int, factor: int) -> Sum:
        if isinstance(other, int):
            return Sum(self.constant + factor * other, self.terms)
        total: dict[object, int] = dict(self.terms)
        for unknown, count in other.terms:
            total[unknown] = total.get(unknown, 0) + factor * count
        terms = frozenset((unknown, count) for unknown, count in total.items() if count)
        return Sum(self.constant + factor * other.constant, terms)


def unknown(what: object) -> Sum:
    """Something hashable, once."""
    return Sum(0, frozenset({(what, 1)}))


def largest(*sums: Sum | int) -> Sum:
    """The maximum."""
    return _extreme("max", sums)


def smallest(*sums: Sum | int) -> Sum:
    """The minimum."""
    return _extreme("min", sums)


def _extreme(which: Literal["max", "min"], sums: tuple[Sum | int, ...]) -> Sum:
    extreme: Extreme = (which, frozenset(Sum(one) if isinstance(one, int) else one for one in sums))
    return unknown(extreme)


def read(value: ir.Value | None, read_unknown: Callable[[ir.Value], Sum | None]) -> Sum:
    """The expression of an integer that a graph computes, whatever the shape of its tensor.

    Args:
        value: Holds one integer.
        read_unknown: Tells the caller's unknowns; asked first. None lets the value be read further.

    Raises:
        MismatchError: It is computed by other ops than sums, minima and maxima.
    """
    if value is None:
        raise MismatchError("an integer is left out")
    known = integers(value)
    if known is not None and len(known) == 1:
        return Sum(known[0])
    found = read_unknown(value)
    if found is not None:
        return found
    node = value.producer()
    if node is None or not is_op(node, *_READERS):
        raise MismatchError(f"an integer is computed by {node.op_type if node else 'an input'}")
    return _READERS[node.op_type](node, read_unknown)


def read_all(value: ir.Value | None, read_unknown: Callable[[ir.Value], Sum | None]) -> list[Sum]:
    """The expressions of a vector's integers.

    Raises:
        MismatchError: It is neither a constant nor a Concat of single integers.
    """
    known = integers(value)
    if known is not None:
        return [Sum(number) for number in known]
    node = None if value is None else value.producer()
    if node is None or not is_op(node, "Concat"):
        raise MismatchError("a vector is no Concat")
    return [read(part, read_unknown) for part in node.inputs]


_Reader: TypeAlias = Callable[[ir.Node, Callable[[ir.Value], Sum | None]], Sum]
_READERS: Mapping[str, _Reader] = {
    "Add": lambda node, more: read(node.inputs[0], more) + read(node.inputs[1], more),
    "Sub": lambda node, more: read(node.inputs[0], more) - read(node.inputs[1], more),
    "Max": lambda node, more: largest(*(read(one, more) for one in node.inputs)),
    "Min": lambda node, more: smallest(*(read(one, more) for one in node.inputs)),
    "ReduceMax": lambda node, more: largest(*read_all(node.inputs[0], more)),
    "ReduceMin": lambda node, more: smallest(*read_all(node.inputs[0], more)),
    "Unsqueeze": lambda node, more: read(node.inputs[0], more),
    "Squeeze": lambda node, more: read(node.inputs[0], more),
    "Identity": lambda node, more: read(node.inputs[0], more),
    "Cast": lambda node, more: read(node.inputs[0], more),
}
