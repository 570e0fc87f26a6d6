"""Colours and pixel shapes of annotated video: as the source's, whatever it says or leaves out."""

from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter

from maskjet.sources.colours import PictureFormat, guess_picture_format, is_hd
from maskjet.sources.frames import Frame, ListSource, open_source
from tests.detections.test_detections import some_detections
from tests.outputs.outputs import annotate, write
from tests.sources.clips import read, remux

pytestmark = pytest.mark.usefixtures("in_folder")
BT709, BT470BG, SMPTE170M, BT2020 = 1, 5, 6, 9
HD, SD = (720, 1280), (480, 640)
SMALL = (96, 256)
GREY, BLACK = (191, 191, 191), (16, 16, 16)
BARS = [GREY, (191, 191, 0), (0, 191, 191), (0, 191, 6), (191, 0, 191), (191, 0, 0), (0, 0, 191), BLACK]
LEVELS = 3  # 8 bits of YCbCr and back


def bars(size_hw):
    height, width = size_hw
    return np.repeat(np.array(BARS, np.uint8), width // len(BARS), axis=0)[None].repeat(height, axis=0)


def middles(image):
    """The colour in each bar's middle."""
    step = image.shape[1] // len(BARS)
    return image[image.shape[0] // 2, step // 2 :: step].astype(int)


def write_source(path, size_hw, look, *, tags=True):
    """A video of bars, encoded and tagged as a look says, by swscale alone."""
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=30, options={"preset": "ultrafast", "crf": "10"})
        stream.height, stream.width = size_hw
        stream.pix_fmt = "yuv420p"
        context, matrix, levels = stream.codec_context, look.matrix, 2 if look.is_full_range else 1
        if tags:
            context.colorspace, context.color_primaries, context.color_trc = matrix, look.primaries, look.transfer
            context.color_range, context.sample_aspect_ratio = levels, look.pixel_aspect
        rgb = av.VideoFrame.from_ndarray(bars(size_hw), format="rgb24")
        colours = {"dst_colorspace": matrix if matrix in (BT709, BT2020) else BT470BG, "dst_color_range": levels}
        picture = VideoReformatter().reformat(rgb, format="yuv420p", **colours)
        container.mux(stream.encode(picture) + stream.encode(None))
    return path


def decode(path):
    """The picture of a video, its stream's tags, and its pixels as a player shows them that honours the tags."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        picture = next(container.decode(stream))
        tags = picture.colorspace, int(picture.color_primaries), int(picture.color_trc), picture.color_range == 2
        return PictureFormat(*tags, stream.sample_aspect_ratio), VideoReformatter().reformat(
            picture, format="rgb24"
        ).to_ndarray()


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".mov"])
@pytest.mark.parametrize("is_full_range", [False, True])
@pytest.mark.parametrize(("matrix", "transfer"), [(BT709, 1), (SMPTE170M, 6), (BT470BG, 6), (BT2020, 14)])
def test_bars_there_and_back(matrix, transfer, is_full_range, suffix):
    look = PictureFormat(matrix, matrix, transfer, is_full_range, Fraction(4, 3))
    tags, given = decode(write_source("source.mp4", SMALL, look))
    assert tags == look
    annotate("source.mp4", f"out{suffix}", instances=0)
    tags, shown = decode(f"out{suffix}")
    assert tags == look
    np.testing.assert_allclose(middles(shown), BARS, atol=2 * LEVELS)
    np.testing.assert_allclose(middles(shown), middles(given), atol=LEVELS)


@pytest.mark.parametrize(("size_hw", "matrix"), [(HD, BT709), (SD, SMPTE170M)])
def test_what_says_nothing_is_written_as_players_take_it(size_hw, matrix):
    write(["out.mp4"], [Frame(0, None, bars(size_hw), "s", "n")], some_detections(0, size=size_hw))
    tags, shown = decode("out.mp4")
    assert tags == replace(guess_picture_format(size_hw), matrix=matrix)
    np.testing.assert_allclose(middles(shown), BARS, atol=LEVELS)


def test_a_turned_video_has_turned_pixels():
    source = write_source("source.mp4", SMALL, PictureFormat(SMPTE170M, 6, 6, pixel_aspect=Fraction(4, 3)))
    annotate(remux("turned.mp4", source, prepare=lambda stream: stream.set_display_rotation(90)), "out.mp4")
    assert decode("out.mp4")[0].pixel_aspect == Fraction(3, 4)


def test_a_list_has_the_look_of_its_first_video():
    look = PictureFormat(BT709, BT709, BT709, True, Fraction(1))
    source = ListSource([str(write_source("a.mp4", SMALL, look))], "list")
    assert source.picture_format is None
    assert len(list(source)) == 1
    assert source.picture_format == look


@pytest.mark.parametrize(("size_hw", "matrix"), [(HD, BT709), (SMALL, SMPTE170M)])
def test_a_video_that_says_nothing_is_decoded_as_players_do(size_hw, matrix):
    (frame,) = open_source(write_source("a.mp4", size_hw, PictureFormat(matrix, matrix, matrix), tags=False))
    np.testing.assert_allclose(middles(frame.image), BARS, atol=LEVELS)


@pytest.mark.parametrize("matrix", [3, 8, 13, 100])
def test_a_matrix_that_is_none_is_guessed(matrix):
    source, (frame,) = read(write_source("a.mp4", SMALL, PictureFormat(matrix, 99, 99)))
    assert source.picture_format == guess_picture_format(SMALL)
    np.testing.assert_allclose(middles(frame.image), BARS, atol=LEVELS)


def test_what_is_hd():
    assert not is_hd((576, 720))
    assert all(is_hd(size_hw) for size_hw in [(720, 1280), (544, 1280), (640, 360)])
