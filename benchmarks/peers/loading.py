"""Shared by all peers: importing them, loading weights into them, and keeping their settings from everything else.

Both projects set PyTorch's float32 products to "high" (TF32 on a GPU) for the whole process when they are imported.
Here they run under that setting, and whatever else runs in the process keeps its own.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any

import torch

from maskjet.errors import MaskjetError, UnsupportedError
from maskjet.spec import SPECS, ModelSpec

NANO = SPECS["rf-detr-seg-nano"]
"""The one architecture that all peers have."""
TF32 = "high"
"""PyTorch's name of it."""


def load_module(module: str, package: str) -> ModuleType:
    """Import a peer's module.

    Args:
        module: Its dotted name.
        package: Name of the package to install.

    Returns:
        The module.

    Raises:
        UnsupportedError: It can't be imported; says why.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a peer's warnings are not maskjet's
            return importlib.import_module(module)
    except Exception as error:  # whatever else its own dependencies raise
        raise UnsupportedError(f"{module} can't be imported, {error}: pip install {package}") from error


def check_spec(spec: ModelSpec) -> None:
    """Check that the peers have an architecture.

    Raises:
        UnsupportedError: They have not.
    """
    if replace(spec, name=NANO.name, class_names=NANO.class_names) != NANO:
        raise UnsupportedError(f"the peers run {NANO.name} only, got {spec.name}, whose architecture is another.")


@torch.no_grad()
def fill(module: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Copy weights into a peer's module; of its 13 query groups only the first, which inference uses, is set."""
    theirs = module.state_dict()
    for name, tensor in state.items():
        theirs[name][: len(tensor)] = tensor


@contextmanager
def building(what: str) -> Generator[None]:
    """Build a peer with TF32 products and without its warnings; turn its exceptions into UnsupportedError."""
    try:
        with warnings.catch_warnings(), float32_products(TF32):
            warnings.simplefilter("ignore")
            yield
    except MaskjetError:
        raise
    except Exception as error:
        raise UnsupportedError(f"{what} can't be built here, {type(error).__name__}: {error}") from error


@contextmanager
def float32_products(precision: str) -> Generator[None]:
    """Set the precision of float32 products for a while, then restore the one before."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
