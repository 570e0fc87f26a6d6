"""Redaction and cutouts: hidden pixels have no influence on any byte of an output, and all others stay."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import maskjet
from maskjet.detections import Detections
from maskjet.drawing import Cutout, DrawStyle, Painter, Redaction, annotating, draw
from maskjet.drawing.regions import grow, unite
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from maskjet.sources.frames import Frame

NAMES = {0: "car", 1: "person", 2: "bus"}
REPLACEMENTS = ["black", "#8040fF", "mosaic", "blur", "transparent"]
SIZE = (48, 64)
SIZES = [(1, 1), (1, 40), (37, 1), SIZE, (49, 65), (131, 257)]


def found_in(masks, class_id=None):
    """Detections with these masks, bool [n, H, W], of class car if no other is given."""
    masks = np.asarray(masks, bool)
    rle = coco_rle.encode(masks)
    return Detections(
        image_size=masks.shape[1:],
        xyxy=np.array([coco_rle.to_xyxy(one) for one in rle], np.float32).reshape(-1, 4),
        confidence=np.full(len(rle), 0.9, np.float32),
        class_id=np.array(class_id if class_id is not None else [0] * len(rle), np.int32),
        rle=rle,
        class_names=NAMES,
    )


def noise(size, seed):
    return np.random.default_rng(seed).integers(0, 256, (*size, 3), np.uint8)


def blobs(size, count, seed):
    """Masks that overlap, touch the borders, and have parts of one pixel; bool [count, H, W]."""
    random = np.random.default_rng(seed)
    masks = np.zeros((count, *size), np.uint8)
    for mask in masks:
        centre = tuple(int(random.integers(0, side)) for side in size[::-1])
        axes = tuple(int(random.integers(0, max(side // 3, 1))) for side in size[::-1])
        cv2.ellipse(mask, centre, axes, float(random.uniform(0, 180)), 0, 360, 1, -1)
        mask[random.integers(0, size[0]), random.integers(0, size[1])] = 1
    return masks.astype(bool)


def grown(mask, margin):
    """All pixels up to `margin` rows and columns from one of the mask, by definition."""
    padded = np.pad(mask, margin)
    height, width = mask.shape
    near = np.zeros_like(mask)
    for y in range(2 * margin + 1):
        for x in range(2 * margin + 1):
            near |= padded[y : y + height, x : x + width]
    return near


def even(inside, margin=0):
    """The region of video: squares of 2 × 2 pixels of which one is inside, grown by squares, by definition."""
    height, width = inside.shape
    padded = np.pad(inside, ((0, height % 2), (0, width % 2)))
    squares = padded.reshape(-(-height // 2), 2, -(-width // 2), 2).any(axis=(1, 3))
    return grown(squares, -(-margin // 2)).repeat(2, axis=0).repeat(2, axis=1)[:height, :width]


def exchange(image, inside, seed):
    """The image with other pixels inside."""
    return np.where(inside[..., None], noise(image.shape[:2], seed), image)


def frame(image, index=0, *, clock=True, source="a.mp4", stream=0, name=None):
    return Frame(index, index / 10 if clock else None, image, source, name or f"{source}#{index}", stream)


cases = given(
    size=st.sampled_from(SIZES),
    count=st.integers(0, 5),
    seed=st.integers(0, 2**31),
    margin=st.integers(0, 9),
    replace_with=st.sampled_from(REPLACEMENTS),
)


class TestRedaction:
    @cases
    @settings(max_examples=150)
    def test_no_pixel_inside_has_any_influence_and_all_outside_stay(self, size, count, seed, margin, replace_with):
        masks = blobs(size, count, seed)
        inside = grown(masks.any(axis=0), margin)
        style = Redaction(replace_with=replace_with, margin=margin)
        image = noise(size, seed + 1)
        drawn = draw(image, found_in(masks), style)
        np.testing.assert_array_equal(draw(exchange(image, inside, seed + 2), found_in(masks), style), drawn)
        np.testing.assert_array_equal(drawn[~inside][:, :3], image[~inside])
        if replace_with == "transparent":
            np.testing.assert_array_equal(drawn[..., 3], np.where(inside, 0, 255))
            assert not drawn[inside].any()
        elif replace_with in ("black", "#8040fF"):
            expected = (0, 0, 0) if replace_with == "black" else (128, 64, 255)
            assert (drawn[inside] == expected).all()

    @pytest.mark.parametrize("replace_with", REPLACEMENTS)
    def test_of_the_whole_image_leaves_nothing(self, replace_with):
        style = Redaction(replace_with=replace_with)
        one, other = (draw(noise(SIZE, seed), found_in(np.ones((1, *SIZE))), style) for seed in (1, 2))
        np.testing.assert_array_equal(one, other)
        assert len(np.unique(one.reshape(-1, one.shape[2]), axis=0)) == 1
        for kind in (Redaction, Cutout):
            empty = draw(np.zeros((0, 9, 3), np.uint8), found_in(np.zeros((1, 0, 9))), kind(replace_with=replace_with))
            assert empty.shape[:2] == (0, 9)

    def test_a_mosaic_is_of_squares_and_a_blur_is_smooth_and_both_continue_the_surroundings(self):
        ramp = np.broadcast_to(np.linspace(0, 255, 640).astype(np.uint8)[None, :, None], (360, 640, 3)).copy()
        mask = np.zeros((1, 360, 640), bool)
        mask[0, 100:300, 100:500] = True
        styles = [Redaction(replace_with=each, margin=0) for each in ("mosaic", "blur")]
        mosaic, blur = (draw(ramp, found_in(mask), style) for style in styles)
        flat = np.where(mask[0, ..., None], (0, 255, 255), (200, 60, 30)).astype(np.uint8)
        for style in styles:
            assert np.abs(draw(flat, found_in(mask), style).astype(int) - (200, 60, 30)).max() <= 1
        steps = np.abs(np.diff(mosaic[200, 100:500, 0].astype(int)))
        assert (steps > 0).sum() <= 400 / 10
        assert np.abs(np.diff(blur[200, 105:495, 0].astype(int))).max() <= 3

    @pytest.mark.parametrize(
        ("size", "margin"), [((176, 312), 4), ((720, 1280), 13), ((1080, 1920), 20), ((1, 1), 1), ((1920, 1080), 20)]
    )
    def test_the_margin_follows_the_size(self, size, margin):
        mask = np.zeros((1, *size), bool)
        mask[0, size[0] // 2, size[1] // 2] = True
        white = np.full((*size, 3), 255, np.uint8)
        hidden = (draw(white, found_in(mask), Redaction()) == 0).all(axis=-1)
        np.testing.assert_array_equal(hidden, grown(mask[0], margin))

    @pytest.mark.parametrize("margin", [0, 1, 2, 7, 64, 65, 10**6])
    def test_a_margin_is_exact_also_at_the_borders(self, margin):
        for seed, size in enumerate(SIZES):
            mask = blobs(size, 1, seed)[0]
            expected = grown(mask, margin) if margin < 100 else np.ones(size, bool)
            np.testing.assert_array_equal(grow(mask.astype(np.uint8), margin), expected)
            assert not grow(np.zeros(size, np.uint8), margin).any()

    def test_only_the_classes_named_are_redacted(self):
        masks, image = blobs((96, 128), 6, 1), noise((96, 128), 2)
        drawn = draw(image, found_in(masks, [0, 1, 2, 0, 1, 7]), Redaction(["person", "7"], margin=0))
        inside = masks[[1, 4, 5]].any(axis=0)
        np.testing.assert_array_equal(drawn, np.where(inside[..., None], 0, image))
        drawn = draw(image, found_in(masks[:3], [0, 1, 2]), Cutout(["bus"], replace_with="white"))
        np.testing.assert_array_equal(drawn, np.where(masks[2][..., None], image, 255))

    def test_a_class_that_the_model_lacks_is_an_error_but_json_need_not_know_every_class(self):
        image, found = noise(SIZE, 1), found_in(blobs(SIZE, 2, 1), [0, 2])
        with pytest.raises(InputError, match=r"classes must be classes of the model, got 'persn'; did you mean 'perso"):
            draw(image, found, Redaction(["car", "persn"]))
        with pytest.raises(InputError, match=r"got 'zebra'; known: bus, car, person\."):
            draw(image, found, Cutout(["zebra"]))
        read = Detections.from_dict(found.as_dict())
        np.testing.assert_array_equal(draw(image, read, Redaction(["person"])), image)
        assert (draw(image, read, Redaction(["person", "bus"])) != image).any()

    def test_boxes_count_where_there_are_no_masks_or_empty_ones(self):
        rows = [(3.2, 4.9, 10.0, 12.1), (60, -5, 90, 3), (20, 20, 20, 20), (40, 30, 35, 25)]
        rows += [(-9, 10, -3, 20), (64, 30, 70, 32)]
        found = replace(found_in(np.zeros((6, *SIZE))), xyxy=np.array(rows, np.float32))
        expected = np.zeros(SIZE, bool)
        expected[4:13, 3:10] = expected[0:3, 60:64] = expected[20, 20] = expected[25:30, 35:40] = True
        expected[30:32, 63] = True
        for each in (found, replace(found, rle=None)):
            np.testing.assert_array_equal(unite(each), expected)
            np.testing.assert_array_equal(unite(each, 2).repeat(2, axis=0).repeat(2, axis=1), even(expected))

    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_a_mask_counts_whatever_its_box_and_a_box_alone_must_be_finite(self, value):
        mask = blobs(SIZE, 1, 1)
        found = replace(found_in(mask), xyxy=np.array([[5, value, 15, 16]], np.float32))
        np.testing.assert_array_equal(unite(found), mask[0])
        with pytest.raises(InputError, match="xyxy must be finite where there is no mask, detection 0 has"):
            unite(replace(found, rle=None))

    def test_the_input_stays_and_need_not_be_writable_or_contiguous(self):
        image, found = noise(SIZE, 1), found_in(blobs(SIZE, 2, 1))
        wide = np.repeat(image, 2, axis=1)
        wide.flags.writeable = False
        for style in (*(Redaction(replace_with=each) for each in REPLACEMENTS), Cutout(), Cutout(["bus"])):
            expected = draw(image, found, style)
            np.testing.assert_array_equal(draw(wide[:, ::2], found, style), expected)
            np.testing.assert_array_equal(wide[:, ::2], image)
            assert not np.shares_memory(expected, image)

    def test_on_top_is_drawn_what_is_asked_for(self):
        masks = blobs((96, 128), 3, 1)
        image, found, on_top = noise((96, 128), 1), found_in(masks), DrawStyle(masks=False, labels=False)
        expected = draw(image, found, Redaction(margin=2))
        annotating.annotate(expected, found, on_top)
        drawn = draw(image, found, Redaction(margin=2, on_top=on_top))
        np.testing.assert_array_equal(drawn, expected)
        other = exchange(image, grown(masks.any(axis=0), 2), 5)
        np.testing.assert_array_equal(draw(other, found, Redaction(margin=2, on_top=on_top)), drawn)
        assert maskjet.draw is draw


class TestCutout:
    @cases
    @settings(max_examples=100)
    def test_the_instances_stay_and_their_pixels_are_nowhere_else(self, size, count, seed, margin, replace_with):
        masks = blobs(size, count, seed)
        kept = masks.any(axis=0)
        image = noise(size, seed + 1)
        drawn = draw(image, found_in(masks), Cutout(replace_with=replace_with))
        other = draw(exchange(image, kept, seed + margin), found_in(masks), Cutout(replace_with=replace_with))
        np.testing.assert_array_equal(other[~kept], drawn[~kept])
        np.testing.assert_array_equal(drawn[kept][:, :3], image[kept])
        if replace_with == "transparent":
            np.testing.assert_array_equal(drawn[..., 3], np.where(kept, 255, 0))
        if replace_with in ("black", "transparent"):
            assert not drawn[~kept].any()

    def test_a_blurred_background_is_its_own_mean_here_and_there(self):
        image = np.full((240, 320, 3), (200, 60, 30), np.uint8)
        image[:, 160:] = (10, 20, 200)
        mask = np.zeros((1, 240, 320), bool)
        mask[0, 100:140, 140:180] = True
        image[mask[0]] = 255
        drawn = draw(image, found_in(mask), Cutout(replace_with="blur")).astype(int)
        assert np.abs(drawn[:, :125] - (200, 60, 30)).max() <= 1
        assert np.abs(drawn[:, 195:] - (10, 20, 200)).max() <= 1


class TestHold:
    """A pixel stays redacted for some frames after it was inside the region last."""

    MASK = blobs(SIZE, 1, 1)
    FOUND, NOTHING = found_in(MASK), found_in(MASK[:0])

    @staticmethod
    def hidden(painter, found, index=0, **options):
        """Which pixels of a frame are redacted, bool [H, W]."""
        white = np.full((*found.image_size, 3), 255, np.uint8)
        return (painter.paint(frame(white, index, **options), found) == 0).all(axis=-1)

    @pytest.mark.parametrize("hold", [0, 1, 3, 254, None])
    def test_a_detection_that_blinks_out_is_redacted_for_so_many_frames(self, hold):
        painter, frames = Painter(Redaction(margin=3, hold=hold)), 5 if hold is None else hold
        for index in range(frames + 1):
            shown = self.hidden(painter, self.NOTHING if index else self.FOUND, index)
            np.testing.assert_array_equal(shown, even(self.MASK[0], 3))
        assert not self.hidden(painter, self.NOTHING, frames + 1).any()

    def test_it_is_the_union_of_the_last_frames_masks(self):
        masks = [blobs(SIZE, 2, seed) for seed in range(12)]
        painter = Painter(Redaction(margin=1, hold=3))
        for index, each in enumerate(masks):
            expected = even(np.concatenate(masks[max(index - 3, 0) : index + 1]).any(axis=0), 1)
            np.testing.assert_array_equal(self.hidden(painter, found_in(each), index), expected)

    @pytest.mark.parametrize("replace_with", REPLACEMENTS)
    def test_held_pixels_have_no_influence_either(self, replace_with):
        masks = blobs((96, 128), 3, 1)
        painters = [Painter(Redaction(margin=1, replace_with=replace_with)) for _ in range(2)]
        for index in range(3):
            image = noise((96, 128), index)
            other = exchange(image, grown(masks[: index + 1].any(axis=0), 1), index + 9)
            found = found_in(masks[index : index + 1])
            one, same = (
                painter.paint(frame(each, index), found) for painter, each in zip(painters, (image, other), strict=True)
            )
            np.testing.assert_array_equal(one, same)

    def test_only_the_classes_named_are_held(self):
        masks = blobs(SIZE, 2, 1)
        painter = Painter(Redaction(["person"], margin=0))
        self.hidden(painter, found_in(masks, [0, 1]))
        np.testing.assert_array_equal(self.hidden(painter, found_in(masks[:0]), 1), even(masks[1]))

    def test_images_are_redacted_each_by_itself_unless_asked_for(self):
        for hold, is_held in ((None, False), (0, False), (2, True)):
            painter = Painter(Redaction(hold=hold))
            self.hidden(painter, self.FOUND, clock=False, name="photos/a.png")
            assert self.hidden(painter, self.NOTHING, 1, clock=False, name="photos/b.png").any() == is_held

    @pytest.mark.parametrize("clocks", [(False, False, False), (False, True, True), (True, False, True)])
    def test_frames_of_a_video_need_no_times(self, clocks):
        """Raw video has none, and the first frame of an RTSP connection has none."""
        painter = Painter(Redaction(margin=0))
        for index, clock in enumerate(clocks):
            found = self.NOTHING if index else self.FOUND
            np.testing.assert_array_equal(self.hidden(painter, found, index, clock=clock), even(self.MASK[0]))

    def test_a_video_after_an_image_of_a_list_is_held(self):
        painter = Painter(Redaction(margin=0))
        self.hidden(painter, self.NOTHING, clock=False, source="list", name="a.png")
        self.hidden(painter, self.FOUND, 1, source="list", name="a.mp4#0")
        shown = self.hidden(painter, self.NOTHING, 2, source="list", name="a.mp4#1")
        np.testing.assert_array_equal(shown, even(self.MASK[0]))

    def test_sources_are_apart(self):
        painter = Painter(Redaction())
        self.hidden(painter, self.FOUND, source="a.mp4", stream=0)
        assert not self.hidden(painter, self.NOTHING, source="b.mp4", stream=1).any()
        assert self.hidden(painter, self.NOTHING, 1, source="a.mp4", stream=0).any()
        assert not self.hidden(painter, self.NOTHING, source="c.mp4", stream=0).any()

    def test_frames_that_are_skipped_count(self):
        masks = [blobs(SIZE, 1, seed) for seed in range(6)]
        shown, skipped = (Painter(Redaction(hold=2)) for _ in range(2))
        for index, mask in enumerate(masks[:-1]):
            self.hidden(shown, found_in(mask), index)
            skipped.prepare(frame(noise(SIZE, 1), index), found_in(mask))
        expected = self.hidden(shown, found_in(masks[-1]), 5)
        np.testing.assert_array_equal(self.hidden(skipped, found_in(masks[-1]), 5), expected)
        for style in (DrawStyle(), Cutout()):
            Painter(style).prepare(frame(noise(SIZE, 1)), found_in(masks[0]))

    @pytest.mark.parametrize("size", [(96, 128), (24, 32), (49, 63), (1, 1), (480, 5)])
    def test_a_frame_of_another_size_is_covered_as_long_as_the_one_before_would_be(self, size):
        mask = np.zeros((1, 48, 64), bool)
        mask[0, 30, 40] = True
        painter = Painter(Redaction(margin=0))
        self.hidden(painter, found_in(mask))
        for index in range(1, 6):
            assert self.hidden(painter, found_in(np.zeros((0, *size))), index).all()
        assert not self.hidden(painter, found_in(np.zeros((0, *size))), 6).any()


class TestStyle:
    @pytest.mark.parametrize("style", [Redaction, Cutout])
    @pytest.mark.parametrize(
        ("name", "values"),
        [
            ("classes", ["person", [], [1], 5, [None]]),
            ("replace_with", ["blurr", "#12345", None]),
            ("on_top", [True]),
        ],
    )
    def test_wrong_choices_of_both(self, style, name, values):
        for value in values:
            with pytest.raises(InputError, match=rf"^{name} must be .*, got .*[.?]$"):
                style(**{name: value})
        with pytest.raises(InputError, match=r"^on_top must be None with replace_with='transparent'\.$"):
            style(replace_with="transparent", on_top=DrawStyle())

    @pytest.mark.parametrize("value", [-1, 1.5, "3", True])
    def test_numbers_are_whole(self, value):
        for wrong in ({"margin": value}, {"hold": value}, {"hold": 255}):
            with pytest.raises(InputError) as raised:
                Redaction(**wrong)
            assert raised.value.argument == next(iter(wrong))

    def test_numbers_of_numpy_do_not_overflow(self):
        mask = np.zeros((1, 400, 420), bool)
        mask[0, 200, 210] = True
        drawn = draw(np.full((400, 420, 3), 255, np.uint8), found_in(mask), Redaction(margin=np.uint8(150)))
        expected = np.zeros((400, 420), bool)
        expected[50:351, 60:361] = True
        np.testing.assert_array_equal((drawn == 0).all(axis=-1), expected)
        assert type(Redaction(hold=np.int8(127)).hold) is int

    def test_classes_can_not_be_changed_later(self):
        names = ["person"]
        style = Redaction(names)
        names.clear()
        assert style.classes == ("person",)
