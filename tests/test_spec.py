"""ModelSpec: what a network may be, whoever describes it."""

import json
import random
from dataclasses import fields

import pytest

from maskjet.errors import InputError
from maskjet.host.printing import sanitise
from maskjet.spec import BOUNDS, ModelSpec, name_classes
from tests.networks.test_network import TINY

ODD = (None, True, False, -1, 0, 1, 2, 7, 10**6, 10**30, 10**5000, 0.5, float("nan"), float("inf"), "", "7", "\ud800")
ODD += ([], [1], [1, 2, 3], [0.5] * 3, ["a"] * 3, {}, {"0": "a"}, {"9": "a"}, {"x": "a"}, {"0": 1}, b"x")


@pytest.mark.parametrize("name", BOUNDS)
def test_numbers_are_bounded(name):
    least, most = BOUNDS[name]
    for value in (least - 1, most + 1, "8", 8.0, True, 10**5000):
        with pytest.raises(InputError) as raised:
            ModelSpec(**{**vars(TINY), name: value})
        assert raised.value.argument == name


@pytest.mark.parametrize(
    "change",
    [
        {"name": ""},
        {"has_masks": 1},
        {"resize": "crop"},
        {"mean": (0.5, 0.5, float("nan"))},
        {"std": (0.5, 0.0, 0.5)},
        {"projector_eps": 0},
        {"feature_layers": ()},
        {"feature_layers": (2.0,)},
        {"feature_layers": (4, 2)},
        {"feature_layers": (2, 9)},
        {"backbone_heads": 5},
        {"self_attention_heads": 3},
        {"cross_attention_heads": 3},
        {"hidden_dim": 30, "self_attention_heads": 1, "cross_attention_heads": 1},
        {"input_size": 60},
        {"input_size": 2064, "patch_size": 4},
        {"queries": 65},
        {"mask_stride": 1, "input_size": 4096, "patch_size": 16},
        {"class_names": {4: "a"}},
    ],
    ids=str,
)
def test_what_does_not_go_together_is_refused(change):
    with pytest.raises(InputError) as raised:
        ModelSpec(**{**vars(TINY), **change})
    assert raised.value.argument == next(iter(change))


def test_inputs_may_be_rectangular():
    spec = ModelSpec(**{**vars(TINY), "input_size": (48, 96)})
    assert (spec.input_hw, spec.grid_hw, spec.tokens, spec.mask_hw) == ((48, 96), (6, 12), 72, (12, 24))
    assert ModelSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec
    square = ModelSpec(**{**vars(TINY), "input_size": (TINY.input_size,) * 2})
    assert square == TINY
    for wrong in ((48,), (48, 96, 48), (48, 0), (48, 96.0), (48, 97), (47, 96)):
        with pytest.raises(InputError, match="input_size must be"):
            ModelSpec(**{**vars(TINY), "input_size": wrong})


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ([], "spec must be a mapping of its fields, got "),
        ({key: value for key, value in TINY.as_dict().items() if key != "queries"}, "'queries' is missing or unknown"),
        (TINY.as_dict() | {"anchors": 3}, "spec must state the fields of ModelSpec, 'anchors' is missing or unknown"),
        (TINY.as_dict() | {"class_names": ["a"]}, "class_names must be"),
        (TINY.as_dict() | {"class_names": {"x": "a"}}, "class_names must map"),
    ],
)
def test_what_a_file_states_is_checked(stated, message):
    with pytest.raises(InputError, match=message):
        ModelSpec.from_dict(stated)


def test_names_from_a_file_are_printable():
    stated = TINY.as_dict() | {"name": "a\x1b[2J\ud800", "class_names": {"1": "b\nc"}}
    spec = ModelSpec.from_dict(stated)
    assert (spec.name, spec.class_names) == ("a\ufffd[2J\ufffd", {1: "b\ufffdc"})
    for text in ("person", "Ampel, rot", "日本語", "🙂‍↔️", ""):
        assert sanitise(text) == text


def test_classes_are_named_by_id_in_order_or_in_a_file(tmp_path):
    (path := tmp_path / "names.txt").write_bytes("\ufeffcar\r\n\r\n Bus, rot \n".encode())
    for names in ({0: "car", 2: "Bus, rot"}, ["car", "", "Bus, rot"], path, str(path)):
        assert name_classes(TINY, names).class_names == {0: "car", 2: "Bus, rot"}
    many = [f"class {number}" for number in range(TINY.class_logits + 1)]
    for names in (many, 7, ["a", 7], tmp_path / "none.txt", tmp_path):
        with pytest.raises(InputError, match="class_names must "):
            name_classes(TINY, names)
    for content in (b"\xff\xfe", b"a" * (2**22 + 1)):
        path.write_bytes(content)
        with pytest.raises(InputError, match="class_names must be a text file with a name per line"):
            name_classes(TINY, path)


def test_mutants_of_a_spec_are_built_or_refused():
    generator, built, messages = random.Random(5), 0, []
    names = [each.name for each in fields(ModelSpec)]
    for _ in range(800):
        stated = json.loads(json.dumps(TINY.as_dict()))
        for _ in range(generator.choice((1, 1, 2))):
            name = generator.choice(names)
            number = isinstance(stated[name], int) and generator.random() < 0.5
            stated[name] = generator.randrange(1, 2 * stated[name] + 3) if number else generator.choice(ODD)
        try:
            spec = ModelSpec.from_dict(stated)
        except InputError as error:
            messages.append(str(error))
            continue
        built += 1
        assert ModelSpec.from_dict(json.loads(json.dumps(spec.as_dict()))) == spec
    assert built > 80
    assert all(message.isprintable() for message in messages)
