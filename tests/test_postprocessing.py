"""What a single call may choose, and the kinds of images it takes."""

import copy
import gc
import pickle
import re
import weakref
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image as PILImage

import maskjet
from maskjet.config import EngineConfig
from maskjet.engine.steps import PostprocessBuffers
from maskjet.errors import InputError, SourceError, UnsupportedError
from maskjet.model import Model
from tests.networks.test_network import tiny_network
from tests.networks.torchvision.detectors import detector
from tests.test_model import assert_equal, image
from tests.threads import run_at_once


@pytest.fixture(scope="module")
def network():
    return tiny_network()


@pytest.fixture(scope="module")
def model(network):
    """A model that was loaded with a threshold of 0.06."""
    return Model(network, EngineConfig(device="cpu"), threshold=0.06)


def loaded(network, **choices):
    """What a model finds that was loaded with the choices."""
    return Model(network, EngineConfig(device="cpu"), **{"threshold": 0.06, **choices}).predict(image())


@pytest.mark.parametrize("kind", [maskjet.FrameError, maskjet.DeviceError])
def test_errors_of_frames_can_be_pickled(kind):
    error = pickle.loads(pickle.dumps(kind("Frame 7 is damaged.", index=7)))
    assert (type(error), str(error), error.index) == (kind, "Frame 7 is damaged.", 7)


def assert_same(actual, expected):
    for name in ("class_id", "confidence", "xyxy"):
        np.testing.assert_array_equal(getattr(actual, name), getattr(expected, name), name)
    assert actual.rle == expected.rle


class TestChoices:
    @pytest.mark.parametrize(
        "choices",
        [
            {"threshold": 0.02},  # below what was loaded
            {"threshold": 0},
            {"threshold": 1},
            {"threshold": {"a": 0.02, "c": 1.0}},
            {"classes": ["c"]},
            {"classes": ("c", "a"), "threshold": 0.02},
        ],
    )
    def test_they_equal_those_of_load(self, model, network, choices):
        expected = loaded(network, **choices)
        ((_, streamed),) = model.stream([image()], **choices)
        called = (model.predict(image(), **choices), model(image(), **choices), *model.predict([image()], **choices))
        for found in (*called, streamed):
            assert_same(found, expected)
        assert_same(model.predict(image()), loaded(network))  # what was loaded is as it was

    def test_classes_not_named_keep_their_threshold(self, network):
        everything = loaded(network, threshold=0.02)
        assert {0, 2} == set(everything.class_id.tolist())
        assert len(loaded(network, threshold=1)) == 0
        by_name = Model(network, EngineConfig(device="cpu"), threshold={"a": 0.02, "c": 0.02})
        found = by_name.predict(image(), threshold={"a": 1.0})
        assert_same(found[found.class_name == "c"], everything[everything.class_name == "c"])
        assert "a" not in found.class_name
        few = Model(network, EngineConfig(device="cpu"), threshold=0.02, classes=["a"])
        assert set(few.predict(image()).class_id.tolist()) == {0}
        assert_same(few.predict(image(), classes=["c"]), everything[everything.class_name == "c"])

    def test_a_torchvision_detector_has_a_threshold_of_its_own(self):
        for threshold, expected in ((None, 0.05), ({"a": 0.7}, 0.7)):
            given = {"class_names": {1: "a", 2: "b"}, "threshold": threshold}
            assert maskjet.load(detector(), device="cpu", **given).thresholds == {"a": expected, "b": 0.05}

    def test_a_name_is_that_of_all_classes_that_have_it(self, network, monkeypatch):
        everything = loaded(network, threshold=0.02)
        assert {"a", "c"} <= set(everything.class_name.tolist())
        monkeypatch.setattr(network, "spec", replace(network.spec, class_names={0: "a", 1: "b", 2: "a"}))
        for choices in ({"threshold": {"a": 0.02, "b": 1.0}}, {"threshold": 0.02, "classes": ["a"]}):
            assert_same(loaded(network, **choices), everything[everything.class_id != 1])

    def test_the_first_detections_are_kept(self, model):
        everything = model.predict(image(), threshold=0.02)
        for most in (1, 2, len(everything), 100):
            found = model.predict(image(), threshold=0.02, max_detections=most)
            assert_same(found, everything[:most])
        before = model.report().detections
        model.predict([image()] * 3, threshold=0.02, max_detections=1)
        assert model.report().detections == before + 3

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            ("threshold", 1.5),
            ("threshold", 10**400),
            ("threshold", "high"),
            ("threshold", {"b": 0.5}),
            ("classes", ["C"]),
            ("classes", "a"),
            ("classes", []),
            ("max_detections", 101),
            ("max_detections", 1.0),
        ],
    )
    def test_bad_ones_are_named_at_the_call(self, model, name, value):
        for call in (model.predict, model.stream):
            with pytest.raises(InputError, match=f"{name} must ") as raised:
                call(image(), **{name: value})
            assert raised.value.argument == name

    def test_calls_side_by_side_keep_their_own(self, model, network):
        thresholds = [0.02, 0.06, 0.11, 0.2]
        expected = {threshold: loaded(network, threshold=threshold) for threshold in thresholds}
        counts = [len(found) for found in expected.values()]
        assert counts == sorted(set(counts), reverse=True)
        streams = {threshold: model.stream([image()] * 5, threshold=threshold) for threshold in thresholds}
        for _ in range(5):
            for threshold, stream in streams.items():
                assert_same(next(stream)[1], expected[threshold])
                assert_same(model.predict(image()), expected[0.06])

        def work(threshold):
            for _ in range(8):
                assert_same(model.predict(image(), threshold=threshold), expected[threshold])

        run_at_once(work, thresholds)

    def test_only_other_values_are_copied(self, network, monkeypatch):
        copied, upload = [], PostprocessBuffers.upload
        monkeypatch.setattr(PostprocessBuffers, "upload", lambda own, new: copied.append(new) or upload(own, new))
        fresh = Model(network, EngineConfig(device="cpu"), threshold=0.06)
        for _ in range(3):
            fresh.predict(image())
        list(fresh.stream([image()] * 3))
        assert copied == []
        for _ in range(3):
            fresh.predict(image(), threshold=0.03, classes=["a"])
        list(fresh.stream([image()] * 3, threshold=0.03, classes=("a",)))
        assert len(copied) == 1
        fresh.predict(image())
        assert len(copied) == 2


