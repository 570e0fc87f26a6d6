"""Frames that a table describes: each as it is by itself, whatever lies beside it in memory or in the batch."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from maskjet import ops
from maskjet.ops.canvas import Letterbox, stretch
from maskjet.ops.frame_table import ROW, DeviceFrames, FrameTable, pack_row
from maskjet.ops.preprocess import triton as preprocess
from maskjet.ops.preprocess.yuv import YUVFrames
from tests.ops.frames import NORMALISATION, conversions

INPUT_HW = (24, 32)
COLOURS = [("bt601", False), ("bt709", True), ("bt2020", False)]
# How a frame may lie in memory: (transposed, rows reversed, columns reversed).
TURNS = [(transposed, up, left) for transposed in (False, True) for up in (False, True) for left in (False, True)]

frames = st.tuples(st.integers(1, 60), st.integers(1, 60), st.sampled_from(TURNS), st.sampled_from(COLOURS))


def table_of(rows, padding, device):
    """A table of (packed row, size, canvas, addresses)."""
    table = FrameTable(torch.zeros(len(rows), ROW, dtype=torch.int32), device, padding)
    for number, row in enumerate(rows):
        table.put(number, *row)
    table.upload()
    return table


def preprocessed(table, is_yuv, resample):
    out = torch.full((len(table.rows), 3, *INPUT_HW), torch.nan, device=table.rows.device)
    given = {"mean": NORMALISATION["mean"], "std": NORMALISATION["std"], "order": "rgb", "resample": resample}
    preprocess.preprocess(DeviceFrames(table, is_yuv=is_yuv), out, **given)
    return out


def check(described, is_yuv, letterbox, resample, device, seed):
    """Frames within garbage, in any strides, one behind the other: inputs are those of each frame alone."""
    memory = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, 200_000, dtype=np.uint8)).to(device)
    rows, alone, begin = [], [], 7
    for height, width, (transposed, up, left), colours in described:
        if is_yuv:
            height, width, transposed, up, left = 2 * height, 2 * width, False, False, False
        region = letterbox.region((height, width), INPUT_HW) if letterbox else stretch(INPUT_HW)
        canvas = region.canvas((height, width), INPUT_HW)
        options = {"size": INPUT_HW, **NORMALISATION, "letterbox": letterbox, "resample": resample}
        if is_yuv:
            pitch = width + 6
            planes = memory[begin : begin + pitch * height * 3 // 2].view(height * 3 // 2, pitch)[:, :width]
            conversion = conversions(colours)[0].to(device)
            frame = YUVFrames.within(planes, conversion)
            address = planes.data_ptr()
            chroma = (pitch, 2, 1, *conversion.flatten().tolist())
            packed = pack_row((height, width), (pitch, 1, 0), region, canvas, chroma)
            rows.append((packed, (height, width), canvas, address, address + height * pitch))
            begin += pitch * height * 3 // 2
        else:
            lies_hw = (width, height) if transposed else (height, width)
            size = 3 * height * width
            lying = memory[begin : begin + size].view(*lies_hw, 3)
            shown = lying.transpose(0, 1) if transposed else lying
            down, across, channel = shown.stride()
            address = shown.data_ptr() + (height - 1) * down * up + (width - 1) * across * left
            strides = (-down if up else down, -across if left else across, channel)
            frame = shown.flip([axis for axis, flips in ((0, up), (1, left)) if flips])
            rows.append((pack_row((height, width), strides, region, canvas), (height, width), canvas, address, 0))
            begin += size
        begin += 5
        alone.append(ops.preprocess(frame, **options, implementation="triton"))
    padding = letterbox.region((1, 1), INPUT_HW).padding if letterbox else (0.0, 0.0, 0.0)
    table = table_of(rows, padding, device)
    assert torch.equal(preprocessed(table, is_yuv, resample), torch.cat(alone))
    assert table.sizes.on_device.tolist() == [list(size_hw) for _, size_hw, *_ in rows]
    for row, canvas in zip(table.sizes.canvases_on_device.tolist(), table.sizes.canvases, strict=True):
        assert row == torch.tensor(canvas.split, dtype=torch.float32).tolist()


@settings(max_examples=6, deadline=None)
@given(
    st.lists(frames, min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([None, Letterbox(), Letterbox((1, 2, 250), "top-left")]),
    st.sampled_from(["bilinear", "cv2", "antialias"]),
    st.integers(0, 99),
)
def test_frames_are_found_by_their_rows(described, is_yuv, letterbox, resample, seed):
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    check(described, is_yuv, letterbox, resample, device, seed)


@pytest.mark.gpu
@settings(max_examples=200, deadline=None)
@given(
    st.lists(frames, min_size=1, max_size=16),
    st.booleans(),
    st.sampled_from([None, Letterbox()]),
    st.sampled_from(["bilinear", "cv2", "antialias"]),
    st.integers(0, 99),
)
def test_many_frames_are_found_by_their_rows(described, is_yuv, letterbox, resample, seed):
    check(described, is_yuv, letterbox, resample, torch.device("cuda"), seed)


def test_rows_past_the_last_frame_say_what_the_first_one_says(device):
    """Those of an earlier batch may have been freed."""
    region = stretch(INPUT_HW)
    table = FrameTable(torch.zeros(3, ROW, dtype=torch.int32), device, (0.0, 0.0, 0.0))
    for sizes in ([(4, 5), (60, 70), (8, 9)], [(2, 3)]):
        for number, size_hw in enumerate(sizes):
            canvas = region.canvas(size_hw, INPUT_HW)
            table.put(number, pack_row(size_hw, (0, 0, 0), region, canvas), size_hw, canvas, 1000 + number)
        table.fill(len(sizes))
        table.upload()
    assert torch.equal(table.rows, table.rows[:1].expand(3, ROW))
    assert table.sizes.hw == [(2, 3)] * 3
