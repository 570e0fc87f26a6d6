"""Colours and pixel shapes of annotated video: as the source's, whatever it says or leaves out."""

from dataclasses import replace
from fractions import Fraction

import av
import numpy as np
import pytest
from av.video.reformatter import VideoReformatter

from maskjet.media.colours import Look, guess_look, is_hd
from maskjet.media.frames import Frame, ListSource, open_source
from maskjet.media.sinks import open_sinks, open_sinks_by_source
from tests.test_detections import some_detections

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
        context = stream.codec_context
        if tags:
            context.colorspace, context.color_primaries, context.color_trc = look.matrix, look.primaries, look.transfer
            context.color_range = 2 if look.is_full_range else 1
            context.sample_aspect_ratio = look.pixel_aspect
        matrix, levels = look.matrix, 2 if look.is_full_range else 1
        rgb = av.VideoFrame.from_ndarray(bars(size_hw), format="rgb24")
        picture = VideoReformatter().reformat(
            rgb,
            format="yuv420p",
            dst_colorspace=matrix if matrix in (BT709, BT2020) else BT470BG,
            dst_color_range=levels,
        )
        container.mux(stream.encode(picture))
        container.mux(stream.encode(None))


def annotate(source, out):
    with open_source(source) as opened, open_sinks_by_source([str(out)], [opened]) as sinks:
        for frame in opened:
            sinks.write(frame, some_detections(0, size=frame.image.shape[:2]))


def decode(path):
    """The picture of a video, its stream's tags, and its pixels as a player shows them that honours the tags."""
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        picture = next(container.decode(stream))
        tags = Look(
            picture.colorspace,
            int(picture.color_primaries),
            int(picture.color_trc),
            picture.color_range == 2,
            stream.sample_aspect_ratio,
        )
        return tags, VideoReformatter().reformat(picture, format="rgb24").to_ndarray()


@pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".mov"])
@pytest.mark.parametrize("is_full_range", [False, True])
@pytest.mark.parametrize(("matrix", "transfer"), [(BT709, 1), (SMPTE170M, 6), (BT470BG, 6), (BT2020, 14)])
def test_bars_there_and_back(matrix, transfer, is_full_range, suffix, tmp_path):
    look = Look(matrix, matrix, transfer, is_full_range, Fraction(4, 3))
    write_source(tmp_path / "source.mp4", SMALL, look)
    assert decode(tmp_path / "source.mp4")[0] == look
    annotate(tmp_path / "source.mp4", tmp_path / f"out{suffix}")
    tags, shown = decode(tmp_path / f"out{suffix}")
    assert tags == look
    np.testing.assert_allclose(middles(shown), BARS, atol=2 * LEVELS)
    np.testing.assert_allclose(middles(shown), middles(decode(tmp_path / "source.mp4")[1]), atol=LEVELS)


@pytest.mark.parametrize(("size_hw", "matrix"), [(HD, BT709), (SD, SMPTE170M)])
def test_what_says_nothing_is_written_as_players_take_it(size_hw, matrix, tmp_path):
    with open_sinks([str(tmp_path / "out.mp4")]) as sinks:
        sinks.write(Frame(0, None, bars(size_hw), "s", "n"), some_detections(0, size=size_hw))
    tags, shown = decode(tmp_path / "out.mp4")
    assert tags == replace(guess_look(size_hw), matrix=matrix)
    np.testing.assert_allclose(middles(shown), BARS, atol=LEVELS)


def test_a_turned_video_has_turned_pixels(tmp_path):
    write_source(tmp_path / "source.mp4", SMALL, Look(SMPTE170M, 6, 6, pixel_aspect=Fraction(4, 3)))
    with av.open(str(tmp_path / "source.mp4")) as source, av.open(str(tmp_path / "turned.mp4"), "w") as turned:
        stream = turned.add_stream_from_template(source.streams.video[0])
        stream.set_display_rotation(90)
        for packet in source.demux(source.streams.video[0]):
            if packet.size:
                packet.stream = stream
                turned.mux(packet)
    annotate(tmp_path / "turned.mp4", tmp_path / "out.mp4")
    assert decode(tmp_path / "out.mp4")[0].pixel_aspect == Fraction(3, 4)


def test_a_list_has_the_look_of_its_first_video(tmp_path):
    look = Look(BT709, BT709, BT709, True, Fraction(1))
    write_source(tmp_path / "a.mp4", SMALL, look)
    source = ListSource([str(tmp_path / "a.mp4")], "list")
    assert source.look is None
    assert len(list(source)) == 1
    assert source.look == look


@pytest.mark.parametrize(("size_hw", "matrix"), [(HD, BT709), (SMALL, SMPTE170M)])
def test_a_video_that_says_nothing_is_decoded_as_players_do(size_hw, matrix, tmp_path):
    write_source(tmp_path / "a.mp4", size_hw, Look(matrix, matrix, matrix), tags=False)
    (frame,) = open_source(tmp_path / "a.mp4")
    np.testing.assert_allclose(middles(frame.image), BARS, atol=LEVELS)


@pytest.mark.parametrize("matrix", [3, 8, 13, 100])
def test_a_matrix_that_is_none_is_guessed(matrix, tmp_path):
    write_source(tmp_path / "a.mp4", SMALL, Look(matrix, 99, 99))
    with open_source(tmp_path / "a.mp4") as source:
        (frame,) = source
    assert source.look == guess_look(SMALL)
    np.testing.assert_allclose(middles(frame.image), BARS, atol=LEVELS)


@pytest.mark.parametrize(
    ("size_hw", "expected"), [((576, 720), False), ((720, 1280), True), ((544, 1280), True), ((640, 360), True)]
)
def test_what_is_hd(size_hw, expected):
    assert is_hd(size_hw) == expected
