"""Which implementations take tensors on the CPU on this machine."""

import torch

from tests.ops.network import OPS


def on_cpu(name):
    """An op's implementations; where there is a GPU the kernels are compiled for it, so they aren't interpreted."""
    return [variant for variant in OPS[name].variants if variant != "triton" or not torch.cuda.is_available()]
