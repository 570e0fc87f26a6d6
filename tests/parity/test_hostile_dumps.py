"""Dumps from anybody: what is wrong is one of our errors before it costs memory, and nothing wrong is compared."""

import json
import struct
import zipfile

import numpy as np
import pytest
import torch

from maskjet import limits
from maskjet.errors import InputError, MaskjetError, SourceError
from maskjet.parity.check import check
from maskjet.parity.dump import Dump
from maskjet.parity.gate import Limits, judge
from maskjet.parity.images import streets_from
from maskjet.parity.page import write_page
from maskjet.parity.pair import compare
from maskjet.parity.pictures import find_worst
from tests.parity.dumps import FAULTS, STREETS, detections, dump
from tests.parity.hostile import STRANGE, archive, deep, flip, members, pack, replaced, unpack

TRUTH = STREETS.truth()
REFUSED = "must be a dump that maskjet parity dump wrote, it is not: "


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    path = tmp_path_factory.mktemp("good") / "one.npz"
    dump("two", list(FAULTS.values())).save(path)
    return path.read_bytes()


@pytest.fixture
def load(tmp_path):
    def load(data):
        (tmp_path / "one.npz").write_bytes(data)
        return Dump.load(tmp_path / "one.npz")

    return load


def use(found):
    """All that is done with a dump short of opening images."""
    report = check(dump(), found) if len(found.names) == 4 else check(found, found)
    str(report).encode()
    json.dumps(report.as_dict())
    judge(report, None, Limits(max_unmatched=1))
    found.to_annotations(TRUTH)
    streets_from(found.images, len(found.names))


def fuzz(load, mutate, count, seed):
    """Load mutated dumps, use those that are taken: how many were."""
    random = np.random.default_rng(seed)
    taken = 0
    for _ in range(count):
        try:
            use(load(mutate(random)))
            taken += 1
        except MaskjetError as error:
            str(error).encode()
    return taken


def test_flipped_and_cut_files(load, good):
    assert fuzz(load, lambda random: flip(random, good, int(random.integers(1, 4))), 50, 0) < 20
    assert fuzz(load, lambda random: good[: int(random.integers(len(good)))], 20, 1) == 0


def test_edited_headers(load, good):
    header, fields = unpack(good)
    use(load(pack(header, fields)))
    for endless in (b"[" * 200_000, b'{"format": ' + b"9" * 10_000 + b"}"):
        with pytest.raises(SourceError, match=REFUSED):
            load(pack(endless, fields))
    assert fuzz(load, lambda random: pack(replaced(random, header, STRANGE), fields), 80, 2) < 48


def edit_array(random, fields):
    """One array of another dtype, shape or length, or with a strange number in it."""
    name = list(fields)[int(random.integers(len(fields)))]
    values, action = fields[name], int(random.integers(7))
    if action == 0:
        kinds = ("f8", ">f4", "i8", "u1", "O", "U3", "c8", "?", "M8[s]", "i4", "f4")
        values = values.astype(kinds[int(random.integers(len(kinds)))])
    elif action == 1:
        values = values[: int(random.integers(len(values)))]
    elif action == 2:
        values = np.concatenate([values, values[:1]])
    elif action == 3:
        values = values.reshape(-1, 1) if random.random() < 0.5 else np.asfortranarray(values.reshape(-1, 2).T)
    elif action == 4:
        values = np.array(values.reshape(-1)[0])
    else:
        values = values.copy()
        strange = [-1, 0, 1, 255, -(2**31), 2**31 - 1] if values.dtype.kind in "iu" else [np.nan, np.inf, -1, 1e38, 0]
        number = strange[int(random.integers(len(strange)))]
        values.reshape(-1)[int(random.integers(values.size))] = np.asarray(number).astype(values.dtype)
    return {**fields, name: values}


@pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore::numpy.exceptions.ComplexWarning")
def test_edited_arrays(load, good):
    header, fields = unpack(good)

    def mutate(random):
        while True:
            try:
                return pack(header, edit_array(random, fields))
            except ValueError:  # this array can't be edited so
                continue

    assert fuzz(load, mutate, 80, 3) < 32


def test_edited_array_heads(load, good):
    files = members(good)

    def mutate(random):
        name = list(files)[int(random.integers(len(files)))]
        return archive({**files, name: flip(random, files[name][:128]) + files[name][128:]}.items())

    assert fuzz(load, mutate, 40, 4) < 16


