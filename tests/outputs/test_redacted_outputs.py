"""Redacted and cut-out files: through the codecs, beside other outputs, with nothing else of the source in them."""

import math
from dataclasses import replace
from pathlib import Path

import av
import cv2
import numpy as np
import pytest
import torch

from maskjet.detections import Detections
from maskjet.drawing import Cutout, DrawStyle, Redaction
from maskjet.errors import InputError
from maskjet.outputs.opening import check_outputs, open_sinks
from maskjet.outputs.pictures import AnnotatedImages
from maskjet.outputs.sink import Sinks
from maskjet.outputs.window import Window
from maskjet.sources.frames import ListSource, open_source
from maskjet.sources.images import read_image
from maskjet.sources.picture import Picture, conversion_of
from tests.outputs.outputs import lines, names
from tests.outputs.outputs import write as write_to
from tests.outputs.test_audio import write_with_sound
from tests.outputs.test_redaction import REPLACEMENTS, blobs, even, exchange, found_in, frame, grown, noise
from tests.outputs.test_window import tk  # noqa: F401 - a fixture

pytestmark = pytest.mark.usefixtures("in_folder")
SIZE = (98, 130)


def scene(count=12):
    """Masks per frame, of which every third is missed; and the region that a redaction with margin 2 hides."""
    masks = [blobs(SIZE, 0 if index % 3 == 1 else 2, index) for index in range(count)]
    near = [grown(each.any(axis=0), 2) for each in masks]
    return masks, [np.any(near[max(index - 5, 0) : index + 1], axis=0) for index in range(count)]


def write(path, images, masks, style, **options):
    with open_sinks([path], style=style) as sinks:
        for index, (image, mask) in enumerate(zip(images, masks, strict=True)):
            sinks.write(frame(image, index, **options), found_in(mask))
    return path


def decoded(path):
    """Every plane of every picture of every video stream, as the file has it."""
    with av.open(path) as container:
        assert len(container.streams) == 1
        return [bytes(plane) for picture in container.decode(video=0) for plane in picture.planes]


