"""The networks maskjet runs, by family: inference only, static shapes, capturable.

`maskjet.load` and `maskjet.Model` know families by this registry alone. A new family is a package with a module
`family` that has the functions of `Family`, and a line in `_FAMILIES`.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

from maskjet.errors import InputError

if TYPE_CHECKING:
    from maskjet.config import EngineConfig
    from maskjet.engine.steps import Steps
    from maskjet.postprocessing import Postprocessing
    from maskjet.spec import ModelSpec, TwoStageSpec

_FAMILIES = ("exported", "rfdetr", "torchvision")  # order in which families are tried


class Network(Protocol):
    """A network of any family, in eval mode, float32, on the CPU."""

    @property
    def spec(self) -> ModelSpec | TwoStageSpec:
        """The network's input, limits and classes."""


class Family(Protocol):
    """Loader of one family of networks; implemented by the modules `networks.*.family`."""

    def serves(self, model: object) -> bool:
        """Whether this family handles a network, or an argument of `maskjet.load`."""

    def load(
        self, model: Any, weights: str | os.PathLike[str] | None = None, input_size: tuple[int, int] | None = None
    ) -> Network:
        """Make the network for the arguments of `maskjet.load`; the caller owns it.

        Raises:
            InputError: The arguments don't go together.
            CheckpointError: The weights can't be read.
        """

    def make_steps(self, network: Any, config: EngineConfig, postprocessing: Postprocessing) -> Steps:
        """Move a network to its device, and build the steps from frames to detections."""


def find_family(model: object) -> Family:
    """Find the family of a network, or of an argument of `maskjet.load`; imports only the families it tries.

    A name that starts with a family's and a colon, as "torchvision:maskrcnn_resnet50_fpn", is that family's.

    Raises:
        InputError: No family serves it.
    """
    prefix, colon, _ = model.partition(":") if isinstance(model, str) else ("", "", "")
    for name in (prefix,) if colon and prefix in _FAMILIES else _FAMILIES:
        family: Any = import_module(f"maskjet.networks.{name}.family")
        if family.serves(model):
            found: Family = family
            return found
    raise InputError(f"model must be a name, a path or a torchvision detector, got a {type(model).__name__}.")


def read_network(
    model: str | os.PathLike[str],
    weights: str | os.PathLike[str] | None = None,
    input_size: tuple[int, int] | None = None,
) -> Any:
    """Read a network by name or path, as `maskjet.load` does.

    Returns:
        The network in eval mode, float32, on the CPU, of its family's class.

    Raises:
        InputError: Neither a known name nor a file; or a name without weights, or weights without a name; or the
            network can't have that input.
        CheckpointError: The weights are missing, truncated, foreign or of another size.
    """
    from maskjet.engine.isolation import isolated  # imports PyTorch, which `maskjet --help` does not need

    with isolated(inference=False):
        return find_family(model).load(model, weights, input_size)