@pytest.mark.parametrize(
    ("edits", "message"),
    [
        ({"confidence": [np.nan]}, r"confidence must be 0.05 \(the threshold\) to 1, got .*nan"),
        ({"xyxy": [[0, 0, 1e9, 5]]}, "xyxy must be finite and near the image"),
        ({"class_id": [-1]}, "class_id must be 0 or more, got .*-1"),
        ({"counts": [-3]}, "counts must be 0 or more, got .*-3"),
        ({"counts": [9]}, "counts must be those of 12 detections, got 18"),
        ({"sizes": [[0, 9]]}, "sizes must be at least one pixel a side, got .*0"),
        ({"sizes": [[9, 9]]}, "a mask on 'street 5' is damaged|xyxy must be"),
        ({"string_lengths": [-1]}, "string_lengths must be at least 1"),
        ({"string_lengths": [500]}, "string_lengths must be those of .* bytes"),
        ({"strings": [255]}, "a mask on 'street 5' is damaged, counts must be a whole COCO RLE"),
    ],
)
def test_contradictions_are_named(load, edits, message, tmp_path):
    dump().save(tmp_path / "plain.npz")
    header, fields = unpack((tmp_path / "plain.npz").read_bytes())
    for name, values in edits.items():
        fields[name] = fields[name].copy()
        fields[name][: len(values)] = values
    with pytest.raises(SourceError, match=f"{REFUSED}({message})"):
        load(pack(header, fields))


def test_a_confidence_rounded_to_bfloat16_may_lie_below_its_threshold(load, good):
    header, fields = unpack(good)
    threshold = 2**-5 * (1 + 2**-8)  # halfway between two bfloat16 numbers, so that rounding moves it furthest
    header["variant"]["threshold"] = threshold
    fields["confidence"][0] = torch.tensor(threshold).bfloat16()
    assert fields["confidence"][0] == 2**-5
    load(pack(header, fields))
    fields["confidence"][0] = 2**-5 * (1 - 2**-15)
    with pytest.raises(SourceError, match=f"{REFUSED}confidence must be"):
        load(pack(header, fields))


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        (("variant", "threshold"), 1, "threshold must be 0 or more and below 1, got 1"),
        (("variant", "threshold"), float("nan"), "Out of range float values are not JSON compliant"),
        (("variant", "name"), "a\nkept: all", r"variant\['name'\] must be in printable characters"),
        (("variant", "name"), "\ud800", "surrogates not allowed"),
        (("variant", "depth"), deep(9), "header must be at most 8 levels deep"),
        (("names", 1), "street 5", "names must be different, got 'street 5'"),
        (("names", 1), 7, "names must be a list of strings"),
        (("digests",), [], "digests must be one per image, 4, got 0"),
        (("class_names",), {"-1": "car"}, "class_names must be by class id, got '-1'"),
        (("class_names",), {"0": "\x1b[2J"}, "class_names must be in printable characters"),
        (("has_masks",), False, "string_lengths must be one per mask, 0, got 12"),
        (("run", "gpu"), "x", "'gpu' must be dict or NoneType, got 'x'"),
        (("run",), {}, r"header must have 'cpu', got \[\]"),
        (("images", "kind"), None, "'kind' must be str, got None"),
        (("format",), "zip", "it is of another format"),
    ],
)
def test_wrong_headers_are_named(load, path, value, message, tmp_path):
    dump().save(tmp_path / "plain.npz")
    header, fields = unpack((tmp_path / "plain.npz").read_bytes())
    place = header
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(SourceError, match=f"one.npz' {REFUSED}.*{message}"):
        load(pack(header, fields))


def test_an_older_dump_says_not_what_was_skipped(load, good):
    header, fields = unpack(good)
    del header["skipped"]
    assert load(pack(header, fields)).skipped == []


def head(dtype, *shape):
    """Of an array, as NumPy writes it."""
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    return b"\x93NUMPY\x01\x00v\x00" + text.encode().ljust(117) + b"\n"


