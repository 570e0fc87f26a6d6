"""Networks converted to OpenVINO: the same detections, kept in the cache, and taken where they are faster."""

import copy
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

import maskjet
from maskjet.config import EngineConfig
from maskjet.errors import InputError, MissingDependencyError, UnsupportedError
from maskjet.host.machine import BF16_PRODUCTS, cpu_features
from maskjet.model import Model
from maskjet.networks.exported import conversion
from maskjet.networks.exported.in_openvino import settings_for
from maskjet.networks.exported.metadata import Metadata
from maskjet.networks.exported.network_file import load_openvino
from maskjet.parity.pair import Pairing, pair
from maskjet.traffic import sample
from tests.export.test_running import THRESHOLD, assert_close, in_torch
from tests.networks.test_network import tiny_network
from tests.test_model import image


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """A cache that has the tiny network's conversion."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MASKJET_CACHE_DIR", str(folder))
        opened().close()
    return folder


@pytest.fixture
def cached(converted, monkeypatch):
    """The folder of the conversion, which must not be made again."""
    monkeypatch.setenv("MASKJET_CACHE_DIR", str(converted))
    monkeypatch.setattr(conversion, "to_openvino", None)
    (folder,) = (converted / "converted").iterdir()
    return folder


def opened(runtime="openvino", **options):
    return Model(tiny_network(), EngineConfig(device="cpu", runtime=runtime, **options), threshold=THRESHOLD)


@pytest.mark.usefixtures("cached")
def test_detections_are_the_networks_in_any_batch():
    images = [image(seed=seed) for seed in range(3)]
    with opened() as model:
        assert model.report().network.startswith("OpenVINO ")
        for found, expected in zip(model.predict(images), in_torch(images), strict=True):
            assert_close(found, expected)
        assert_close(model.predict(images[0]), in_torch(images[:1])[0])


@pytest.mark.parametrize("is_slower", [False, True])
def test_auto_takes_what_is_in_the_cache_and_faster(is_slower, cached):
    mark = cached / "slower"
    mark.touch() if is_slower else mark.unlink(missing_ok=True)
    for options, runs in (({}, not is_slower), ({"precision": "bf16"}, False), ({"runtime": "torch"}, False)):
        with opened(**{"runtime": "auto", **options}) as model:
            assert model.report().network.startswith("OpenVINO ") == runs


@pytest.mark.usefixtures("cached")
def test_others_do_not_take_it(monkeypatch):
    for what in ("cpu_features", "_version", "digest_weights"):
        with monkeypatch.context() as patch:
            patch.setattr(conversion, what, lambda *_: "other")
            with opened(runtime="auto") as model:
                assert not model.report().network.startswith("OpenVINO ")


@pytest.mark.slow
def test_a_conversion_that_differs_is_not_kept(tmp_path, monkeypatch):
    def spoil(network):
        other = copy.deepcopy(network)
        other.class_embed.bias += 1e-3
        return convert(other)

    convert = conversion.to_openvino
    monkeypatch.setattr(conversion, "to_openvino", spoil)
    monkeypatch.setenv("MASKJET_CACHE_DIR", str(tmp_path))
    with pytest.raises(UnsupportedError, match="must equal the network, its logits differ by"):
        opened()
    assert not [*Path(tmp_path, "converted").iterdir()]


@pytest.mark.slow
def test_bfloat16_leaves_the_arithmetic_of_boxes_in_float32(tmp_path, monkeypatch):
    network = tiny_network()
    conversion.write(conversion.to_openvino(network), tmp_path / "a.xml", Metadata(network.spec, "bf16"))
    marked = {
        layer.get("name")
        for layer in ElementTree.parse(tmp_path / "a.xml").iter("layer")
        if layer.find("rt_info/attribute[@name='DisablePrecisionConversion']") is not None
    }
    assert {name.split(".")[1].partition("/")[0] for name in marked} == {"transformer", "class_embed", "bbox_embed"}
    core = load_openvino("a test").Core()
    compiled = core.compile_model(core.read_model(str(tmp_path / "a.xml")), "CPU", settings_for("bf16"))
    types = {
        op.get_friendly_name(): op.get_rt_info()["runtimePrecision"].astype(str)
        for op in compiled.get_runtime_model().get_ops()
    }
    arithmetic = [name for name in marked & types.keys() if name.rpartition("/")[2].startswith(("Sin", "Exp", "MVN"))]
    assert {types[name] for name in arithmetic} == {"f32"}
    assert len(arithmetic) > 2
    monkeypatch.setenv("MASKJET_CACHE_DIR", str(tmp_path))
    if not BF16_PRODUCTS & cpu_features():
        with pytest.raises(UnsupportedError, match="needs a CPU with AVX512-BF16 or AMX"):
            opened(precision="bf16")
        return
    images = [image(seed=seed) for seed in range(3)]
    with opened(precision="bf16") as model:
        assert (model.report().precision, model.report().network.split(" in ")[1][:8]) == ("bf16", "bfloat16")
        pairs = Pairing()
        for found, expected in zip(model.predict(images), in_torch(images), strict=True):
            pairs.add(pair(expected, found))
    assert pairs.matched > 0  # the scores of random weights are nearly equal, so that others pass the threshold
    assert max(pairs.confidence_differences) < 0.05


def test_the_demos_int8_finds_what_its_certificate_promises():
    images = [sample(seed, size_hw=(720, 1280)).image for seed in range(4)]
    with maskjet.load("demo", device="cpu", precision="int8") as model, maskjet.load("demo", device="cpu") as network:
        assert (model.report().precision, "INT8" in model.report().network) == ("int8", True)
        pairs = Pairing()
        for found, expected in zip(model.predict(images), network.predict(images), strict=True):
            pairs.add(pair(expected, found))
    assert pairs.missing + pairs.extra <= 4 < 30 < pairs.matched
    assert max(pairs.confidence_differences) < 0.2


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"compile": True}, InputError, "compile=True"),
        ({"runtime": "auto", "precision": "int8"}, InputError, "maskjet quantize writes"),
        ({"runtime": "torch", "precision": "int8"}, InputError, "runtime must be 'openvino' or 'auto'"),
    ],
)
@pytest.mark.usefixtures("cached")
def test_choices_that_it_can_not_have(options, error, message):
    with pytest.raises(error, match=message):
        opened(**options)


@pytest.mark.usefixtures("cached")
def test_without_openvino_it_is_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "openvino", None)
    with pytest.raises(MissingDependencyError, match=r'"maskjet\[openvino\]"'):
        opened()
