"""Bodies of the Open Inference Protocol: what is written is read, and what is damaged is refused in our words."""

import base64
import json
import math
import struct
import time
import tracemalloc

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from maskjet.errors import InputError
from maskjet.serve.problems import ProblemError
from maskjet.serve.tickets import Options
from maskjet.serve.v2_codec import OUTPUTS, InferRequest, read_json_size, write_response
from maskjet.serve.v2_images import read_images as read_given
from maskjet.serve.v2_json import read as read_fields
from tests.detections.test_detections import some_detections
from tests.serve.client import check_equal
from tests.sources.test_hostile_images import png_of

LIMITS = {"most_images": 8, "most_pixels": 10_000}


def join(fields, binary=None):
    """A body and its header, as a client sends them."""
    text = json.dumps(fields).encode()
    return (text, None) if binary is None else (text + binary, str(len(text)))


def image_input(shape, datatype="UINT8", **more):
    return {"inputs": [{"name": "image", "datatype": datatype, "shape": shape, **more}]}


def binary_body(shape, binary, datatype="UINT8", **fields):
    return join({**image_input(shape, datatype, parameters={"binary_data_size": len(binary)}), **fields}, binary)


def prefixed(elements):
    return b"".join(struct.pack("<I", len(one)) + one for one in elements)


def read(body_and_header, **limits):
    """The request and its images."""
    body, header = body_and_header
    size = read_json_size(header, len(body))
    request = read_fields(InferRequest, body[:size])
    return request, read_given(request.inputs[0], memoryview(body)[size:], **{**LIMITS, **limits})


def read_images(body_and_header, **limits):
    return read(body_and_header, **limits)[1]


def respond(found, sent):
    request, _ = read(sent)
    return write_response(found, request.id, request.choose_outputs(OUTPUTS), "demo", "1")


pixels = st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 4)).flatmap(
    lambda nhw: st.binary(min_size=3 * math.prod(nhw), max_size=3 * math.prod(nhw)).map(
        lambda data: np.frombuffer(data, dtype=np.uint8).reshape(*nhw, 3)
    )
)


@given(pixels, st.sampled_from(["binary", "flat", "nested"]), st.booleans())
@settings(max_examples=60)
def test_pixels_are_read_as_they_were_written(images, form, is_batch):
    images = images if is_batch else images[0]
    if form == "binary":
        sent = binary_body(list(images.shape), images.tobytes())
    else:
        sent = join(image_input(list(images.shape), data=(images if form == "nested" else images.ravel()).tolist()))
    got = read_images(sent)
    assert len(got) == (len(images) if is_batch else 1)
    assert np.array_equal(np.stack(got), images if is_batch else images[None])


def test_binary_pixels_share_the_memory_of_the_body():
    body, header = binary_body([2, 2, 3], bytes(range(12)))
    (image,) = read_images((body, header))
    assert np.shares_memory(image, np.frombuffer(body, dtype=np.uint8))


@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), min_size=1, max_size=4), st.booleans())
@settings(max_examples=20)
def test_encoded_images_are_read_as_they_were_written(sizes, is_binary):
    encoded = [png_of(*size) for size in sizes]
    if is_binary:
        sent = binary_body([len(encoded)], prefixed(encoded), "BYTES")
    else:
        sent = join(image_input([len(encoded)], "BYTES", data=[base64.b64encode(one).decode() for one in encoded]))
    assert read_images(sent) == encoded


def test_parameters_and_outputs_are_read():
    chosen = {"threshold": 0.25, "classes": "car, bus", "max_detections": 3, "nms": 0.5, "timeout": 5}
    chosen |= {"binary_data_output": True}
    outputs = [{"name": "masks", "parameters": {"binary_data": False}}, {"name": "boxes"}]
    request, _ = read(binary_body([1, 1, 3], b"abc", id="7", parameters=chosen, outputs=outputs))
    assert (request.id, request.options()) == ("7", Options(0.25, ("car", "bus"), 3, 0.5))
    assert request.parameters.timeout == 5
    asked = [(spec.name, is_binary) for spec, is_binary in request.choose_outputs(OUTPUTS)]
    assert asked == [("masks", False), ("boxes", True)]
    plain, _ = read(binary_body([1, 1, 3], b"abc", parameters={"classes": ["a, b"]}))
    assert plain.choose_outputs(OUTPUTS) == [(spec, False) for spec in OUTPUTS]
    assert (plain.id, plain.options(), plain.parameters.timeout) == (None, Options(classes=("a, b",)), None)


