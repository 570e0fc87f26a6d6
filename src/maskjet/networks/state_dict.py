"""Read untrusted state dicts: unwrap names, check shapes and dtypes, copy tensors to float32."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from maskjet import limits
from maskjet.checks import shown
from maskjet.errors import CheckpointError
from maskjet.host.printing import sanitise

# Prefixes that DistributedDataParallel, torch.compile and Lightning put before a parameter's name.
_WRAPPERS = {"module", "_orig_mod", "model"}
_DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)


class NoInitialisation(TorchFunctionMode):
    """Skip PyTorch's random initialisation: on the meta device it imports torch._dynamo, which takes seconds."""

    def __torch_function__(self, func: Any, _types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if getattr(func, "__module__", None) == "torch.nn.init":
            return (args or list(kwargs.values()))[0]
        return func(*args, **(kwargs or {}))


def named_tensors(content: Mapping[Any, Any], path: Path) -> dict[str, Tensor]:
    """The tensors of a file's state dict: under "model", under Lightning's "state_dict", or the file's dictionary.

    Raises:
        CheckpointError: It has none, or a name is no text.
    """
    state = content.get("model", content.get("state_dict", content))
    if not _holds_tensors(state):
        elsewhere = [name for name, value in content.items() if _holds_tensors(value)]
        hint = f"; those under {shown(elsewhere[0])} would serve if they were saved as 'model'" if elsewhere else ""
        raise CheckpointError(f"weights must hold named tensors, {str(path)!r} holds none under 'model'{hint}.")
    for name in state:
        if not isinstance(name, str):
            raise CheckpointError(f"weights must name their tensors by texts, got {shown(name)}.")
    return {name: value for name, value in state.items() if isinstance(value, Tensor)}


def _holds_tensors(state: object) -> bool:
    return isinstance(state, dict) and any(isinstance(value, Tensor) for value in state.values())


def unwrap(state: Mapping[str, Tensor], parameter: str) -> dict[str, Tensor]:
    """Strip wrapper prefixes from parameter names, found by the prefix of a known `parameter`.

    If it is there behind several prefixes, those behind the shortest are taken, and the others left out.

    Raises:
        CheckpointError: Two have the same name then.
    """
    prefixes = [name.removesuffix(parameter) for name in state if name.endswith(parameter)]
    prefix = min((each for each in prefixes if _WRAPPERS.issuperset(each.split(".")[:-1])), key=len, default="")
    inside = {name: tensor for name, tensor in state.items() if name.startswith(prefix)}
    return rename(inside, lambda name: name.removeprefix(prefix).replace("_orig_mod.", ""))


def rename(state: Mapping[str, Tensor], new_name: Callable[[str], str]) -> dict[str, Tensor]:
    """Rename parameters by a function.

    Raises:
        CheckpointError: Two have the same name then.
    """
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        ours = new_name(name)
        if ours in renamed:
            raise CheckpointError(f"weights must name each parameter once, {sanitise(ours)} is there twice.")
        renamed[ours] = tensor
    return renamed


def check_state(
    state: Mapping[str, Tensor],
    expected: Mapping[str, torch.Size],
    name: str,
    path: Path,
    may_differ: Callable[[str, Tensor, torch.Size], bool] = lambda *_: False,
) -> None:
    """Check a state dict for exactly the network's parameters, with their shapes, in floating point.

    Only names, shapes and types are looked at; `may_differ` says whether a tensor of another shape is right, too.

    Raises:
        CheckpointError: It has not; the first is named. Or the network is larger than `limits.checkpoint_bytes`.
    """
    where = f"{str(path)!r} does not fit {name}"
    for key, shape in expected.items():
        if key not in state:
            raise CheckpointError(f"weights must hold every parameter, {where}: {key} is missing.")
        tensor = state[key]
        if tensor.shape != shape and not may_differ(key, tensor, shape):
            raise CheckpointError(
                f"weights must have the network's shapes, {where}: {key} must be {list(shape)}, "
                f"got {list(tensor.shape)}."
            )
        if tensor.dtype not in _DTYPES:
            raise CheckpointError(f"weights must be floating-point numbers, {where}: {key} is {tensor.dtype}.")
    foreign = sorted(state.keys() - expected.keys())
    if foreign:
        first = sanitise(foreign[0])
        raise CheckpointError(f"weights must hold this network's parameters only, {where}: {first} is foreign.")
    taken = 4 * sum(shape.numel() for shape in expected.values())  # bytes in float32
    limits.check("checkpoint_bytes", taken, f"the network of {str(path)!r} has", CheckpointError)


def copy_finite(name: str, tensor: Tensor) -> Tensor:
    """Copy a parameter to float32; raises CheckpointError if a value is not finite."""
    copied = tensor.detach().to(torch.float32, copy=True)
    # By NumPy: PyTorch's OpenMP threads wait for the slowest core, 3 s in all beside `compilers`.
    if not np.isfinite(copied.numpy()).all():
        raise CheckpointError(
            f"weights must be finite in float32, {name} holds NaN or infinity; its training diverged."
        )
    return copied


def digest_weights(network: Any) -> str:
    """SHA-256 of a network's weights on the CPU and their names, or of its exported file: 16 hexadecimal digits."""
    if not isinstance(network, torch.nn.Module):
        digest: str = network.digest()
        return digest
    found = hashlib.sha256()
    for name, tensor in sorted(network.state_dict().items()):
        found.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode())
        found.update(tensor.contiguous().numpy().tobytes())
    return found.hexdigest()[:16]
