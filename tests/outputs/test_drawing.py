"""Drawing: colours, labels and sizes, and that nothing breaks it."""

import math
from dataclasses import replace

import cv2
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from maskjet.detections import Detections
from maskjet.drawing import DrawStyle, Painter, annotating, class_colour, draw, labels
from maskjet.drawing.labels import arrange_labels
from maskjet.drawing.shades import colour_instances, letters_on
from maskjet.drawing.style import measure
from maskjet.errors import InputError
from maskjet.masks import coco_rle
from maskjet.sources.frames import Frame
from tests.detections.test_detections import some_detections

DEFAULT = DrawStyle()
SWITCHES = ["boxes", "labels", "scores", "masks", "outlines"]
SIZE = (240, 320)
NOISE, BLACK = np.random.default_rng(0).integers(0, 256, (*SIZE, 3), np.uint8), np.zeros((*SIZE, 3), np.uint8)
PLAIN = DrawStyle(**dict.fromkeys(SWITCHES, False))
APART = 0.025
"""Least distance in OKLab of neighbours' colours; 0.02 is just noticeable."""


def boxes(*rows, size=(720, 1280), class_id=0, name="car"):
    xyxy = np.array(rows, np.float32).reshape(-1, 4)
    ids = np.full(len(xyxy), class_id, np.int32)
    confidence = np.linspace(0.9, 0.4, len(xyxy), dtype=np.float32)
    return Detections(size, xyxy, confidence, ids, None, {class_id: name})


def row(count, *, top=300):
    return [(100 + 55 * i, top, 150 + 55 * i, top + 50) for i in range(count)]


def colours(found, *, is_by_class=True):
    return colour_instances(found.xyxy.astype(np.float64), found.class_id, found.image_size, is_by_class=is_by_class)


def to_linear(rgb):
    value = np.asarray(rgb) / 255
    return np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)


def to_oklab(rgb):
    """OKLab of sRGB colours, float [n, 3]."""
    lms = to_linear(rgb) @ np.array(
        [
            [0.4122214708, 0.2119034982, 0.0883024619],
            [0.5363325363, 0.6806995451, 0.2817188376],
            [0.0514459929, 0.1073969566, 0.6299787005],
        ]
    )
    return np.cbrt(lms) @ np.array(
        [
            [0.2104542553, 1.9779984951, 0.0259040371],
            [0.7936177850, -2.4285922050, 0.7827717662],
            [-0.0040720468, 0.4505937099, -0.8086757660],
        ]
    )


def distance(one, other):
    return np.linalg.norm(to_oklab(one) - to_oklab(other), axis=-1)


def arrange(found, style=DEFAULT):
    """The labels' rectangles, int [n, 4], and all labels."""
    measures = measure(found.image_size, style.line_width)
    frames = np.rint(found.xyxy).astype(np.int64)
    arranged = arrange_labels(found, np.ascontiguousarray(frames), style=style, measures=measures)
    return np.array([label.plate for label in arranged], np.int64).reshape(-1, 4), arranged


def overlaps(plates):
    """Which pairs of rectangles share pixels, bool [n, n]; none with itself."""
    low = np.maximum(plates[:, None, :2], plates[None, :, :2])
    high = np.minimum(plates[:, None, 2:], plates[None, :, 2:])
    return (high > low).all(axis=-1) & ~np.eye(len(plates), dtype=bool)