WRONG_FIELDS = [
    ([], "The request must be an object, got \\[\\]"),
    ({}, r"inputs must be given\."),
    ({"inputs": []}, "inputs must have at least 1 item"),
    ({"inputs": image_input([1, 1, 3], data=[1, 2, 3])["inputs"] * 2}, "inputs must have at most 1 item"),
    ({"inputs": [{"name": "\x1b[2J" + "x" * 10**5}]}, r"got '\\x1b\[2Jx{91}…\.$"),
    (image_input([1, 1, 3], "FP32", data=[0, 0, 0]), r"inputs\.0\.datatype must be 'UINT8' or 'BYTES', got 'FP32'"),
    (image_input([1, 1, 1, 1, 3], data=[]), r"inputs\.0\.shape must have at most 4 items"),
    (image_input([1, 3], data=[]), r"shape must be \[H, W, 3\] or \[N, H, W, 3\] of UINT8, got \[1, 3\]"),
    (image_input([1, 1, 4], data=[]), r"shape must be .* of UINT8, got \[1, 1, 4\]"),
    (image_input([0, 1, 3], data=[]), r"inputs\.0\.shape\.0 must be greater than or equal to 1, got 0"),
    (image_input([10**30, 1, 3], data=[]), "must be less than 2147483648, got a number of more than 64 bits"),
    (image_input([True, 1, 3], data=[]), r"inputs\.0\.shape\.0 must be a valid integer, got True"),
    (image_input([1, 1], "BYTES", data=[]), r"shape must be \[N\] of BYTES"),
    (image_input([1, 1, 3]), "image must have either data or binary_data_size"),
    *(
        (image_input([1, 1, 3], parameters={"shared_memory_region": name, **more}), "_region must be left out")
        for name, more in (("a", {}), (7, {"binary_data_size": 0}), (["a"], {"shared_memory_byte_size": -1}))
    ),
    (image_input([1, 1, 3], data=[1, 2]), "image must have 3 values, as its shape, got 2"),
    *((image_input([1, 1, 3], data=[1, 2, each]), r"whole numbers 0\.\.255") for each in (256, 2**70, 1.0)),
    (image_input([2, 1, 3], data=[[[1, 2, 3]], [[1, 2]]]), "image must have 6 values, as its shape, got 5"),
    (image_input([2, 1, 3], data=[[[1, 2, 3]], 4]), r"whole numbers 0\.\.255"),
    (image_input([1], "BYTES", data=[]), "data must be 1 texts, as its shape, got 0"),
    *((image_input([1], "BYTES", data=[each]), "data must be base64") for each in (7, "é")),
    (image_input([1, 1, 3], parameters={"binary_data_size": 3}), "must be the 0 bytes after the JSON, got 3"),
]
WRONG_CHOICES = [
    ({"id": "x" * 1025}, "id must have at most 1024 characters"),
    ({"parameters": {"treshold": 1}}, r"parameters\.treshold must be left out: it is unknown, got 1"),
    ({"parameters": {"threshold": 1.5}}, r"parameters\.threshold must be less than or equal to 1, got 1\.5"),
    ({"parameters": {"classes": []}}, r"parameters\.classes must have at least 1 item"),
    ({"parameters": {"classes": ["x" * 1025]}}, "at most 1024 characters"),
    ({"parameters": {"classes": "a," * 4097}}, "at most 4096 items"),
    ({"parameters": {"max_detections": 2**31}}, "must be less than 2147483648"),
    ({"parameters": {"timeout": 0}}, r"parameters\.timeout must be greater than or equal to 1"),
    ({"outputs": [{"name": "box"}]}, "got 'box'; did you mean 'boxes'?"),
    ({"outputs": [{"name": "boxes"}] * 2}, "each name once, got 'boxes' twice"),
    ({"outputs": [{"name": "boxes"}] * 7}, "outputs must have at most 6 items"),
    *(
        ({"outputs": [{"name": "boxes", "parameters": {name: 3}}]}, rf"outputs\.0\.parameters\.{name} must be left out")
        for name in ("classification", "shared_memory_region")
    ),
]


