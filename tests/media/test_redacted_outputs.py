"""Redacted and cut-out files: through the codecs, beside other outputs, with nothing else of the source in them."""

import json
from dataclasses import replace

import av
import cv2
import numpy as np
import pytest

from maskjet.errors import InputError
from maskjet.media.drawing import Cutout, DrawStyle, Redaction, draw
from maskjet.media.frames import ListSource, open_source
from maskjet.media.images import read_image
from maskjet.media.sinks import AnnotatedImages, AnnotatedVideo, Sinks, Window, check_outputs, open_sinks
from tests.media.test_audio import write_with_sound
from tests.media.test_redaction import REPLACEMENTS, blobs, exchange, found_in, frame, grown, noise
from tests.media.test_window import tk  # noqa: F401 - a fixture

SIZE = (98, 130)


def scene(count=12):
    """Masks per frame, of which every third is missed; and the region that a redaction with margin 2 hides."""
    masks = [blobs(SIZE, 0 if index % 3 == 1 else 2, index) for index in range(count)]
    near = [grown(each.any(axis=0), 2) for each in masks]
    return masks, [np.any(near[max(index - 5, 0) : index + 1], axis=0) for index in range(count)]


def write(path, images, masks, style, **options):
    with open_sinks([str(path)], style=style) as sinks:
        for index, (image, mask) in enumerate(zip(images, masks, strict=True)):
            sinks.write(frame(image, index, **options), found_in(mask))


def decoded(path):
    """Every plane of every picture of every video stream, as the file has it."""
    with av.open(str(path)) as container:
        assert len(container.streams) == 1
        return [bytes(plane) for picture in container.decode(video=0) for plane in picture.planes]


class TestVideo:
    @pytest.mark.parametrize("suffix", [".mp4", ".mkv", ".webm"])
    @pytest.mark.parametrize("replace_with", ["black", "mosaic", "blur"])
    def test_hidden_pixels_have_no_influence_on_any_decoded_byte(self, replace_with, suffix, tmp_path):
        masks, hidden = scene()
        images = [noise(SIZE, index) for index in range(len(masks))]
        others = [exchange(image, inside, 99) for image, inside in zip(images, hidden, strict=True)]
        assert all((image != other).any() for image, other in zip(images, others, strict=True))
        style = Redaction(replace_with=replace_with, margin=2)
        write(tmp_path / f"a{suffix}", images, masks, style)
        write(tmp_path / f"b{suffix}", others, masks, style)
        assert decoded(tmp_path / f"a{suffix}") == decoded(tmp_path / f"b{suffix}")

    def test_and_the_comparison_notices_one_pixel(self, tmp_path):
        """Without redaction the same two videos differ, so that the test above can fail."""
        masks, hidden = scene(3)
        images = [noise(SIZE, index) for index in range(3)]
        others = [image.copy() for image in images]
        y, x = np.argwhere(hidden[0])[0]
        others[0][y, x] ^= 255
        for name, each in (("a.mp4", images), ("b.mp4", others)):
            write(tmp_path / name, each, masks, DrawStyle(boxes=False, labels=False, scores=False))
        assert decoded(tmp_path / "a.mp4") != decoded(tmp_path / "b.mp4")

    def test_cut_out_instances_have_no_influence_on_the_background(self, tmp_path):
        masks = [blobs(SIZE, 2, index) for index in range(3)]
        images = [noise(SIZE, index) for index in range(3)]
        for index, mask in enumerate(masks):
            shown = draw(images[index], found_in(mask), Cutout(replace_with="00ff00"))
            assert (shown[~mask.any(axis=0)] == (0, 255, 0)).all()
        write(tmp_path / "a.mp4", images, masks, Cutout(replace_with="00ff00"))
        assert len(decoded(tmp_path / "a.mp4")) == 9

    def test_only_the_pictures_and_the_sound_are_in_it(self, tmp_path):
        """Neither the source's cover, nor another stream, nor its metadata."""
        write_with_sound(tmp_path / "plain.mp4")
        with av.open(str(tmp_path / "plain.mp4")) as source, av.open(str(tmp_path / "in.mkv"), "w") as made:
            streams = [made.add_stream_from_template(stream) for stream in source.streams]
            cover = made.add_stream("mjpeg", rate=1)
            cover.height, cover.width, cover.pix_fmt = 48, 64, "yuvj420p"
            made.metadata["title"] = "secret"
            for packet in source.demux():
                if packet.size:
                    packet.stream = streams[packet.stream_index]
                    made.mux(packet)
            made.mux(cover.encode(av.VideoFrame.from_ndarray(noise((48, 64), 1), format="rgb24")))
            made.mux(cover.encode(None))
        with av.open(str(tmp_path / "in.mkv")) as made:
            assert [stream.type for stream in made.streams] == ["video", "audio", "video"]
        everything = np.ones((1, 48, 64), bool)
        with (
            open_source(tmp_path / "in.mkv") as source,
            check_outputs([str(tmp_path / "out.mp4")], [source], style=Redaction()).open() as sinks,
        ):
            for each in source:
                sinks.write(each, found_in(everything))
        with av.open(str(tmp_path / "out.mp4")) as container:
            assert sorted(stream.type for stream in container.streams) == ["audio", "video"]
            assert "title" not in container.metadata
            pictures = [picture.to_ndarray(format="rgb24") for picture in container.decode(video=0)]
        assert max(picture.max() for picture in pictures) <= 2