class TestStyle:
    @pytest.mark.parametrize(
        ("name", "values", "message"),
        [
            *((name, [1, None, "yes"], "True or False, got (1|None|'yes')") for name in SWITCHES),
            ("line_width", [0, -1.0, math.nan, math.inf, True, "2"], "a number of pixels above 0, or None, got .*"),
            ("color_by", ["track", "Class", None, ["class"]], "one of .*, got .*"),
            ("label", [7, ["a"], "a\nb", "x" * 101, b"{name}"], "a text of at most 100 printable characters, got .*"),
            (
                "palette",
                ["car", {"car": "red"}],
                "colours as RRGGBB or black, white, grey, by class name, or None, got .*",
            ),
        ],
    )
    def test_wrong_choices(self, name, values, message):
        for value in values:
            with pytest.raises(InputError, match=rf"^{name} must be {message}[.?]$"):
                DrawStyle(**{name: value})

    @pytest.mark.parametrize(
        "template",
        [
            *(
                "{title}",
                "{}",
                "{0}",
                "{name",
                "name}",
                "{name!r}",
                "{name:9}",
                "{name.upper}",
                "{name[0]}",
                "{confidence:d}",
            ),
            *("{confidence:999999999}", "{confidence:.99f}", "{confidence:{track}}", "{track:c}", "{{name}"),
        ],
    )
    def test_templates_have_these_fields_only(self, template):
        fields = r"\{name\}, \{confidence\}, \{track\}, \{class_id\}"
        with pytest.raises(
            InputError, match=rf"^label must have the fields {fields}, numbers .* got '.*'; braces .*\.$"
        ):
            DrawStyle(label=f"a {template} b")

    def test_a_palette_colours_its_classes_alone(self):
        found = some_detections(3, size=SIZE)
        style = replace(PLAIN, boxes=True)
        shown, expected = draw(BLACK, found, replace(style, palette={"bus": "ff8000"})), draw(BLACK, found, style)
        ours = (shown == (255, 128, 0)).all(axis=-1)
        assert ours.any()
        np.testing.assert_array_equal(shown[~ours], expected[~ours])
        with pytest.raises(InputError, match=r"palette must go with color_by='class', got 'instance'\."):
            DrawStyle(palette={"bus": "white"}, color_by="instance")

    @pytest.mark.parametrize("name", SWITCHES)
    def test_each_switch_draws_something_of_its_own(self, name):
        found = some_detections(3, size=SIZE)
        np.testing.assert_array_equal(draw(NOISE, found, PLAIN), NOISE)
        assert (draw(NOISE, found, replace(PLAIN, **{name: True})) != NOISE).any()
        assert (draw(NOISE, found, DrawStyle(**{name: False})) != draw(NOISE, found)).any()

    def test_masks_alone_change_the_masks_pixels_alone_and_outlines_stay_at_the_border(self):
        found = some_detections(1, size=SIZE)
        inside = found.masks()[0]
        shown = draw(NOISE, found, replace(PLAIN, masks=True))
        np.testing.assert_array_equal(shown[~inside], NOISE[~inside])
        expected = NOISE[inside] * (148 / 256) + colours(found)[0] * (108 / 256)
        np.testing.assert_allclose(shown[inside], expected, atol=0.51)
        shown, mask = draw(NOISE, found, replace(PLAIN, outlines=True)), inside.astype(np.uint8)
        near = cv2.dilate(mask, np.ones((5, 5))) != cv2.erode(mask, np.ones((5, 5)))
        np.testing.assert_array_equal(shown[~near], NOISE[~near])
        assert (shown != NOISE).any(axis=-1).sum() > 100

    @pytest.mark.parametrize("width", [1, 2, 7])
    def test_a_box_is_its_four_lines(self, width):
        found = boxes((100, 50, 200, 90), size=SIZE)
        shown = draw(BLACK, found, replace(PLAIN, boxes=True, line_width=width))
        before, after = width // 2, width - width // 2
        expected = np.zeros(SIZE, bool)
        expected[50 - before : 90 + before, 100 - before : 200 + before] = True
        expected[50 + after : 90 - after, 100 + after : 200 - after] = False
        np.testing.assert_array_equal(shown.any(axis=-1), expected)
        assert {tuple(pixel) for pixel in shown[expected].tolist()} == {tuple(colours(found)[0].tolist())}

    def test_a_rotated_box_surrounds_the_mask_and_replaces_the_box(self):
        mask = cv2.ellipse(np.zeros(SIZE, np.uint8), (160, 120), (90, 25), 30, 0, 360, 1, -1)
        found = replace(boxes((60, 40, 260, 200), size=SIZE), rle=coco_rle.encode(mask))
        shown = draw(BLACK, found, replace(PLAIN, boxes=True, rotated=True, line_width=3)).any(axis=-1)
        near = np.zeros(SIZE, np.uint8)
        cv2.polylines(near, found.rotated_boxes().round().astype(np.int32), True, 1, 1)
        np.testing.assert_array_equal(shown | (near > 0), shown)
        assert not shown[cv2.dilate(near, np.ones((9, 9))) == 0].any()
        assert not draw(BLACK, found, replace(PLAIN, rotated=True)).any()
        upright = draw(BLACK, replace(found, rle=None), replace(PLAIN, boxes=True, rotated=True)).any(axis=-1)
        np.testing.assert_allclose(np.argwhere(upright)[[0, -1]], [[40, 60], [200, 260]], atol=1)

    def test_names_and_scores_are_switched_apart(self):
        found = boxes((100, 100, 200, 200))
        styles = (DrawStyle(), DrawStyle(scores=False), DrawStyle(labels=False))
        assert [arrange(found, style)[1][0].text for style in styles] == ["car 0.90", "car", "0.90"]
        unknown = replace(found, confidence=np.array([np.nan], np.float32))
        assert arrange(unknown)[1][0].text == "car"

    def test_letters_and_lines_follow_the_size(self):
        small, hd, uhd, huge = (measure(size, None) for size in ((176, 312), (720, 1280), (2160, 3840), (6000, 8000)))
        assert (small.line, hd.line) == (1, 2)
        assert uhd.font_scale == pytest.approx(3 * hd.font_scale)
        assert huge.font_scale > 7 * hd.font_scale
        assert small.font_scale >= 0.3