class TestVideo:
    @pytest.mark.parametrize(("replace_with", "suffix"), [("black", ".mkv"), ("mosaic", ".mp4"), ("blur", ".webm")])
    def test_hidden_pixels_have_no_influence_on_any_decoded_byte(self, replace_with, suffix):
        masks, hidden = scene()
        images = [noise(SIZE, index) for index in range(len(masks))]
        others = [exchange(image, inside, 99) for image, inside in zip(images, hidden, strict=True)]
        assert all((image != other).any() for image, other in zip(images, others, strict=True))
        path, style = f"a{suffix}", Redaction(replace_with=replace_with, margin=2)
        one = decoded(write(path, images, masks, style))
        assert decoded(write(path, others, masks, style)) == one
        # The comparison notices one pixel outside.
        y, x = np.argwhere(~hidden[0])[0]
        images[0][y, x] ^= 255
        assert decoded(write(path, images, masks, style)) != one

    def test_chroma_that_hidden_pixels_share_with_others_has_no_influence_either(self):
        masks = [blobs(SIZE, 2, index) for index in range(4)]
        hidden = np.any(masks, axis=(0, 1))
        touched = even(hidden)[::2, ::2].repeat(2, axis=1)  # samples of U and V
        one = [noise((SIZE[0] * 3 // 2, SIZE[1]), index)[..., 0] for index in range(4)]
        other = [np.where(np.vstack([hidden, touched]), 255 - memory, memory) for memory in one]
        paths = []
        for memories in (one, other):
            pictures = [Picture(torch.from_numpy(each), conversion_of(1, is_full_range=False)) for each in memories]
            style = Redaction(margin=0)
            paths.append(write(f"{len(paths)}.mp4", pictures, [np.concatenate(masks)] * 4, style))
        assert decoded(paths[0]) == decoded(paths[1])
        shown = Picture(torch.from_numpy(one[-1]), pictures[-1].conversion).to_rgb()
        assert (pictures[-1].to_rgb() != shown)[~hidden].any()

    def test_only_the_pictures_and_the_sound_are_in_it(self):
        """Neither the source's cover, nor another stream, nor its metadata."""
        with av.open(str(write_with_sound("plain.mp4"))) as source, av.open("in.mkv", "w") as made:
            streams = [made.add_stream_from_template(stream) for stream in source.streams]
            cover = made.add_stream("mjpeg", rate=1)
            cover.height, cover.width, cover.pix_fmt = 48, 64, "yuvj420p"
            made.metadata["title"] = "secret"
            for packet in source.demux():
                if packet.size:
                    packet.stream = streams[packet.stream_index]
                    made.mux(packet)
            made.mux(cover.encode(av.VideoFrame.from_ndarray(noise((48, 64), 1), format="rgb24")) + cover.encode(None))
        with av.open("in.mkv") as made:
            assert [stream.type for stream in made.streams] == ["video", "audio", "video"]
        with open_source("in.mkv") as source, check_outputs(["out.mp4"], [source], style=Redaction()).open() as sinks:
            for each in source:
                sinks.write(each, found_in(np.ones((1, 48, 64), bool)))
        with av.open("out.mp4") as container:
            assert sorted(stream.type for stream in container.streams) == ["audio", "video"]
            assert "title" not in container.metadata
            pictures = [picture.to_ndarray(format="rgb24") for picture in container.decode(video=0)]
        assert max(picture.max() for picture in pictures) <= 2


class TestPictures:
    @pytest.mark.parametrize(
        ("replace_with", "suffix"), [*zip(REPLACEMENTS, [".jpg", ".png"] * 3, strict=False), ("transparent", ".png")]
    )
    def test_hidden_pixels_have_no_influence_on_any_byte(self, replace_with, suffix):
        mask, image = blobs(SIZE, 2, 1), noise(SIZE, 1)
        other = exchange(image, grown(mask.any(axis=0), 2), 2)
        for folder, each in (("a", image), ("b", other)):
            with AnnotatedImages(folder, style=Redaction(replace_with=replace_with, margin=2)) as sink:
                sink.write(frame(each, name=f"one{suffix}"), found_in(mask))
        name = "one.png" if replace_with == "transparent" else f"one{suffix}"
        assert names("a") == names("b") == [name]
        assert Path("a", name).read_bytes() == Path("b", name).read_bytes()

    def test_a_transparent_background_is_empty_in_the_file(self):
        mask, image = blobs(SIZE, 2, 1), noise(SIZE, 1)
        write("cut.png", [image], [mask], Cutout(replace_with="transparent"))
        pixels, inside = cv2.imread("cut.png", cv2.IMREAD_UNCHANGED), mask.any(axis=0)
        assert not pixels[~inside].any()
        np.testing.assert_array_equal(pixels[inside][:, 2::-1], image[inside])
        assert (pixels[inside][:, 3] == 255).all()

    @pytest.mark.parametrize(
        ("style", "name"), [(Redaction, "a.mp4"), (Cutout, "a.webm"), (Redaction, "a.jpg"), (Cutout, "A.JPEG")]
    )
    def test_what_can_not_be_transparent_is_refused_before_anything_is_opened(self, style, name):
        outs, style = ["a.jsonl", f"new/{name}"], style(replace_with="transparent")
        for make in (
            lambda: open_sinks(outs, style=style),
            lambda: check_outputs(outs, [ListSource([], "a")], style=style),
        ):
            with pytest.raises(InputError, match=rf"a colour, 'mosaic' or 'blur' for 'new/{name}', which holds no tr"):
                make()
        assert names() == []


class TestBesideOthers:
    def test_lines_are_those_without_redaction(self):
        found = found_in(blobs(SIZE, 3, 1), [0, 1, 2])
        for style in (DrawStyle(), Redaction(["person"]), Cutout()):
            write_to(["a.jsonl", "a.mp4"], [frame(noise(SIZE, 1))], found, style=style)
            assert Detections.from_dict(lines("a.jsonl")[0]).rle == found.rle

    def test_detections_that_are_not_finite_are_left_out_of_lines_and_redacted(self):
        masks = blobs(SIZE, 2, 1)
        broken = replace(found_in(masks), confidence=np.array([0.9, np.nan], np.float32))
        sinks = write_to(["a.jsonl", "a.png"], [frame(noise(SIZE, 1))], broken, style=Redaction(margin=0))
        assert sinks.left_out == len(lines("a.jsonl")[0]["detections"]) == 1
        assert not read_image(Path("a.png"))[masks.any(axis=0)].any()

    def test_a_window_redacts_what_it_shows_also_after_frames_that_it_left_out(self, tk, monkeypatch):  # noqa: F811
        mask, white = blobs(SIZE, 1, 1), np.full((*SIZE, 3), 255, np.uint8)
        with Sinks([window := Window(style=Redaction(margin=0, hold=2))]) as sinks:
            for index, (masks, next_s) in enumerate([(mask[:0], 0.0), (mask, math.inf), (mask[:0], 0.0)]):
                monkeypatch.setattr(window, "_next_s", next_s)
                sinks.write(frame(white, index), found_in(masks))
        first, second = tk.shown
        assert first.all()
        np.testing.assert_array_equal((second == 0).all(axis=-1), even(mask[0]))

    def test_a_window_shows_transparent_pixels_black(self, tk):  # noqa: F811
        mask, image = blobs(SIZE, 1, 1), noise(SIZE, 1)
        with Window(style=Cutout(replace_with="transparent")) as window:
            window.write(frame(image), found_in(mask))
        np.testing.assert_array_equal(tk.shown[0], np.where(mask[0][..., None], image, 0))
