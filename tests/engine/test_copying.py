"""Copying frames into a batch: every byte, any strides, and no threads left over."""

import threading

import numpy as np
import pytest
import torch

from maskjet.engine import copying
from maskjet.engine.copying import Copier, Rows
from tests.threads import run_at_once


@pytest.mark.parametrize(
    ("size", "all_cores"),
    [
        ((1, 1), True),
        ((3, 5), False),
        ((1, 99_999), True),
        ((401, 503), False),
        ((720, 1280), False),
        ((720, 1280), True),
    ],
)
def test_every_byte_arrives(size, all_cores):
    images = [torch.from_numpy(np.random.default_rng(n).integers(0, 256, (*size, 3), np.uint8)) for n in range(2)]
    images.append(
        torch.from_numpy(np.random.default_rng(9).integers(0, 256, (*size[::-1], 3), np.uint8)).transpose(0, 1)
    )
    with torch.inference_mode():  # as in a slot
        batch = torch.full((5, *size, 3), 7, dtype=torch.uint8)
        copier = Copier()
        copier.copy(Rows(batch[1:]), images, all_cores=all_cores)
        copier.close()
    assert (batch[[0, 4]] == 7).all()
    for row, image in zip(batch[1:4], images, strict=True):
        assert torch.equal(row, image)


@pytest.mark.parametrize(("size", "alone"), [((176, 312), True), ((720, 1280), False)])
def test_a_small_batch_is_copied_by_one_thread_even_where_all_are_free(monkeypatch, size, alone):
    copied = []
    monkeypatch.setattr(copying, "_copy_memory", lambda *batch: copied.append(batch))
    image = torch.zeros(*size, 3, dtype=torch.uint8)
    Copier().copy(Rows(image[None].clone()), [image], all_cores=True)
    assert len(copied) == alone


@pytest.mark.parametrize(
    "wrong", [torch.zeros(720, 1281, 3, dtype=torch.uint8), torch.zeros(720, 1280, 3, dtype=torch.int8)]
)
def test_an_image_that_is_not_as_its_row_is_refused_before_a_byte_is_copied(wrong):
    copier = Copier()
    rows = torch.full((2, 720, 1280, 3), 7, dtype=torch.uint8)
    with pytest.raises(ValueError, match=r"images must be torch.uint8 \[720, 1280, 3\], got torch.u?int8 \[720, 128"):
        copier.copy(Rows(rows), [rows[0].clone() + 1, wrong], all_cores=False)
    assert (rows == 7).all()
    copier.close()


def test_streams_share_the_helper():
    copier, images = Copier(), [torch.full((4, 720, 1280, 3), n, dtype=torch.uint8) for n in range(4)]

    def work(number):
        rows = torch.empty_like(images[0])
        for turn in range(8):
            image = images[(number + turn) % 4]
            copier.copy(Rows(rows.fill_(9)), image.unbind(), all_cores=False)
            assert torch.equal(rows, image)

    run_at_once(work, range(3))
    copier.close()


def test_nobody_waits_for_a_helper_that_does_not_come(monkeypatch):
    monkeypatch.setattr(Copier, "_start", lambda _: None)
    image = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (720, 1280, 3), np.uint8))
    row = torch.zeros_like(image)
    Copier().copy(Rows(row[None]), [image], all_cores=False)
    assert torch.equal(row, image)


@pytest.mark.parametrize("is_closed", [True, False])
def test_threads_end(is_closed):
    """Also the helper of a copier that nobody closes."""
    copier = Copier()
    image = torch.zeros(720, 1280, 3, dtype=torch.uint8)
    copier.copy(Rows(image.clone()[None]), [image], all_cores=False)
    helper = copier._helper
    assert helper.name.startswith("maskjet-copy")
    if is_closed:
        copier.close()
        copier.close()
        assert not any(thread.name.startswith("maskjet-copy") for thread in threading.enumerate())
    del copier
    helper.join(10)
    assert not helper.is_alive()
