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
    for value, shown in ((least - 1, least - 1), (most + 1, most + 1), ("8", "'8'"), (8.0, "8.0"), (True, "True")):
        with pytest.raises(InputError, match=f"{name} must be a whole number from {least} to {most}, got {shown}"):
            ModelSpec(**{**vars(TINY), name: value})
    with pytest.raises(InputError, match=f"{name} must be a whole number .*, got a number of more than 64 bits"):
        ModelSpec(**{**vars(TINY), name: 10**5000})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"name": ""}, "name must be a text of at least one character, got ''"),
        ({"has_masks": 1}, "has_masks must be True or False, got 1"),
        ({"mean": (0.5, 0.5, float("nan"))}, "mean must be three finite numbers, got "),
        ({"std": (0.5, 0.0, 0.5)}, r"std must be above 0, got \(0\.5, 0\.0, 0\.5\)"),
        ({"feature_layers": (2.0,)}, r"feature_layers must be whole numbers, at least one, got \(2\.0,\)"),
        ({"feature_layers": (4, 2)}, r"feature_layers must ascend from at least 1, got \(4, 2\)"),
        ({"backbone_heads": 5}, "backbone_heads must divide backbone_width = 48, got 5"),
        ({"self_attention_heads": 3}, "self_attention_heads must divide hidden_dim = 32, got 3"),
        ({"cross_attention_heads": 3}, "cross_attention_heads must divide hidden_dim = 32, got 3"),
        (
            {"hidden_dim": 30, "self_attention_heads": 1, "cross_attention_heads": 1},
            "hidden_dim must be a multiple of 4",
        ),
        ({"input_size": 60}, "input_size must be a multiple of patch_size × windows = 16 for tiny, got 60"),
        ({"queries": 65}, "queries must be at most the 64 backbone tokens, got 65"),
        ({"feature_layers": (2, 9)}, r"feature_layers must be at most 4, got \(2, 9\)"),
        ({"class_names": {4: "a"}}, "class_names must map ids from 0 to 3 to names, got 4: 'a'"),
        ({"input_size": 2064, "patch_size": 4}, "input_size must be at most 256 patches of 4, got 2064"),
        (
            {"input_size": 4096, "patch_size": 16, "mask_stride": 1},
            "mask_stride must leave masks of 1 to 2048 pixels a side .*, got 1 at input_size 4096",
        ),
    ],
)
def test_what_does_not_go_together_is_refused(change, message):
    with pytest.raises(InputError, match=message):
        ModelSpec(**{**vars(TINY), **change})


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
        ({}, "spec must state name"),
        ({key: value for key, value in TINY.as_dict().items() if key != "queries"}, "spec must state queries"),
        (TINY.as_dict() | {"anchors": 3}, "spec must have the fields of ModelSpec only, got anchors"),
        (TINY.as_dict() | {"class_names": ["a"]}, r"class_names must be a mapping of ids to names, got \['a'\]"),
        (TINY.as_dict() | {"class_names": {"x": "a"}}, "class_names must map whole numbers to names, got 'x': 'a'"),
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
    for names, message in (
        (many, f"must be of ids below {TINY.class_logits}, tiny's, got {TINY.class_logits}"),
        (7, "must be names by id, a list of names or a path, got 7"),
        (["a", 7], "must map whole numbers to names, got 1: 7"),
        (tmp_path / "none.txt", "must be a text file with a name per line, '.*none.txt' is not"),
        (tmp_path, "must be a text file with a name per line"),
    ):
        with pytest.raises(InputError, match=f"^class_names {message}"):
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