@pytest.mark.parametrize(
    ("sent", "message"),
    [(join(fields), message) for fields, message in WRONG_FIELDS]
    + [(binary_body([1, 1, 3], b"abc", **fields), message) for fields, message in WRONG_CHOICES],
    ids=[message[-30:] for _, message in WRONG_FIELDS + WRONG_CHOICES],
)
def test_a_wrong_tensor_or_choice_is_refused(sent, message):
    with pytest.raises(InputError, match=message) as caught:
        respond([], sent)
    assert len(str(caught.value).encode()) < 300  # which also is valid UTF-8


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "The request must be JSON, or binary data after it with the header Inference-Header"),
        (b"[" * 50_000, "The request must be JSON.* recursion limit exceeded"),
        (b'{"inputs": [], "parameters": {"threshold": NaN}}', r"threshold must be a finite number, got nan"),
        (b'{"id": "\\ud800"}', "The request must be JSON"),
        (b'{"inputs": [{"name": "image", "datatype": "BYTES", "shape": [-' + b"9" * 10**5 + b"]}]}", "must be JSON"),
        (b'{"inputs": []} x', "The request must be JSON"),
    ],
)
def test_broken_json_is_refused(text, message):
    with pytest.raises(InputError, match=message):
        read((text, None))


@pytest.mark.parametrize("text", [b"[" + b"1," * 2**20 + b"1]", b"[" + b"[]," * 2**18 + b"1]", b'"' + b"\\n" * 2**20])
def test_json_that_takes_long_is_not_parsed(text):
    start = time.perf_counter()
    with pytest.raises(ProblemError, match=r"at most 524,288 values, got about .*; send the image in binary"):
        read((text, None))
    assert time.perf_counter() - start < 0.5


@pytest.mark.parametrize("header", ["", "-1", "+5", "1", "0", " 90", "1e2", "0x10", "٣٣", "9" * 5000, "100000", "5.0"])
def test_a_wrong_length_of_the_json_is_refused(header):
    body, _ = binary_body([1, 1, 3], b"abc")
    with pytest.raises(InputError, match=rf"Inference-Header-Content-Length must be 2\.\.{len(body)}, the body's"):
        read((body, header))


@pytest.mark.parametrize("size", [-1, 0, 2, 4, 2**63, 10**19, True, 3.0, "3", None, [3]])
def test_a_wrong_binary_size_is_refused(size):
    with pytest.raises(InputError, match=r"binary_data_size"):
        read(join(image_input([1, 1, 3], parameters={"binary_data_size": size}), b"abc"))


def test_bytes_that_nobody_claims_are_refused():
    with pytest.raises(InputError, match="binary_data_size must be the 3 bytes after the JSON, got 0"):
        read(join(image_input([1, 1, 3], data=[1, 2, 3]), b"abc"))
    with pytest.raises(InputError, match="image must have either data or binary_data_size"):
        read(join(image_input([1, 1, 3], data=[1, 2, 3], parameters={"binary_data_size": 3}), b"abc"))
    with pytest.raises(InputError, match="must have 6 values, as its shape, got 3"):
        read(binary_body([1, 2, 3], b"abc"))


@pytest.mark.parametrize(
    ("count", "binary", "message"),
    [
        (1, b"", "must have 1 elements, as its shape, its bytes end before number 0"),
        (2, prefixed([png_of(2, 3)]), "must have 2 elements, as its shape, its bytes end before number 1"),
        (1, b"\xff" * 4 + b"abc", "element 0 must have as many bytes as its length states, it has fewer"),
        (1, prefixed([png_of(2, 3)]) + b"\0", "must end with element 0, more bytes follow"),
        (1, png_of(2, 3), "element 0 must have as many bytes"),  # without a length: the signature is one
    ],
)
def test_lengths_of_elements_that_lie_are_refused(count, binary, message):
    with pytest.raises(InputError, match=message):
        read(binary_body([count], binary, "BYTES"))