def test_bombs_are_refused_before_they_are_unpacked(load, good, monkeypatch):
    files = members(good)
    with pytest.raises(SourceError, match=f"{REFUSED}(Unable to allocate 14.6 TiB|EOF: reading array data)"):
        load(archive({**files, "xyxy.npy": head("<f4", 10**12, 4) + files["xyxy.npy"][128:]}.items()))
    zeros = head("<i4", 5 * 10**6) + bytes(20 * 10**6)
    with pytest.raises(SourceError, match="counts must be one per image, 4, got 5000000"):
        load(archive({**files, "counts.npy": zeros}.items()))
    with pytest.raises(SourceError, match=r"arrays must be header, .*, each once, got \["):
        load(archive([*files.items(), ("more.npy", b"")]))
    with pytest.raises(SourceError, match=r"header\.npy must be stored or deflated, got 14"):
        load(archive(files.items(), zipfile.ZIP_LZMA))
    monkeypatch.setattr(limits, "dump_bytes", 1000)
    unpacked = []
    monkeypatch.setattr("maskjet.parity.dump_file._unpack", lambda *_: unpacked.append(1))
    with pytest.raises(SourceError, match=r"one\.npz' unpacks to [\d,]+ bytes, the limit is 1,000; raise "):
        load(good)
    assert unpacked == []


def test_stated_sizes_that_are_not_so(load, good):
    place = good.rindex(b"PK\x01\x02")  # of the last array in the list: how large it is unpacked
    for size in (0, 127, 129):
        with pytest.raises(SourceError, match=REFUSED):
            load(good[: place + 24] + struct.pack("<I", size) + good[place + 28 :])


def test_images_larger_than_the_limit(load, good, monkeypatch):
    monkeypatch.setattr(limits, "image_pixels", 96 * 160 - 1)
    with pytest.raises(SourceError, match="an image of the dump has 15,360 pixels, the limit is 15,359"):
        load(good)


def test_what_could_not_be_read_is_not_written(tmp_path):
    with pytest.raises(InputError, match=r"one\.npz' must be a dump that can be read again: confidence must be 0\.05"):
        dump(found=[detections(confidence=(0.9, np.nan, 0.5))]).save(tmp_path / "one.npz")
    with pytest.raises(InputError, match="names must be different, got 'a'"):
        dump(names=["a", "a", "b", "c"]).save(tmp_path / "one.npz")
    with pytest.raises(InputError, match="class_names must be the same for all images"):
        dump(found=[detections(class_names={0: "bus", 1: "car"})]).save(tmp_path / "one.npz")
    assert list(tmp_path.iterdir()) == []


def test_streets_that_no_dump_can_be_of():
    for more in (
        *({"count": 10**12}, {"count": 3}, {"size_hw": [10**6]}, {"size_hw": [96, "160"]}, {"size_hw": [0, 160]}),
        *({"size_hw": 5}, {"seed": True}, {"density": 1e9}),
    ):
        with pytest.raises(InputError, match="the dump must be of 4 streets with a size_hw and a seed, got"):
            streets_from({**STREETS.describe(), **more}, 4)
    with pytest.raises(InputError, match=r"size_hw \(1000000, 1000000\) has 1,000,000,000,000 pixels, the limit is"):
        streets_from({**STREETS.describe(), "size_hw": [10**6, 10**6]}, 4)
    with pytest.raises(InputError, match=r"seed must be 0 or more and below 2\*\*63, got -5"):
        streets_from({**STREETS.describe(), "seed": -5}, 4)


@pytest.mark.parametrize("source", ["http://example.com/a.png", "/etc/passwd"])
def test_no_path_in_a_dump_is_opened(source, tmp_path):
    images = {"kind": "files", "source": source}
    one, two = dump(images=images), dump("two", [FAULTS["dropped"]], images=images)
    report = check(one, two)
    with pytest.raises(InputError, match=r"--images must be given again: .* what a dump names is not opened"):
        list(find_worst(report.worst, one, two))
    with pytest.raises(InputError, match="--images must be given again"):
        write_page(tmp_path / "page.html", report, [], (one, two))
    assert len(list(find_worst(report.worst, one, two, STREETS))) == 1  # given again
    one, two = dump(digests=["x"] * 4), dump("two", [FAULTS["dropped"]], digests=["x"] * 4)
    with pytest.raises(InputError, match="number 0, 'street 5', has other pixels"):
        list(find_worst(check(one, two).worst, one, two))


def test_numbers_that_are_none_are_not_paired():
    with pytest.raises(InputError, match=r"confidence of actual must be finite, got .*nan"):
        compare(detections(), detections(confidence=(0.9, np.nan, 0.5)))
    misplaced = detections()
    misplaced.xyxy[1] = np.nan
    with pytest.raises(InputError, match="xyxy of expected must be finite"):
        compare(misplaced, detections())