class TestImage:
    def test_the_input_stays_and_need_not_be_writable_or_contiguous(self):
        found, wide = some_detections(3, size=SIZE), np.repeat(NOISE, 2, axis=1)
        wide.flags.writeable = False
        np.testing.assert_array_equal(draw(wide[:, ::2], found), draw(NOISE, found))
        np.testing.assert_array_equal(wide[:, ::2], NOISE)
        assert not np.shares_memory(draw(NOISE, some_detections(0, size=SIZE)), NOISE)

    @pytest.mark.parametrize(
        ("image", "message"),
        [
            (np.zeros((48, 64), np.uint8), r"image must be uint8 \[H, W, 3\], got uint8 \[48, 64\]"),
            (np.zeros((48, 64, 4), np.uint8), r"image must be uint8 \[H, W, 3\], got uint8 \[48, 64, 4\]"),
            (np.zeros((48, 64, 3)), r"image must be uint8 \[H, W, 3\], got float64 \[48, 64, 3\]"),
            (BLACK, r"detections must be of the image's size \(240, 320\), got \(48, 64\)"),
        ],
    )
    def test_is_uint8_rgb_of_the_detections_size(self, image, message):
        for paint in (draw, lambda image, found: Painter().paint(Frame(0, None, image, "s", "s"), found)):
            with pytest.raises(InputError, match=rf"^{message}\.$"):
                paint(image, some_detections(1))

    @pytest.mark.parametrize("style", [DrawStyle(), DrawStyle(line_width=1e9), DrawStyle(color_by="instance")])
    def test_may_have_any_size(self, style):
        for size in [(1, 1), (1, 40), (40, 1), (7, 300), (300, 7), (1080, 1920)]:
            shown = draw(np.zeros((*size, 3), np.uint8), some_detections(3, size=size), style)
            assert shown.shape == (*size, 3)
            assert shown.any()
        for size in [(0, 0), (0, 9), (9, 0)]:
            assert draw(np.zeros((*size, 3), np.uint8), boxes((0, 0, 0, 0), size=size), style).shape == (*size, 3)


