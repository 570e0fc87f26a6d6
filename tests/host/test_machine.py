"""What a report says of the machine."""

from dataclasses import replace

import pytest
import torch

from maskjet.host.machine import Gpu, describe_machine

GPU = Gpu(name="NVIDIA T4", driver="580.1", cuda="13.0", triton="3.6.0")


def test_a_gpu_is_named_first():
    here = describe_machine()
    assert str(replace(here, gpu=GPU)).startswith(f"NVIDIA T4; {here.cpu}, ")
    assert torch.cuda.is_available() or here.gpu is None
    assert str(replace(here, gpu=None)).startswith(here.cpu)


@pytest.mark.gpu
def test_a_gpu_is_described():
    gpu = describe_machine().gpu
    assert gpu.name == torch.cuda.get_device_name()
    assert gpu.cuda == torch.version.cuda
