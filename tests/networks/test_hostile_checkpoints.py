"""Weights files that are wrong, foreign or made to harm: each is refused by a CheckpointError, and takes no memory."""

import argparse
import collections
import pickle
import random
import zipfile

import pytest
import torch

import maskjet
from maskjet.errors import CheckpointError, InputError
from maskjet.host.printing import sanitise
from maskjet.networks.rfdetr import read_checkpoint
from tests.networks.checkpoints import edit_records, load, save_safetensors, save_torch
from tests.networks.test_network import TINY

# Mutants of a spec may ask for a network of other windows or heads, which the same weights fit.
MUTANTS = 60


# What a file is


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 134\n", "Git LFS pointer .*git lfs pull"),
        (b"", "is neither; pass the checkpoint that training saved"),
        (bytes(4096), "is neither"),
        (b"\n<!DOCTYPE html><html><title>404</title></html>", "is neither"),
        (pickle.dumps({"model": 1}), "is neither"),
        (random.Random(3).randbytes(600), "is neither"),
    ],
)
def test_files_that_are_no_weights_are_refused_by_their_first_bytes(content, message, tmp_path):
    for path in (tmp_path / "weights.pth", tmp_path / "weights.safetensors"):
        path.write_bytes(content)
        with pytest.raises(CheckpointError, match=f"(?s)weights must be a checkpoint that rfdetr saved.*{message}"):
            maskjet.load(path)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_archives_of_something_else_are_told(tmp_path):
    torch.jit.save(torch.jit.trace(torch.nn.Linear(2, 2), torch.zeros(1, 2)), tmp_path / "weights.pt")
    with zipfile.ZipFile(tmp_path / "weights.pth", "w") as file:
        file.writestr("word/document.xml", b"x")
    for name in ("weights.pt", "weights.pth"):
        with pytest.raises(CheckpointError, match="is a zip archive of something else, such as an exported program"):
            maskjet.load(tmp_path / name)


def test_what_is_no_path_is_told():
    with pytest.raises(InputError, match="model must be a name, a path or a torchvision detector, got a "):
        maskjet.load(["weights.pth"])
    with pytest.raises(InputError, match="weights must be a name or a path, got a "):
        maskjet.load("rf-detr-nano", weights=b"weights.pth")


def test_what_is_no_file_is_told(tmp_path):
    with pytest.raises(CheckpointError, match=r"weights must be a file, or .* is a folder without config.json"):
        maskjet.load(tmp_path)
    for missing in ("nothing.pth", "folder/nothing.pt", "nothing.onnx"):
        with pytest.raises(CheckpointError, match=rf"model must be a file, got '{missing}', which does not exist\.$"):
            maskjet.load(missing)
    with pytest.raises(CheckpointError, match="weights must be a file, got '/dev/zero', which is no file"):
        maskjet.load("rf-detr-nano", weights="/dev/zero")
    with pytest.raises(CheckpointError, match=r"weights must be a file, got '.*nothing\.pth', which does not exist"):
        read_checkpoint(tmp_path / "nothing.pth")


def test_the_suffix_does_not_matter(state, tmp_path):
    save_safetensors(state, tmp_path / "weights.pth")
    assert load(tmp_path / "weights.pth").spec == TINY


def test_pickles_are_told_without_pytorchs_advice(tmp_path):
    path = save_torch({"model": {"a": torch.zeros(1)}, "epoch": collections.OrderedDict}, tmp_path / "best.pt")
    plain, yolo = b"ccollections\nOrderedDict\n", b"cultralytics.nn.tasks\nSegmentationModel\n"
    for edit, message in (
        (lambda _, data: data.replace(plain, yolo), r"holds an Ultralytics model, .*torch\.save\(\{"),
        (lambda name, data: b"\x80\x02\x8c\x01a." if "pkl" in name else data, "its pickle is damaged"),
    ):
        edit_records(path, tmp_path / "edited.pt", edit)
        with pytest.raises(CheckpointError, match=message) as caught:
            maskjet.load(tmp_path / "edited.pt")
        assert "weights_only" not in str(caught.value)


# Names and values of tensors


def prefixed(prefix):
    return lambda state: {prefix + name: tensor for name, tensor in state.items()}


