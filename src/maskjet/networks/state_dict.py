"""State dicts from outside: names unwrapped, shapes and types checked, tensors copied to what a network takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from maskjet.errors import CheckpointError
from maskjet.printing import sanitise

# Prefixes that DistributedDataParallel, torch.compile and Lightning put before a parameter's name.
_WRAPPERS = {"module", "_orig_mod", "model"}
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class NoInitialisation(TorchFunctionMode):
    """Skip PyTorch's random initialisation: on the meta device it imports torch._dynamo, which takes seconds."""

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return (args or list(kwargs.values()))[0]
        return func(*args, **(kwargs or {}))


def find_prefix(state: Mapping[str, Tensor], parameter: str) -> str:
    """The wrappers' prefix in a state dict that has a parameter; the shortest if there are several."""
    prefixes = [name.removesuffix(parameter) for name in state if name.endswith(parameter)]
    return min((each for each in prefixes if _WRAPPERS.issuperset(each.split(".")[:-1])), key=len, default="")


def strip_prefix(state: Mapping[str, Tensor], prefix: str) -> dict[str, Tensor]:
    """The parameters behind a prefix, by their names without it and without torch.compile's wrappers.

    Raises:
        CheckpointError: Two have the same name then.
    """
    stripped: dict[str, Tensor] = {}
    for name, tensor in state.items():
        ours = name.removeprefix(prefix).replace("_orig_mod.", "")
        if name.startswith(prefix) and ours in stripped:
            raise CheckpointError(f"weights must name each parameter once, {sanitise(ours)} is there twice.")
        if name.startswith(prefix):
            stripped[ours] = tensor
    return stripped


def check_state(
    state: Mapping[str, Tensor],
    expected: Mapping[str, torch.Size],
    where: str,
    may_differ: Callable[[str, Tensor, torch.Size], bool] = lambda *_: False,
) -> None:
    """Check that a state dict has a network's parameters, no others, in its shapes, as floating-point numbers.

    Args:
        state: The state dict; only names, shapes and types are looked at.
        expected: Shapes by name.
        where: What does not fit, for the message.
        may_differ: Whether a tensor of another shape is right, too.

    Raises:
        CheckpointError: It has not; the first is named.
    """
    for name, shape in expected.items():
        if name not in state:
            raise CheckpointError(f"weights must hold every parameter, {where}: {name} is missing.")
        tensor = state[name]
        if tensor.shape != shape and not may_differ(name, tensor, shape):
            raise CheckpointError(
                f"weights must have the network's shapes, {where}: {name} must be {list(shape)}, "
                f"got {list(tensor.shape)}."
            )
        if tensor.dtype not in _DTYPES:
            raise CheckpointError(f"weights must be floating-point numbers, {where}: {name} is {tensor.dtype}.")
    foreign = sorted(state.keys() - expected.keys())
    if foreign:
        raise CheckpointError(
            f"weights must hold this network's parameters only, {where}: {sanitise(foreign[0])} is foreign."
        )


def copy_finite(name: str, tensor: Tensor) -> Tensor:
    """Copy a parameter to float32.

    Raises:
        CheckpointError: A value is not finite.
    """
    copied = tensor.detach().to(torch.float32, copy=True)
    if not bool(copied.isfinite().all()):
        raise CheckpointError(
            f"weights must be finite in float32, {name} holds NaN or infinity; its training diverged."
        )
    return copied