@pytest.fixture(scope="module")
def plain():
    return detector(seed=4, box_score_thresh=0.5, box_detections_per_img=60)


@pytest.fixture(scope="module")
def fast(plain):
    return maskjet.rewrites.optimize(plain, class_names={label: f"thing {label}" for label in range(1, 7)})


class TestTwoStage:
    picture = image(100, 140, seed=4)

    @pytest.mark.slow
    def test_choices_equal_those_of_load(self, fast):
        with maskjet.load(fast, device="cpu") as call:
            counts = []
            for choices in ({"threshold": 0.1}, {"threshold": 0.8, "classes": ["thing 1", "thing 3"]}):
                with maskjet.load(fast, device="cpu", **choices) as expected:
                    assert_same(call.predict(self.picture, **choices), expected.predict(self.picture))
                    counts.append(len(call.predict(self.picture, **choices)))
            few = call.predict(self.picture, threshold=0.1, max_detections=3)
            assert_same(few, call.predict(self.picture, threshold=0.1)[:3])
            assert counts[0] > len(call.predict(self.picture)) > counts[1]

    def test_the_slower_path_takes_the_calls_threshold(self, fast, monkeypatch):
        from maskjet.networks.torchvision.detector import StaticDetector

        with maskjet.load(fast, device="cpu") as enough:
            expected = enough.predict(self.picture, threshold=0.0)
        monkeypatch.setattr(StaticDetector.forward, "__defaults__", (20,))
        with maskjet.load(fast, device="cpu") as few:
            assert_same(few.predict(self.picture, threshold=0.0), expected)
            assert sum(few.report().fallbacks.values()) == 1
        assert len(expected) == 60

    def test_a_plain_detector_is_rewritten(self, plain, fast):
        before = {name: value.clone() for name, value in plain.state_dict().items()}
        with maskjet.load(plain, device="cpu") as by_itself, maskjet.load(fast, device="cpu") as rewritten:
            assert by_itself.config.max_detections == 60
            assert len(rewritten.predict(self.picture)) > 5
            assert rewritten.report().resize == "torchvision's own rule"
            assert_same(by_itself.predict(self.picture), rewritten.predict(self.picture))
        assert all(torch.equal(value, before[name]) for name, value in plain.state_dict().items())

    def test_what_can_not_be_done_is_named(self, plain, fast):
        with pytest.raises(UnsupportedError, match="model must be a Faster or Mask R-CNN of torchvision, got Linear"):
            maskjet.load(torch.nn.Linear(1, 1))
        with pytest.raises(UnsupportedError, match=r"model must be in eval mode: call model\.eval\(\)"):
            maskjet.load(copy.deepcopy(plain).train())
        with pytest.raises(InputError, match="weights must be None for a detector, which has its own"):
            maskjet.load(plain, weights="a.pt")
        choices = {"resize": "stretch", "letterbox_color": "#000000", "letterbox_place": "center"}
        for choice in choices.items():
            with pytest.raises(InputError, match="must be 'auto' for torchvision's detectors, whose rule is their own"):
                maskjet.load(fast, **dict([choice]))


class Foreign:
    """A tensor of another library."""

    def __init__(self, tensor):
        self.tensor, self.ndim = tensor, tensor.ndim

    def __dlpack__(self, **options):
        return self.tensor.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.tensor.__dlpack_device__()


def floats(array):
    """[..., 3, H, W] in 0..1."""
    return torch.from_numpy(array).movedim(-1, -3) / 255