class TestPictures:
    @pytest.mark.parametrize("suffix", [".jpg", ".png"])
    @pytest.mark.parametrize("replace_with", REPLACEMENTS)
    def test_hidden_pixels_have_no_influence_on_any_byte(self, replace_with, suffix, tmp_path):
        mask = blobs(SIZE, 2, 1)
        image = noise(SIZE, 1)
        other = exchange(image, grown(mask.any(axis=0), 2), 2)
        for folder, each in (("a", image), ("b", other)):
            style = Redaction(replace_with=replace_with, margin=2)
            with AnnotatedImages(str(tmp_path / folder), style=style) as sink:
                sink.write(replace(frame(each), name=f"one{suffix}"), found_in(mask))
        written = [list((tmp_path / folder).iterdir()) for folder in ("a", "b")]
        expected = "one.png" if replace_with == "transparent" else f"one{suffix}"
        assert [[path.name for path in paths] for paths in written] == [[expected]] * 2
        assert written[0][0].read_bytes() == written[1][0].read_bytes()

    def test_a_transparent_background_is_empty_in_the_file(self, tmp_path):
        mask, image = blobs(SIZE, 2, 1), noise(SIZE, 1)
        write(tmp_path / "cut.png", [image], [mask], Cutout(replace_with="transparent"))
        pixels = cv2.imread(str(tmp_path / "cut.png"), cv2.IMREAD_UNCHANGED)
        inside = mask.any(axis=0)
        assert not pixels[~inside].any()
        np.testing.assert_array_equal(pixels[inside][:, 2::-1], image[inside])
        assert (pixels[inside][:, 3] == 255).all()

    def test_images_are_redacted_each_by_itself(self, tmp_path):
        masks, images = [blobs(SIZE, 1, 1), blobs(SIZE, 0, 1)], [noise(SIZE, 1), noise(SIZE, 2)]
        write(tmp_path / "shown.png", images, masks, Redaction(), clock=False, name="a.png")
        np.testing.assert_array_equal(read_image(tmp_path / "shown_1.png"), images[1])

    @pytest.mark.parametrize("name", ["a.mp4", "a.webm", "a.jpg", "A.JPEG"])
    @pytest.mark.parametrize("style", [Redaction(replace_with="transparent"), Cutout(replace_with="transparent")])
    def test_what_can_not_be_transparent_is_refused_before_anything_is_opened(self, style, name, tmp_path):
        outs = [str(tmp_path / "a.jsonl"), str(tmp_path / "new" / name)]
        message = (
            rf"^replace_with must be a colour, 'mosaic' or 'blur' for '.*{name}', which holds no transparency, got "
        )
        for make in (
            lambda: open_sinks(outs, style=style),
            lambda: check_outputs(outs, [ListSource([], "a")], style=style),
            lambda: (AnnotatedVideo if "m" in name else AnnotatedImages)(outs[1], style=style),
        ):
            with pytest.raises(InputError, match=message):
                make()
        assert list(tmp_path.iterdir()) == []


class TestBesideOthers:
    def test_lines_are_those_without_redaction(self, tmp_path):
        found = found_in(blobs(SIZE, 3, 1), [0, 1, 2])
        for name, style in (("a", DrawStyle()), ("b", Redaction(["person"])), ("c", Cutout())):
            with open_sinks([str(tmp_path / f"{name}.jsonl"), str(tmp_path / f"{name}.mp4")], style=style) as sinks:
                sinks.write(frame(noise(SIZE, 1)), found)
        texts = {(tmp_path / f"{name}.jsonl").read_text() for name in "abc"}
        assert len(texts) == 1
        assert len(json.loads(texts.pop())["detections"]) == 3

    def test_detections_that_are_not_finite_are_left_out_of_lines_and_redacted(self, tmp_path):
        masks, image = blobs(SIZE, 2, 1), noise(SIZE, 1)
        found = found_in(masks)
        broken = replace(found, confidence=np.array([0.9, np.nan], np.float32))
        with open_sinks([str(tmp_path / "a.jsonl"), str(tmp_path / "a.png")], style=Redaction(margin=0)) as sinks:
            sinks.write(frame(image), broken)
        assert sinks.left_out == 1
        assert len(json.loads((tmp_path / "a.jsonl").read_text())["detections"]) == 1
        shown = read_image(tmp_path / "a.png")
        assert not shown[masks.any(axis=0)].any()

    def test_a_window_redacts_what_it_shows_also_after_frames_that_it_left_out(self, tk, monkeypatch):  # noqa: F811
        mask = blobs(SIZE, 1, 1)
        white = np.full((*SIZE, 3), 255, np.uint8)
        with Sinks([window := Window(style=Redaction(margin=0, hold=2))]) as sinks:
            sinks.write(frame(white, 0), found_in(mask[:0]))
            monkeypatch.setattr(window, "_next_s", float("inf"))
            sinks.write(frame(white, 1), found_in(mask))
            monkeypatch.setattr(window, "_next_s", 0.0)
            sinks.write(frame(white, 2), found_in(mask[:0]))
        assert len(tk.shown) == 2
        assert tk.shown[0].all()
        np.testing.assert_array_equal((tk.shown[1] == 0).all(axis=-1), mask[0])

    def test_a_window_shows_transparent_pixels_black(self, tk):  # noqa: F811
        mask, image = blobs(SIZE, 1, 1), noise(SIZE, 1)
        with Window(style=Cutout(replace_with="transparent")) as window:
            window.write(frame(image), found_in(mask))
        np.testing.assert_array_equal(tk.shown[0], np.where(mask[0][..., None], image, 0))
