"""RLEs from outside: whatever they state, they are read as Python's unbounded integers say, or refused."""

import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from maskjet import limits
from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.masks import coco_rle

READERS = [
    coco_rle.decode,
    coco_rle.area,
    coco_rle.to_xyxy,
    coco_rle.decode_crop,
    coco_rle.polygons,
    coco_rle.from_json,
    lambda rle: coco_rle.iou(rle, rle),
    lambda rle: coco_rle.to_runs([rle], coco_rle._fields(rle)[0]),
]
SMALLEST, LARGEST = -(2**34), 2**34 - 1  # of what seven groups of five bits hold


def write(values):
    """COCO's string of what stands in it, which for a count from the fourth on is a difference."""
    characters = []
    for value in values:
        left = value
        while True:
            group, left = left & 31, left >> 5
            is_last = left == (-1 if group & 16 else 0)
            characters.append(48 + group + (0 if is_last else 32))
            if is_last:
                break
    return bytes(characters)


def string_of(counts):
    return write([count - counts[i - 2] if i > 2 else count for i, count in enumerate(counts)])


def read(string):
    """What stands in a string, in Python's integers; None if it is no such string."""
    values, value, shift = [], 0, 0
    for byte in string:
        if not 48 <= byte < 112 or shift > 30:
            return None
        group = byte - 48
        value |= (group & 31) << shift
        shift += 5
        if not group & 32:
            values.append(value - (1 << shift) if group & 16 else value)
            value, shift = 0, 0
    if shift:
        return None
    for i in range(3, len(values)):
        values[i] += values[i - 2]
    return values


def pixels_inside(counts, size):
    """The mask as the set of its pixels' column-major numbers; None if the counts are not those of such a mask."""
    if counts is None or min(counts, default=0) < 0 or sum(counts) != size[0] * size[1]:
        return None
    ends = np.cumsum([0, *counts]).tolist()
    return {pixel for i in range(1, len(counts), 2) for pixel in range(ends[i], ends[i + 1])}


