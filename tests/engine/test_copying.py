"""Copying frames into one piece of memory: every byte, any strides, and no threads left over."""

import threading

import numpy as np
import pytest
import torch

from maskjet.engine import copying
from maskjet.engine.copying import Copier
from tests.threads import run_at_once


@pytest.mark.parametrize(
    ("sizes", "all_cores"),
    [
        ([(1, 1), (3, 5)], True),
        ([(3, 5)], False),
        ([(1, 99_999), (401, 503)], False),
        ([(720, 1280), (1, 1), (3, 700)], False),
        ([(720, 1280), (1, 1), (3, 700)], True),
    ],
)
def test_every_byte_arrives(sizes, all_cores):
    draw = np.random.default_rng(0).integers
    images = [torch.from_numpy(draw(0, 256, (*size, 3), np.uint8)) for size in sizes]
    images.append(torch.from_numpy(draw(0, 256, (*sizes[0][::-1], 3), np.uint8)).transpose(0, 1))
    offsets, end = [], 5
    for image in images:
        offsets.append(end)
        end += image.nbytes + 11
    with torch.inference_mode():  # as in a slot
        memory = torch.full((end,), 7, dtype=torch.uint8)
        copier = Copier()
        copier.copy(memory, offsets, images, all_cores=all_cores)
        copier.close()
    memory = memory.clone()
    for offset, image in zip(offsets, images, strict=True):
        given = memory[offset : offset + image.nbytes]
        assert torch.equal(given.view(image.shape), image)
        given.fill_(7)
    assert (memory == 7).all()  # the gaps are as before


@pytest.mark.parametrize(("size", "alone"), [((176, 312), True), ((720, 1280), False)])
def test_a_small_batch_is_copied_by_one_thread_even_where_all_are_free(monkeypatch, size, alone):
    copied, move = [], copying.ctypes.memmove
    monkeypatch.setattr(copying.ctypes, "memmove", lambda *given: (copied.append(given), move(*given)))
    monkeypatch.setattr(copying, "_copy_memory", None)  # which would import numba
    images = [torch.full((*size, 3), number, dtype=torch.uint8) for number in (1, 2)]
    memory = torch.zeros(2, *images[0].shape, dtype=torch.uint8)
    Copier().copy(memory.view(-1), [0, images[0].nbytes], [images[0], images[1].mT.mT], all_cores=True)
    assert torch.equal(memory, torch.stack(images))
    assert len(copied) == 2 * alone


@pytest.mark.parametrize("offsets", [[0, 720 * 1280 * 3 + 1], [-1, 0]])
def test_images_that_do_not_fit_are_refused_before_a_byte_is_copied(offsets):
    copier = Copier()
    images = torch.ones(2, 720, 1280, 3, dtype=torch.uint8)
    memory = torch.full((images.nbytes,), 7, dtype=torch.uint8)
    with pytest.raises(ValueError, match="images must end within 5529600 bytes, got offsets"):
        copier.copy(memory, offsets, images.unbind(), all_cores=False)
    assert (memory == 7).all()
    copier.close()


def test_streams_share_the_helper():
    copier, images = Copier(), [torch.full((4, 720, 1280, 3), n, dtype=torch.uint8) for n in range(4)]

    def work(number):
        rows = torch.empty_like(images[0])
        for turn in range(8):
            image = images[(number + turn) % 4]
            copier.copy(rows.fill_(9).view(-1), range(0, rows.nbytes, rows[0].nbytes), image.unbind(), all_cores=False)
            assert torch.equal(rows, image)

    run_at_once(work, range(3))
    copier.close()


def test_nobody_waits_for_a_helper_that_does_not_come(monkeypatch):
    monkeypatch.setattr(Copier, "_start", lambda _: None)
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (720, 1280, 3), np.uint8))
    row = torch.zeros_like(image)
    Copier().copy(row.view(-1), [0], [image], all_cores=False)
    assert torch.equal(row, image)


@pytest.mark.parametrize("is_closed", [True, False])
def test_threads_end(is_closed):
    """Also the helper of a copier that nobody closes."""
    copier = Copier()
    image = torch.zeros(720, 1280, 3, dtype=torch.uint8)
    copier.copy(image.clone().view(-1), [0], [image], all_cores=False)
    helper = copier._helper
    assert helper.name.startswith("maskjet-copy")
    if is_closed:
        copier.close()
        copier.close()
        assert not any(thread.name.startswith("maskjet-copy") for thread in threading.enumerate())
    del copier
    helper.join(10)
    assert not helper.is_alive()
