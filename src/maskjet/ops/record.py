"""Records of ops and their implementations, which `tests/ops/cases` compares; and checks of arguments."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from maskjet.errors import InputError, UnsupportedError

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
"""Floating types of network inputs and outputs, which the ops accept."""

FALLBACKS: Counter[str] = Counter()
"""Counts of slower paths taken by direct calls of ops in this process, by op and reason, such as masks that did not
fit into their buffers. Each model has its own counts; see `Model.report`."""


@dataclass(frozen=True)
class Variant:
    """One implementation of an op."""

    run: Callable[..., Any]
    """The implementation. All implementations of an op take the same arguments and return the same type, or write to
    `out`, if it is given."""
    refuse: Callable[[torch.Tensor], str | None] = lambda _: None
    """Takes the op's first tensor; returns why this implementation can't serve its device or dtype, or None."""
    allocate: Callable[..., Any] | None = None
    """Allocates `out` for `run`, if it can leave its results on the device for later; None if it returns them."""


@dataclass(frozen=True)
class Choice:
    """The implementation that serves an op, and why it was chosen."""

    name: str
    """"reference", "triton" or "cpu"."""
    run: Callable[..., Any]
    """The implementation itself; see `Variant`."""
    why: str
    """One line for `Model.report()`: "asked for", or why the faster ones were not chosen."""
    allocate: Callable[..., Any] | None = None
    """Allocates `out` for `run`; see `Variant`."""


@dataclass(frozen=True)
class Op:
    """The record of one op."""

    name: str
    """Name of the op in `maskjet.ops`."""
    public: Callable[..., Any]
    """The function users call; checks its arguments and picks an implementation."""
    variants: Mapping[str, Variant]
    """Implementations by name, fastest first, ending with "reference", which serves every input."""

    def choose(self, implementation: str, sample: torch.Tensor) -> Choice:
        """Choose the implementation for `sample`, the op's first tensor or an empty one of its device and dtype.

        `implementation` is "auto" for the fastest that serves the sample, or the name of one.

        Raises:
            InputError: The op has no implementation of that name.
            UnsupportedError: The implementation asked for can't serve the input.
        """
        if implementation == "auto":
            return self._fastest(sample)
        if implementation not in self.variants:
            known = ", ".join(repr(name) for name in ("auto", *self.variants))
            raise InputError(f"implementation must be one of {known} for ops.{self.name}, got {implementation!r}.")
        variant = self.variants[implementation]
        reason = variant.refuse(sample)
        if reason is not None:
            raise UnsupportedError(
                f"implementation={implementation!r} can't run ops.{self.name} here: {reason}. "
                "Use 'auto' to take the fastest that can."
            )
        return Choice(implementation, variant.run, "asked for", variant.allocate)

    def _fastest(self, sample: torch.Tensor) -> Choice:
        refusals: list[str] = []
        for name, variant in self.variants.items():
            reason = variant.refuse(sample)
            if reason is None:
                return Choice(name, variant.run, "; ".join(refusals) or "fastest", variant.allocate)
            refusals.append(f"not {name}: {reason}")
        raise UnsupportedError(f"ops.{self.name} has no implementation for this input: {'; '.join(refusals)}.")


def name_of(dtype: torch.dtype) -> str:
    """Name of a dtype for messages, such as "float32"."""
    return str(dtype).removeprefix("torch.")


def describe(value: object) -> str:
    """Describe an argument in messages: a tensor's dtype, shape and device; another value's type."""
    if not isinstance(value, torch.Tensor):
        return type(value).__name__
    return f"{name_of(value.dtype)} {list(value.shape)} on {value.device}"


def needs_cpu(sample: torch.Tensor) -> str | None:
    """Refuse tensors that are not on the CPU, for implementations that read host memory."""
    return None if sample.device.type == "cpu" else f"it needs tensors on the CPU, got {sample.device}"