@pytest.mark.parametrize(
    "wrap",
    [
        *map(prefixed, ("module.", "model.", "_orig_mod.", "model.module._orig_mod.")),
        lambda state: {name.replace("transformer.", "transformer._orig_mod."): each for name, each in state.items()},
    ],
)
def test_wrapped_networks_load(wrap, state, tmp_path):
    network = load(save_safetensors(wrap(state), tmp_path / "wrapped.safetensors"))
    assert network.spec == TINY
    assert torch.equal(network.query_feat.weight, state["query_feat.weight"])


LORA = "backbone.0.encoder.base_model.model.encoder.query.lora_A.default.weight"
QUERIES = "query_feat.weight"
NOT_FINITE = r"weights must be finite in float32, query_feat\.weight holds NaN or inf"
OTHER_TENSORS = [
    ("_orig_mod.class_embed.bias", torch.ones(4), r"class_embed\.bias is there twice"),
    (LORA, torch.zeros(2), "must not hold LoRA adapters .* Merge them"),
    *((QUERIES, torch.full((10, 32), value), NOT_FINITE) for value in (torch.nan, torch.inf, -torch.inf)),
    *(
        (QUERIES, torch.zeros(10, 32).to(dtype), rf"weights must be floating-point .* query_feat\.weight is {dtype}")
        for dtype in (torch.int8, torch.bool, torch.complex64, torch.float8_e4m3fn, torch.int64)
    ),
]


@pytest.mark.parametrize(("name", "tensor", "message"), OTHER_TENSORS)
def test_other_tensors_are_refused(name, tensor, message, state, tmp_path):
    with pytest.raises(CheckpointError, match=message):
        load(save_safetensors(state | {name: tensor}, tmp_path / "other.safetensors"))


@pytest.mark.parametrize("key", ["ema_model", "ema_state_dict"])
def test_averages_alone_are_refused(key, state, tmp_path):
    with pytest.raises(CheckpointError, match=f"holds none under 'model'; those under '{key}' would serve"):
        load(save_torch({key: state, "epoch": 3}, tmp_path / "ema.pth"))


def test_what_is_loaded_does_not_lie_in_the_file(state, tmp_path):
    path = save_safetensors(state, tmp_path / "weights.safetensors")
    network = load(path)
    path.write_bytes(b"")  # what is mapped from a file that shrank ends the process
    for name, tensor in network.state_dict().items():
        assert torch.equal(tensor, state[name])


# Names of classes


HOSTILE_NAMES = {
    "\ud800": "\ufffd",
    "a\x1b]0;owned\x07b": "a\ufffd]0;owned\ufffdb",
    "two\nlines": "two\ufffdlines",
    "\u202eevil": "\ufffdevil",
    "x" * 10_000: "x" * 99 + "…",
    "日本語 ü 🙂": "日本語 ü 🙂",
    3: "3",
}


def test_class_names_are_made_printable(state, tmp_path):
    names = list(HOSTILE_NAMES)
    path = save_torch({"model": state, "args": argparse.Namespace(class_names=names)}, tmp_path / "weights.pth")
    assert read_checkpoint(path).class_names == dict(enumerate(HOSTILE_NAMES.values()))


@pytest.mark.parametrize("names", [[None], [["a"]], {"0": "a"}, 7, [b"a"], [True]])
def test_class_names_of_other_types_are_refused(names, state, tmp_path):
    path = save_torch({"model": state, "args": {"class_names": names}}, tmp_path / "weights.pth")
    with pytest.raises(CheckpointError, match="class_names must be a list of texts, got"):
        read_checkpoint(path)


def test_names_of_tensors_are_texts_and_printed_safely(state, tmp_path):
    with pytest.raises(CheckpointError, match="weights must name their tensors by texts, got 7"):
        load(save_torch({"model": state | {7: torch.zeros(1)}}, tmp_path / "weights.pth"))
    hostile = {"model": state | {"\x1b]0;owned\x07\ud800": torch.zeros(1)}, "model_name": "RFDETR\x1b[2J"}
    with pytest.raises(CheckpointError) as caught:
        load(save_torch(hostile, tmp_path / "weights.pth"))
    assert str(caught.value).isprintable()