class TestDetections:
    def test_without_masks_boxes_and_labels_are_drawn(self):
        found = some_detections(2, size=SIZE)
        shown = draw(NOISE, replace(found, rle=None))
        assert (shown != NOISE).any()
        np.testing.assert_array_equal(shown, draw(NOISE, found, DrawStyle(masks=False, outlines=False)))

    @pytest.mark.parametrize(
        "box",
        [
            *((0, 0, 320, 240), (-50, -50, 20, 20), (300, 200, 900, 900)),
            *((319, 239, 320, 240), (60, 60, 60, 60), (0, 5, 0, 9)),
        ],
    )
    def test_boxes_at_the_edges_are_drawn_inside(self, box):
        shown = draw(BLACK, boxes(box, size=SIZE), replace(PLAIN, boxes=True, line_width=3))
        ys, xs = np.nonzero(shown.any(axis=-1))
        drawn = np.array([xs.min(), ys.min(), xs.max() + 1, ys.max() + 1])
        assert np.abs(drawn - np.clip(box, 0, (320, 240) * 2)).max() <= 3

    def test_boxes_outside_or_without_a_place_are_left_out(self):
        nowhere = [(-90, 10, -50, 20), (400, 10, 500, 20), (10, 300, 20, 400), (np.nan, 0, 9, 9), (0, 0, np.inf, 9)]
        nowhere += [(value,) * 4 for value in (np.nan, np.inf, -3e38, 3e38, 1e6)]
        for found in (boxes(*nowhere, size=SIZE), boxes(size=SIZE)):
            np.testing.assert_array_equal(draw(NOISE, found), NOISE)

    def test_masks_of_one_pixel_and_of_none(self):
        masks = np.zeros((2, *SIZE), bool)
        masks[0, 100, 200] = True
        one, none = (replace(boxes((200, 100, 201, 101), size=SIZE), rle=coco_rle.encode(mask)) for mask in masks)
        assert draw(BLACK, one, replace(PLAIN, masks=True)).any(axis=-1).sum() == 1
        assert draw(BLACK, one, replace(PLAIN, outlines=True))[100, 200].any()
        np.testing.assert_array_equal(draw(NOISE, none, replace(PLAIN, masks=True, outlines=True)), NOISE)

    def test_a_mask_that_changed_its_size_after_it_was_checked_is_an_error(self):
        found = some_detections(1)
        found.rle[0].update(coco_rle.encode(np.ones((96, 128), bool))[0])
        for pixels in ("raw", "box"):
            with pytest.raises(InputError, match=r"rle must have the size \[48, 64\], got \[96, 128\]"):
                draw(BLACK[:48, :64], found, replace(PLAIN, masks=True, mask_pixels=pixels))

    def test_the_most_confident_is_on_top(self):
        masks = np.zeros((2, *SIZE), bool)
        masks[0, 50:150, 50:150] = masks[1, 100:200, 100:200] = True
        found = replace(boxes((50, 50, 150, 150), (100, 100, 200, 200), size=SIZE), rle=coco_rle.encode(masks))
        first, second = colours(found).astype(float)
        framed = draw(BLACK, found, replace(PLAIN, boxes=True, line_width=4))
        np.testing.assert_array_equal(framed[150, 100], first)
        tinted = draw(BLACK, found, replace(PLAIN, masks=True))
        share = 108 / 256
        np.testing.assert_allclose(tinted[60, 60], share * first, atol=1)
        np.testing.assert_allclose(tinted[190, 190], share * second, atol=1)
        np.testing.assert_allclose(tinted[120, 120], (1 - share) * share * second + share * first, atol=1.5)
        outlined = draw(BLACK, found, replace(PLAIN, outlines=True, line_width=5))
        np.testing.assert_array_equal(outlined[149, 100], first)