def assert_read_as(rle, inside):
    """Every reader agrees with the pixels, or refuses where there are none."""
    if inside is None:
        for reader in READERS:
            with pytest.raises(InputError):
                reader(rle)
        return
    height, width = rle["size"]
    mask = np.zeros(height * width, bool)
    mask[sorted(inside)] = True
    mask = mask.reshape(width, height).T
    np.testing.assert_array_equal(coco_rle.decode(rle), mask)
    assert coco_rle.area(rle) == len(inside)
    rows, columns = np.nonzero(mask)
    box = (columns.min(), rows.min(), columns.max() + 1, rows.max() + 1) if inside else (0, 0, 0, 0)
    assert coco_rle.to_xyxy(rle) == box
    left, top, crop = coco_rle.decode_crop(rle)
    np.testing.assert_array_equal(crop, mask[top : top + crop.shape[0], left : left + crop.shape[1]])
    assert crop.sum() == len(inside)
    assert (coco_rle.polygons(rle) == []) == (not inside)
    assert coco_rle.iou(rle, rle) == 1
    np.testing.assert_array_equal(coco_rle.decode(coco_rle.from_json(rle)), mask)
    runs = coco_rle.to_runs([rle] * 3, (height, width))
    assert runs.firsts.tolist() == [len(runs.spans) // 3 * number for number in range(4)]
    assert (np.diff(runs.spans) > 0).all()
    for spans in runs.spans.reshape(3, -1, 2).tolist():
        assert [pixel for start, end in spans for pixel in range(start, end)] == sorted(inside)


SIZES = st.tuples(st.integers(0, 7), st.integers(0, 7))
VALUES = st.one_of(
    st.integers(-3, 60),
    st.integers(SMALLEST, LARGEST),
    st.sampled_from([0, 1, 2**31, 2**32 - 1, 2**33, LARGEST, SMALLEST]),
)


few = settings(max_examples=60)


@few
@given(size=SIZES, values=st.lists(VALUES, max_size=8))
@example(size=(5, 7), values=[35])
def test_strings_are_read_as_python_reads_them(size, values):
    string = write(values)
    assert_read_as({"size": list(size), "counts": string}, pixels_inside(read(string), size))


@few
@given(size=SIZES, cuts=st.lists(st.integers(0, 49), max_size=8), extra=st.sampled_from([0, 0, 0, 1, 2**32, 2**33]))
def test_runs_that_fill_the_mask_are_read_and_others_refused(size, cuts, extra):
    pixels = size[0] * size[1]
    ends = sorted(min(cut, pixels) for cut in cuts)
    counts = [end - start for start, end in zip([0, *ends], [*ends, pixels], strict=True)]
    counts[-1] += extra
    string = string_of(counts)
    for form in (string, string.decode(), counts):
        assert_read_as({"size": list(size), "counts": form}, pixels_inside(counts, size))


@few
@given(size=SIZES, string=st.one_of(st.binary(max_size=12), st.text("0123456789:;<=>?@ABCXYZ[]^_`aghno", max_size=12)))
def test_any_bytes_are_read_as_python_reads_them(size, string):
    data = string if isinstance(string, bytes) else string.encode()
    assert_read_as({"size": list(size), "counts": string}, pixels_inside(read(data), size))


def wrapping(pixels):
    """Counts, none of them negative, whose sum is 2**64 more than the pixels.

    Each is written as the difference to the one two before it, which may not be large: two chains that rise slowly.
    """
    chain = [LARGEST * number for number in range(2**15)]
    left = 2**64 + pixels - 2 * sum(chain)
    chains = (sorted([*chain, part]) for part in (left // 2, left - left // 2))
    return [count for pair in zip(*chains, strict=True) for count in pair]


def test_a_sum_that_wraps_around_64_bits_is_refused():
    counts = wrapping(35)
    string = string_of(counts)
    assert read(string) == counts
    assert sum(counts) == 2**64 + 35
    assert np.array(counts, np.int64).sum() == 35
    rle = {"size": [5, 7], "counts": string}
    for reader in READERS:
        with pytest.raises(InputError, match=r"counts must sum to 5 × 7 = 35, got more"):
            reader(rle)


def test_a_large_mask_takes_no_memory_before_it_is_refused():
    rle = {"size": [65535, 65535], "counts": write([65535**2])}
    assert len(rle["counts"]) <= 8
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for reader in READERS:
        with pytest.raises(
            InputError, match=r"rle has 4,294,836,225 pixels, the limit is 268,435,456; raise maskjet\."
        ):
            reader(rle)
    fields = {"size": rle["size"], "has_masks": True, "detections": [entry(rle={**rle, "counts": "0"})]}
    with pytest.raises(InputError, match="rle has 4,294,836,225 pixels"):
        Detections.from_dict(fields)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 2**17  # KiB


def test_the_limit_can_be_raised(monkeypatch):
    monkeypatch.setattr(limits, "mask_pixels", 2**80)
    for size, counts in (([2**17, 2**13], [5, 2**30 - 5]), ([2**16, 2**16], string_of([2**32 - 3, 3]))):
        assert coco_rle.area({"size": size, "counts": counts}) in (2**30 - 5, 3)
    with pytest.raises(InputError, match=r"size must be \[H, W\] in pixels, got a number"):
        coco_rle.area({"size": [0, 10**30], "counts": []})


@pytest.mark.parametrize("counts", ["\ud800", "5\udfff", "é", "٣", "5\x00", b"\xff", "", b"", "~", "/"])
def test_text_that_is_no_string_is_refused(counts):
    with pytest.raises(InputError, match="counts must "):
        coco_rle.area({"size": [2, 2], "counts": counts})
    if not str(counts).isascii():
        with pytest.raises(InputError, match="counts must be"):
            coco_rle.to_json({"size": [2, 2], "counts": counts})


STRANGE = [
    *(None, True, 1.5, float("nan"), "ab", [], [1, 2, 3], [2, -2], [2.0, 2], [True, 2], {"size": 1}, [[2], 2]),
    *([2, 10**30], [10**5000, 1], ["2", "2"], object(), np.zeros(2)),
]


@pytest.mark.parametrize("strange", STRANGE, ids=lambda value: type(value).__name__)
def test_other_types_are_refused(strange):
    good = {"size": [2, 2], "counts": b"4"}
    for rle in (strange, {**good, "size": strange}, {**good, "counts": strange}, {"size": strange}):
        for reader in READERS:
            with pytest.raises(InputError):
                reader(rle)
    for rle in (strange, {**good, "size": strange}, {"size": strange}):
        with pytest.raises(InputError):
            coco_rle.to_json(rle)


def test_a_message_stays_short():
    for counts in ("~" * 10**6, [-1] * 10**6):
        with pytest.raises(InputError) as caught:
            coco_rle.area({"size": [2, 2], "counts": counts})
        assert len(str(caught.value)) < 200


def entry(**changes):
    good = {"class_id": 3, "class_name": "car", "confidence": 0.5, "xyxy": [0, 1, 2, 3.5]}
    return {**good, "rle": {"size": [2, 2], "counts": "13"}, **changes}


def test_json_and_good_fields_are_read():
    for counts in (b"13", "13", [1, 3]):
        rle = {"size": (2, np.int64(2)), "counts": counts}
        assert json.loads(json.dumps(coco_rle.to_json(rle))) == {"size": [2, 2], "counts": "13"}
        assert coco_rle.from_json(rle) == {"size": [2, 2], "counts": b"13"}
    fields = {"size": [2, 2], "has_masks": True, "detections": [entry(), entry(class_id=7, class_name="bus")]}
    found = Detections.from_dict(fields)
    assert found.as_dict() == fields


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": None}, r"size must be \[height, width\] in pixels, got None"),
        ({"size": [True, 2]}, "size must be a whole number of at least 0, got True"),
        ({"size": [3, 2]}, r"rle\[0\] must have the image's size"),
        ({"detections": [{}]}, "fields must be what .*: 'class_id'"),
        ({"detections": [entry(class_id=2**40)]}, "class_id must be a whole number of 32 bits"),
        ({"detections": [entry(class_name=["car"])]}, "class_name must be text, got list"),
        ({"detections": [entry(confidence="0.5")]}, "confidence must be numbers, got <U3"),
        ({"detections": [entry(confidence=1e300)]}, "confidence must be .*, within float32's range"),
        ({"detections": [entry(xyxy=[1, 2, 3])]}, r"xyxy must be float32 \[1, 4\], got float32 \[1, 3\]"),
        ({"detections": [entry(rle=None)]}, r"rle must be \{'size'"),
        ({"detections": [entry(rle={"size": [2, 2], "counts": "\ud800"})]}, "counts must be a whole COCO RLE string"),
    ],
)
def test_wrong_fields_are_named(changes, message):
    fields = {"size": [2, 2], "has_masks": True, "detections": [entry()], **changes}
    with pytest.raises(InputError, match=message):
        Detections.from_dict(fields)


@pytest.mark.slow
def test_no_compiled_loop_leaves_its_arrays(tmp_path):
    """The same with numba's checks of every index; they are compiled in, so in a process of its own."""
    tests = ["any_bytes_are_read_as_python_reads_them", "strings_are_read_as_python_reads_them"]
    tests += ["runs_that_fill_the_mask_are_read_and_others_refused"]
    calls = "".join(f"hostile.test_{name}()\n" for name in tests)
    profile = 'import hypothesis\nhypothesis.settings.register_profile("slow", derandomize=True, deadline=None)\n'
    program = f'{profile}hypothesis.settings.load_profile("slow")\n'
    program += f"from tests.masks import test_coco_rle_hostile as hostile\n{calls}"
    # The cache knows nothing of these checks.
    checks = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_OPT": "0", "MASKJET_CACHE_DIR": str(tmp_path)}
    command, root = [sys.executable, "-c", program], Path(__file__).parents[2]
    done = subprocess.run(command, cwd=root, env={**os.environ, **checks}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