# Mutants


def cyclic():
    content = {}
    content["model"] = content["args"] = content["model_config"] = content
    return content


def nested(depth=300):
    content = inner = []
    for _ in range(depth):
        inner.append([])
        inner = inner[0]
    return content


def odd_contents(state):
    """Whatever a pickle of plain values can hold where something else is expected."""
    tensor = torch.zeros(3)
    odd = [None, 7, 10**300, -1, 1.5, float("nan"), "", "\ud800", b"x", [], [[]], {}, {7: 7}, tensor, True, nested()]
    odd += [tensor.to_sparse(), argparse.Namespace(), {"class_embed.bias": None}, {None: tensor}, {("a",): tensor}]
    for key in ("model", "state_dict", "args", "model_config", "model_name", "hyper_parameters"):
        for value in odd:
            yield {"model": state, "args": {}} | {key: value}
    for field in ("resolution", "class_names", "num_queries"):
        for value in odd:
            yield {"model": state, "args": {field: value}}
            yield {"model": state, "model_config": {field: value}}
    for name in ("class_embed.bias", "query_feat.weight", "refpoint_embed.weight"):
        for shape in ((), (0,), (1, 0), (2, 3, 4, 5)):
            yield {"model": state | {name: torch.zeros(shape)}}
    for value in odd:
        yield value
        yield {"model": state | {"extra": value}}
        yield {"model": {"class_embed.bias": value}}
    yield cyclic()


def only_ours(path, size=None):
    """Whether a file loads; it may raise a CheckpointError only, whose message is one printable line."""
    try:
        load(path, size)
    except CheckpointError as error:
        message = str(error)
        assert "weights_only" not in message
        assert len(message) < 1500
        message.encode()
        assert message == sanitise(message, most=1500), ascii(message)
        return False
    return True


def test_odd_contents_raise_our_error_only(state, tmp_path):
    for content in odd_contents({name: tensor for name, tensor in state.items() if "embed" in name}):
        assert not only_ours(save_torch(content, tmp_path / "weights.pth")), content


def mutants(good, generator, count):
    """Copies of a file with bits flipped, bytes overwritten, cut off, repeated or put in; most are near its ends."""
    for _ in range(count):
        data = bytearray(good)
        for _ in range(generator.choice((1, 1, 2, 8))):
            near = generator.choice((64, 2048, len(data)))
            where = generator.randrange(min(near, len(data)))
            where = generator.choice((where, len(data) - 1 - where))
            edit = generator.randrange(6)
            if edit == 0:
                data[where] ^= 1 << generator.randrange(8)
            elif edit == 1:
                data[where] = generator.choice((0, 1, 0x7F, 0x80, 0xFF))
            elif edit == 2:
                del data[max(where, 1) :]
            elif edit == 3:
                data[where:where] = data[where : where + generator.randrange(1, 64)]
            elif edit == 4:
                data[where : where + 8] = generator.randbytes(8)
            else:
                del data[where : where + generator.randrange(1, 16)]
            if not data:
                break
        yield bytes(data)


def small(state):
    """A file of few bytes, so that most of what is changed matters."""
    return {name: tensor for name, tensor in state.items() if tensor.numel() < 100}


@pytest.mark.parametrize("count", [MUTANTS, pytest.param(10 * MUTANTS, marks=pytest.mark.slow)])
@pytest.mark.parametrize("suffix", [".pth", ".ckpt", ".safetensors"])
def test_mutants_raise_our_error_only(suffix, count, state, tmp_path):
    path, generator = tmp_path / f"weights{suffix}", random.Random(11)
    config = {"resolution": 144, "num_queries": 100, "class_names": ["a"]}
    if suffix == ".safetensors":
        save_safetensors(state, path)
    elif suffix == ".pth":
        save_torch({"model": small(state), "args": argparse.Namespace(**config), "model_name": "RFDETRSegNano"}, path)
    else:
        save_torch({"state_dict": {f"model.{name}": each for name, each in small(state).items()}, "args": config}, path)
    for data in mutants(path.read_bytes(), generator, count):
        path.write_bytes(data)
        only_ours(path)
