"""A network that makes the GPU fail on the sixth frame, in the middle of a stream."""

import sys

import numpy as np
import torch

from maskjet.config import EngineConfig
from maskjet.errors import DeviceError
from maskjet.model import Model
from tests.networks.test_network import tiny_network

network = tiny_network()
forward = network.forward


def failing(images):
    """Read far out of bounds where the frame is white."""
    is_white = (images.amin() > 2).long()
    poison = torch.zeros(4, device=images.device).index_select(0, (is_white * 10**6)[None])
    return forward(images + 0 * poison.to(images.dtype))


network.forward = failing
model = Model(network, EngineConfig(device="cuda", compile=False, precision="fp32"), threshold=0.02)
frames = [np.random.default_rng(seed).integers(0, 200, (40, 50, 3), np.uint8) for seed in range(10)]
frames[5].fill(255)
seen = 0
try:
    for _ in model.stream(iter(frames), depth=1):
        seen += 1
except DeviceError as error:
    sys.stdout.write(f"stream: DeviceError at frame {error.index} after {seen}\n")
try:
    model.predict(frames[0])
except DeviceError:
    sys.stdout.write("again: DeviceError\n")