class TestColours:
    def test_a_class_keeps_its_hue_and_others_have_another(self):
        for count in (1, 8):
            shown, middle = (
                to_oklab(rgb)[..., 1:] @ [1, 1j] for rgb in (colours(boxes(*row(count), class_id=3)), class_colour(3))
            )
            assert np.abs(np.angle(shown / middle, deg=True)).max() < 30
        assert len({class_colour(class_id) for class_id in range(-5, 80)}) == 85
        some = np.array([class_colour(class_id) for class_id in range(6)])
        assert min(distance(some[i], some[j]) for i in range(6) for j in range(i)) > 0.07

    @pytest.mark.parametrize("is_by_class", [True, False])
    @pytest.mark.parametrize("step", [(55, 0), (20, 0), (0, 60), (30, 30)])
    def test_neighbours_differ(self, step, is_by_class):
        for class_id in (0, 1, 4, 79):
            for count in (2, 3, 5, 8):
                corners = np.array([100, 150]) + np.arange(count)[:, None] * step
                found = boxes(*np.hstack([corners, corners + 50]), class_id=class_id)
                shown = colours(found, is_by_class=is_by_class)
                assert distance(shown[1:], shown[:-1]).min() > APART

    def test_instances_on_one_spot_differ_and_a_neighbour_of_another_class_does_not_change_a_shade(self):
        one, two, three = colours(boxes(*[(100, 150, 150, 200)] * 3))
        assert min(distance(one, two), distance(one, three), distance(two, three)) > APART
        assert distance(*colours(boxes(*[(100, 150, 150, 200)] * 2))) > APART
        found = boxes(*row(4))
        mixed = replace(found, class_id=np.array([0, 5, 0, 5], np.int32))
        np.testing.assert_array_equal(colours(mixed)[::2], colours(found[[0, 2]]))
        assert (colours(found)[::2] != colours(found[[0, 2]])).any()

    def test_in_a_crowd_most_neighbours_differ(self):
        found = boxes(*[box for top in range(0, 700, 60) for box in row(20, top=top)])
        shown = colours(found).reshape(-1, 20, 3)
        apart = np.concatenate([distance(shown[:, 1:], shown[:, :-1]).ravel(), distance(shown[1:], shown[:-1]).ravel()])
        assert np.quantile(apart, 0.1) > 0.03
        assert np.median(apart) > 0.07

    def test_they_change_little_when_boxes_move_little(self):
        random = np.random.default_rng(1)
        corners = random.uniform(0, (1200, 600), (25, 2)).astype(np.float32)
        found = boxes(*np.hstack([corners, corners + random.uniform(20, 90, (25, 2))]))
        changes = []
        for _ in range(20):
            moved = replace(found, xyxy=found.xyxy + random.normal(0, 1, found.xyxy.shape).astype(np.float32))
            changes.append(distance(colours(moved), colours(found)))
        assert np.mean(changes) < 0.02
        assert np.mean(np.array(changes) > 0.05) < 0.05

    def test_they_do_not_depend_on_the_order_of_the_detections(self):
        found = boxes(*row(6), (500, 100, 600, 200), (520, 90, 640, 190))
        order = np.random.default_rng(2).permutation(8)
        np.testing.assert_allclose(colours(found[order]).astype(int), colours(found)[order], atol=1)

    def test_letters_have_contrast_on_every_colour(self):
        grid = np.stack(np.meshgrid(*[range(0, 256, 15)] * 3), axis=-1).reshape(-1, 3).tolist()
        for colour in [*map(tuple, grid), *map(class_colour, range(90))]:
            low, high = sorted(to_linear(rgb) @ [0.2126, 0.7152, 0.0722] for rgb in (colour, letters_on(colour)))
            assert (high + 0.05) / (low + 0.05) >= 4
        assert letters_on((255, 255, 255)) != letters_on((0, 0, 0))


