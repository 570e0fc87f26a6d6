"""Copying frames into a batch: every byte, any strides, and no threads left over."""

import threading

import numpy as np
import pytest
import torch

from maskjet.engine.slot import Copier


@pytest.mark.parametrize("all_cores", [False, True])
@pytest.mark.parametrize("size", [(1, 1), (3, 5), (176, 312), (1, 99_999), (401, 503), (720, 1280)])
def test_every_byte_arrives(size, all_cores):
    images = [torch.from_numpy(np.random.default_rng(n).integers(0, 256, (*size, 3), np.uint8)) for n in range(2)]
    images.append(
        torch.from_numpy(np.random.default_rng(9).integers(0, 256, (*size[::-1], 3), np.uint8)).transpose(0, 1)
    )
    with torch.inference_mode():  # as in a slot, but not in the helping thread
        batch = torch.full((5, *size, 3), 7, dtype=torch.uint8)
        copier = Copier()
        copier.copy(batch[1:].unbind(), images, all_cores=all_cores)
        copier.close()
    assert (batch[[0, 4]] == 7).all()
    for row, image in zip(batch[1:4], images, strict=True):
        assert torch.equal(row, image)


def test_a_failure_of_a_helper_is_not_lost():
    copier = Copier()
    row, image = torch.zeros(720, 1280, 3, dtype=torch.uint8), torch.zeros(720, 1281, 3, dtype=torch.uint8)
    with pytest.raises(ValueError, match="could not broadcast"):
        copier.copy([row], [image], all_cores=False)
    copier.close()


def test_threads_end():
    copier = Copier()
    image = torch.zeros(720, 1280, 3, dtype=torch.uint8)
    copier.copy([image.clone()], [image], all_cores=False)
    assert any(thread.name.startswith("maskjet-copy") for thread in threading.enumerate())
    copier.close()
    copier.close()
    assert not any(thread.name.startswith("maskjet-copy") for thread in threading.enumerate())
