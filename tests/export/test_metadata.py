"""What a file says about its network: all of it comes back, and nothing is believed unseen."""

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.planted import TINY
from maskjet import limits
from maskjet.errors import CheckpointError, InputError
from maskjet.networks.exported.metadata import Metadata, properties_of, read_onnx
from maskjet.spec import SPECS

NET = Metadata(TINY, "fp16")
LETTERBOXED = replace(TINY, antialias=True, resize="letterbox", letterbox_color="#0000ff", letterbox_place="top-left")
FILTER = {"filter": "bilinear", "centres": "half_pixel"}
RESIZE = {"mode": "stretch", "color": "#727272", "place": "center", "antialias": False, **FILTER}


def write(path, properties):
    """An ONNX file with these metadata, and next to nothing else."""
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1])
    graph = onnx.helper.make_graph([onnx.helper.make_node("Relu", ["x"], ["y"])], "g", [value], [])
    model = onnx.helper.make_model(graph)
    for key, text in properties:
        model.metadata_props.add(key=key, value=text)
    onnx.save(model, path)
    return path


def changed(**values):
    """Properties with some other values."""
    properties = NET.as_properties()
    for name, value in values.items():
        properties[f"maskjet.{name}"] = json.dumps(value)
    return properties


def read(path):
    return Metadata.from_properties(properties_of(read_onnx(Path(path), "a test")))


@pytest.mark.parametrize("metadata", [NET, *(Metadata(spec, "fp32") for spec in (LETTERBOXED, *SPECS.values()))])
def test_metadata_come_back_from_a_file(metadata, tmp_path):
    path = write(tmp_path / "a.onnx", [("author", "someone"), *metadata.as_properties().items()])
    assert read(path) == metadata


@pytest.mark.parametrize("precision", ["fp32", pytest.param("fp16", marks=pytest.mark.slow)])
def test_exported_files_have_them(precision, exported):
    found = read(exported(precision).path)
    assert (found.spec, found.precision) == (TINY, precision)


def test_files_of_versions_that_could_export_the_choice_of_detections():
    assert Metadata.from_properties(changed(selecting=None)) == NET


def test_the_keys_are_those_of_the_documentation():
    stated = {key: json.loads(text) for key, text in NET.as_properties().items()}
    spec = stated.pop("maskjet.spec")
    assert stated == {
        "maskjet.version": 1,
        "maskjet.class_names": {"0": "a", "2": "c"},
        "maskjet.mean": [*TINY.mean],
        "maskjet.std": [*TINY.std],
        "maskjet.resize": RESIZE,
        "maskjet.precision": "fp16",
    }
    assert spec["input_size"] == 64
    assert not {"class_names", "mean", "std", "resize", "letterbox_color", "letterbox_place"} & spec.keys()


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ({}, r"must have keys that begin with maskjet\., got none"),
        (changed(version=2), "maskjet.version must be 1, got 2: export the file again"),
        (changed(other=1), r"must have the keys of version 1, maskjet\.other is unknown"),
        ({key: text for key, text in changed().items() if "resize" not in key}, r"maskjet\.resize is missing"),
        (changed() | {"maskjet.mean": "[0.1,"}, r"maskjet\.mean must be JSON: "),
        (changed() | {"maskjet.mean": "[" * 100_000}, r"maskjet\.mean must be JSON: "),
        (changed() | {"maskjet.mean": " " * (2**24 + 1)}, r"maskjet\.mean must have at most 16,777,216 characters"),
        (changed() | {"maskjet.std": "[NaN, 1, 1]"}, "std must be three finite numbers"),
        (changed(class_names=["z"]), "class_names must be a mapping"),
        (changed(spec=[]), r"maskjet\.spec must be an object without class_names, mean, std"),
        (changed(spec={"name": "a"}), "spec must state the fields of ModelSpec"),
        (changed(resize=RESIZE | {"mode": "crop"}), r"resize must be one of \('stretch', 'letterbox'\), got 'crop'"),
        (changed(resize=RESIZE | {"place": []}), r"letterbox_place must be one of .*, got \[\]"),
        (changed(resize=RESIZE | {"color": "grey"}), "letterbox_color must be #rrggbb, as in #727272, got 'grey'"),
        (changed(resize=RESIZE | {"antialias": 1}), "antialias must be True or False, got 1"),
        (changed(resize=RESIZE | {"filter": "cubic"}), r"maskjet\.resize must be mode, color, place, antialias with "),
        (changed(precision="fp8"), r"maskjet\.precision must be one of \('fp32', 'fp16', 'bf16', 'int8'\), got 'fp8'"),
        (changed(selecting={"thresholds": [0.5], "rows": 3}), "it must be exported without postprocess"),
    ],
    ids=lambda value: value[:40] if isinstance(value, str) else "",
)
def test_what_is_invalid_is_named(properties, message):
    with pytest.raises(InputError, match=message):
        Metadata.from_properties(properties)


def test_files_that_are_none_are_refused(tmp_path, monkeypatch):
    with pytest.raises(CheckpointError, match=r"model must be an ONNX file, got .*none\.onnx"):
        read(tmp_path / "none.onnx")
    (tmp_path / "a.onnx").write_bytes(b"no protobuf at all")
    with pytest.raises(CheckpointError, match="model must be an ONNX file"):
        read(tmp_path / "a.onnx")
    (tmp_path / "empty.onnx").touch()
    with pytest.raises(InputError, match="must have keys that begin with maskjet"):
        read(tmp_path / "empty.onnx")
    write(tmp_path / "twice.onnx", [*NET.as_properties().items(), ("maskjet.version", "1")])
    with pytest.raises(InputError, match="metadata must have each key once"):
        read(tmp_path / "twice.onnx")
    monkeypatch.setattr(limits, "checkpoint_bytes", 10)
    with pytest.raises(CheckpointError, match="has 18 bytes, the limit is 10"):
        read(tmp_path / "a.onnx")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = [key.removeprefix("maskjet.") for key in NET.as_properties()]


@settings(max_examples=40)
@given(st.dictionaries(st.sampled_from(KEYS), JSON, min_size=1))
def test_any_json_is_read_or_refused(values):
    with suppress(InputError):
        read = Metadata.from_properties(changed(**values))
        assert Metadata.from_properties(read.as_properties()) == read
