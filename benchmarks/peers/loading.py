"""Import peers, load weights into them, and keep their global settings to themselves.

Both projects set PyTorch's float32 products to "high" (TF32 on a GPU) for the whole process when they are imported.
Here only they run under that setting.
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
"""The only architecture that all peers can run."""
TF32 = "high"
"""PyTorch's name for float32 products in TF32."""


def load_module(module: str, package: str) -> ModuleType:
    """Import a peer's module.

    Args:
        module: Dotted name of the module.
        package: Name of the package to install.

    Returns:
        The module.

    Raises:
        UnsupportedError: The module can't be imported, with the reason.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a peer's warnings are not maskjet's
            return importlib.import_module(module)
    except Exception as error:  # dependencies of the peer may raise anything
        raise UnsupportedError(f"{module} can't be imported, {error}: pip install {package}") from error


def check_spec(spec: ModelSpec) -> None:
    """Check that the peers can run an architecture.

    Raises:
        UnsupportedError: They can't.
    """
    if replace(spec, name=NANO.name, class_names=NANO.class_names) != NANO:
        raise UnsupportedError(f"the peers run {NANO.name} only, got {spec.name}, whose architecture differs.")


@torch.no_grad()
def fill(module: Any, state: Mapping[str, torch.Tensor]) -> None:
    """Copy weights into a peer's module; only the first of its 13 query groups is set, the one inference uses."""
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
    """Set the precision of float32 products, and restore the former one at the end."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision(precision)
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