class TestImages:
    def test_batches(self, model):
        batch = np.stack([image(seed=seed) for seed in range(3)])
        expected = model.predict(list(batch))
        for same in (batch, torch.from_numpy(batch), floats(batch), Foreign(torch.from_numpy(batch))):
            found = model.predict(same)
            assert isinstance(found, list)
            for one, other in zip(found, expected, strict=True):
                assert_same(one, other)
        grey = batch[..., :1]
        for found, one in zip(model.predict(grey), grey, strict=True):
            assert_equal(found, model.predict(one))
        assert len(model.predict(batch[:1])) == 1
        assert model.predict(batch[:0]) == []
        assert model.predict(floats(batch)[:0]) == []

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
    def test_floating_tensors(self, model, dtype):
        """Those made of bytes become the same bytes, but for bfloat16, which has 8 bits."""
        given = floats(image()).to(dtype)
        rounded = (given.float() * 255).round().to(torch.uint8).permute(1, 2, 0).numpy()
        assert (dtype == torch.bfloat16) or np.array_equal(rounded, image())
        assert_same(model.predict(given), model.predict(rounded))
        assert_same(model.predict([given.requires_grad_()])[0], model.predict(rounded))
        assert_same(model.predict(given.flip(2)), model.predict(np.ascontiguousarray(rounded[:, ::-1])))
        ((frame, found),) = model.stream(given)
        np.testing.assert_array_equal(frame.image, rounded)
        assert_equal(found, model.predict(rounded))

    @pytest.mark.parametrize("given", [torch.from_numpy(image()), floats(image())])
    def test_tensors_of_other_libraries(self, model, given):
        ((_, streamed),) = model.stream([Foreign(given)])
        for found in (model.predict(Foreign(given)), *model.predict([Foreign(given)]), streamed):
            assert_equal(found, model.predict(image()))

    @pytest.mark.parametrize(
        ("given", "name"),
        [
            (torch.zeros(2, 3, 5, 3), "images"),
            (torch.zeros(8, 9, 3), "image"),
            (torch.zeros(2, 8, 9, 3), "images"),
            (torch.full((3, 4, 5), 1.01), "image"),
            (torch.tensor([torch.nan, 1.0]).expand(3, 4, 2), "image"),
            (torch.zeros(3, 0, 5), "image"),
            (np.zeros((2, 3, 8, 9), np.uint8), r"images\[0\]"),
            (np.zeros((2, 8, 9, 3)), r"images\[0\]"),
            ([image(), np.zeros((2, 8, 9, 3), np.uint8)], r"images\[1\]"),
            (torch.zeros(8, 9, 3, dtype=torch.int32), "image"),
            (object(), "image"),
        ],
    )
    def test_what_is_no_image_is_named(self, model, given, name):
        with pytest.raises(InputError, match=f"^{name} must be .*, got "):
            model.predict(given)

    def test_memory_that_can_not_be_shared(self, model):
        class Broken(Foreign):
            def __dlpack__(self, **_):
                raise BufferError("it is on a TPU")

        with pytest.raises(InputError, match="must share its memory by DLPack, the Broken does not: it is on a TPU"):
            model.predict(Broken(torch.from_numpy(image())))

    def test_the_image_is_remembered_but_not_held(self, model, tmp_path):
        given = image()
        found = model.predict(given)
        np.testing.assert_array_equal(found.draw(), found.draw(given))
        held, given = weakref.ref(given), None
        model.predict(image(seed=1))  # a slot on the CPU holds its last images
        gc.collect()
        assert held() is None
        with pytest.raises(InputError, match="image must be given"):
            found.draw()
        PILImage.fromarray(image()).save(tmp_path / "a.png")
        batch = np.stack([image(seed=1), image()])
        pictures = [PILImage.fromarray(image()), tmp_path / "a.png", floats(image())]
        batches = batch, floats(batch)
        seconds = [model.predict(each)[1] for each in batches]
        for found in (*model.predict(pictures), *seconds, model.predict(tmp_path / "a.png")):
            np.testing.assert_array_equal(found.draw(), found.draw(image()))
        ((_, found),) = model.stream(tmp_path / "a.png")
        with pytest.raises(InputError, match="image must be given"):
            found.draw()


class TestSources:
    """What `predict` does not read, and `stream` does."""

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("street.mp4", "a video"),
            ("gone.mp4", "a video"),
            ("", "a folder"),
            ("*.jpg", "a glob"),
            ("rtsp://camera/1", "a video or camera"),
            ("https://example.org/a.jpg", "a video or camera"),
            (7, "a camera"),
        ],
    )
    def test_the_error_names_stream(self, model, name, kind, tmp_path):
        (tmp_path / "street.mp4").write_bytes(b"\0\0\0\x18ftypmp42")
        given = tmp_path / name if name in ("street.mp4", "gone.mp4", "", "*.jpg") else name
        for images in (given, [given]):
            with pytest.raises(InputError, match=rf"To detect in {kind}, use model\.stream\(.*{re.escape(str(name))}"):
                model.predict(images)

    def test_a_broken_image_is_no_video(self, model, tmp_path):
        (tmp_path / "a.jpg").write_bytes(b"no image")
        for path in (tmp_path / "a.jpg", tmp_path / "gone.png", "x" * 5000, "a\0.mp4"):
            with pytest.raises(SourceError) as caught:
                model.predict(path)
            assert "stream" not in str(caught.value)