def test_limits_hold_before_memory_is_taken():
    cases = [
        (binary_body([50_000, 50_000, 3], b"abc"), "at most 10,000 pixels, got 50000×50000"),
        (join(image_input([2**31 - 1, 2**31 - 1, 3], data=[1])), "at most 10,000 pixels"),
        (binary_body([9, 1, 1, 3], b"abc"), "at most 8 images, got 9"),
        (binary_body([2**31 - 1], b"abc", "BYTES"), "at most 8 images, got 2,147,483,647"),
    ]
    tracemalloc.start()
    try:
        for sent, message in cases:
            with pytest.raises(ProblemError, match=message):
                read(sent)
        assert tracemalloc.get_traced_memory()[1] < 100_000
    finally:
        tracemalloc.stop()
    assert len(read_images(binary_body([8, 1, 1, 3], bytes(24)))) == 8
    assert read_images(binary_body([100, 100, 3], bytes(30_000)))[0].shape == (100, 100, 3)


scalars = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5), st.sampled_from([2**31, 2**63, 10**30])
)
names = st.sampled_from(
    ["id", "inputs", "outputs", "parameters", "name", "datatype", "shape", "data", "binary_data_size", "binary_data"]
)
words = st.sampled_from(["image", "UINT8", "BYTES", "boxes", "masks", 3, 1, 0, -1])
anything = st.recursive(
    scalars | words,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(names, inner, max_size=5),
    max_leaves=20,
)


@given(st.dictionaries(names, anything), st.binary(max_size=20), st.none() | st.integers(-2, 300).map(str))
@settings(max_examples=100)
@example({"inputs": [{"name": "image", "datatype": "UINT8", "shape": [1, 1, 3], "data": {}}]}, b"", None)
def test_any_json_is_read_or_refused(fields, binary, header):
    text = json.dumps(fields).encode()
    try:
        read((text + binary, str(len(text)) if header is None else header))
    except (InputError, ProblemError) as error:
        str(error).encode()


def read_response(body, header):
    triton = pytest.importorskip("tritonclient.http", reason="needs tritonclient[http]", exc_type=ImportError)
    return triton.InferenceServerClient.parse_response_body(body, header_length=header)


@pytest.mark.parametrize("counts", [[2], [0], [3, 0, 1], [0, 0]], ids=str)
@pytest.mark.parametrize("binary", [[], ["masks"], ["boxes", "count"], [spec.name for spec in OUTPUTS]], ids=str)
def test_a_response_holds_all_rows_in_order(counts, binary):
    found = [some_detections(count, size=(4 + number, 5)) for number, count in enumerate(counts)]
    outputs = [{"name": spec.name, "parameters": {"binary_data": spec.name in binary}} for spec in reversed(OUTPUTS)]
    body, header = respond(found, binary_body([1, 1, 3], b"abc", id="a", outputs=outputs))
    assert (header is None) == (not binary)
    result = read_response(body, header)
    check_equal(result, found, is_text="masks" not in binary)
    fields = result.get_response()
    sizes = [tensor.get("parameters", {}).get("binary_data_size", 0) for tensor in fields["outputs"]]
    assert sum(sizes) == len(body) - (header or len(body))
    assert (fields["model_name"], fields["model_version"], fields["id"]) == ("demo", "1", "a")
    assert [tensor["name"] for tensor in fields["outputs"]] == [spec.name for spec in reversed(OUTPUTS)]


def test_values_that_are_not_finite_need_binary():
    found = some_detections(1)
    found.xyxy[0, 0] = np.nan
    with pytest.raises(InputError, match="boxes must be finite to be written as JSON; ask for it in binary"):
        respond([found], binary_body([1, 1, 3], b"abc"))
    binary = binary_body([1, 1, 3], b"abc", parameters={"binary_data_output": True})
    result = read_response(*respond([found], binary))
    assert math.isnan(result.as_numpy("boxes")[0][0])


def test_a_large_image_may_be_json():
    (got,) = read_images(join(image_input([400, 400, 3], data=[255] * 480_000)), most_pixels=160_000)
    assert got.min() == 255