class TestLabels:
    @given(
        st.lists(st.tuples(*[st.floats(-20, 340)] * 4), max_size=40),
        st.text(max_size=30),
        st.sampled_from([(240, 320), (60, 320), (240, 40), (15, 15)]),
    )
    @settings(max_examples=100)
    def test_never_cover_each_other_and_lie_inside(self, rows, name, size):
        found = boxes(*rows, size=size, name=name)
        xyxy = found.xyxy.clip(0, (size[1], size[0]) * 2)
        low, high = np.minimum(xyxy[:, :2], xyxy[:, 2:]), np.maximum(xyxy[:, :2], xyxy[:, 2:]) + 1
        plates, _ = arrange(replace(found, xyxy=np.hstack([low, high]).astype(np.float32)))
        assert not overlaps(plates).any()
        assert (plates >= 0).all()
        assert (plates <= (size[1], size[0]) * 2).all()

    @pytest.mark.parametrize("step", [(120, 0), (0, 60), (40, 25), (9, 9)])
    def test_all_have_a_place_when_there_is_room(self, step):
        found = boxes(*[(300 + i * step[0], 200 + i * step[1], 380 + i * step[0], 250 + i * step[1]) for i in range(6)])
        plates, arranged = arrange(found)
        assert [label.instance for label in arranged] == list(range(6))
        assert not overlaps(plates).any()

    def test_are_left_out_rather_than_on_top_of_each_other_and_those_of_large_boxes_choose_first(self):
        plates, _ = arrange(boxes(*[(30, 30, 60, 60)] * 50, size=(90, 120)))
        assert 2 <= len(plates) < 50
        assert not overlaps(plates).any()
        (label,) = arrange(boxes((10, 4, 20, 12), (0, 0, 62, 15), size=(16, 64)))[1]
        assert label.instance == 1

    @pytest.mark.parametrize(
        ("box", "place"),
        [
            ((300, 300, 400, 400), lambda plate: plate[0] == 300 and plate[3] == 300),  # above
            ((300, 5, 330, 30), lambda plate: plate[0] == 300 and plate[1] == 30),  # no room above: below
            ((1270, 300, 1280, 400), lambda plate: plate[2] == 1280 and plate[3] == 300),
            ((0, 0, 1280, 720), lambda plate: tuple(plate[:2]) == (0, 0)),  # inside
        ],
    )
    def test_lie_at_their_box(self, box, place):
        plates, _ = arrange(boxes(box))
        assert place(plates[0].tolist()), plates

    def test_hide_no_other_box_when_there_is_room(self):
        plates, _ = arrange(boxes((300, 300, 340, 400), (300, 275, 340, 299)))
        low = plates[plates[:, 1].argmax()]
        assert low[1] >= 400 or low[3] <= 275 or low[0] >= 340 or low[2] <= 300

    def test_are_drawn_where_they_were_arranged(self):
        found = boxes((300, 300, 340, 400), (310, 310, 360, 420), (700, 0, 800, 90))
        image = np.zeros((720, 1280, 3), np.uint8)
        shown = draw(image, found, replace(PLAIN, labels=True, scores=True)).any(axis=-1)
        expected = np.zeros((720, 1280), bool)
        for label in arrange(replace(found, xyxy=found.xyxy + np.array([-1, -1, 1, 1], np.float32).clip(-9, 9)))[1]:
            left, top, right, bottom = label.plate
            expected[top:bottom, left:right] = True
        covered = cv2.dilate(expected.astype(np.uint8), np.ones((5, 5))) > 0
        assert not (shown & ~covered).any()
        assert shown.sum() > 0.95 * expected.sum()

    def test_long_names_are_cut_and_scores_kept(self):
        (label,) = arrange(boxes((300, 300, 340, 400), name="articulated lorry with a trailer and one more"))[1]
        assert label.text.startswith("articulated")
        assert label.text.endswith("… 0.90")
        left, _, right, _ = label.plate
        assert right - left <= 0.22 * 1280
        assert arrange(boxes((0, 0, 9, 30), size=(240, 36), name="motorcycle"))[1][0].text == "0.90"
        assert arrange(boxes((0, 0, 9, 30), size=(240, 10), name="motorcycle"))[1] == []
        (label,) = arrange(boxes((0, 0, 9, 9), name="motorcycle" * 4), DrawStyle(label="{confidence:.0%} {name}!"))[1]
        assert label.text.startswith("90% motorcycle")
        assert label.text.endswith("…!")

    def test_text_fits_into_its_plate(self):
        for size in ((176, 312), (720, 1280), (2160, 3840)):
            found = boxes((size[1] // 2, size[0] // 2, size[1] // 2 + 30, size[0] // 2 + 60), size=size, name="gjpÄÅ|q")
            (label,) = arrange(found)[1]
            measures = measure(size, None)
            canvas = np.zeros((*size, 3), np.uint8)
            annotating.draw_frames(canvas, np.array([label.plate]), np.full((1, 3), 255, np.uint8), size[0])
            labels.write_label(canvas, label, (255, 255, 255), measures)
            left, top, right, bottom = label.plate
            outside = canvas.any(axis=-1)
            outside[top:bottom, left:right] = False
            assert not outside.any()
            plate = canvas[top:bottom, left:right]
            assert all((edge == 255).all() for edge in (plate[:, 0], plate[:, -1], plate[-1]))
