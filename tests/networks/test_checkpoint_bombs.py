"""Small weights files that ask for much memory: each is refused before it is taken."""

import struct
import subprocess
import sys
import zipfile

import pytest
import torch

from maskjet import limits
from maskjet.errors import CheckpointError
from maskjet.networks.rfdetr import read_checkpoint
from tests.networks.checkpoints import edit_records, save_safetensors, save_torch, write

BOMB_MEMORY = 100 * 2**20


def peak_of_loading(path):
    """Bytes that a process takes to refuse a file, above what it had before."""
    code = (
        "import resource, sys, torch\n"
        "from maskjet.errors import CheckpointError\n"
        "from maskjet.model import read_network\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024\n"
        "before = peak()\n"
        "resource.setrlimit(resource.RLIMIT_AS, (before + 12 * 2**30,) * 2)\n"
        "for path in sys.argv[1:]:\n"
        "    try:\n"
        "        read_network(path)\n"
        "    except CheckpointError as error:\n"
        "        print(peak() - before, error)\n"
        "    else:\n"
        "        print(peak() - before, 'loaded')\n"
    )
    done = subprocess.run([sys.executable, "-c", code, *map(str, path)], capture_output=True, text=True, check=True)
    return [(int(line.split()[0]), line.split(maxsplit=1)[1]) for line in done.stdout.splitlines()]


def allocating(function, argument):
    """A pickle that calls a function which PyTorch lets pickles call."""
    return b"\x80\x02}X\x05\x00\x00\x00model" + function + b"\x8a\x05" + struct.pack("<q", argument)[:5] + b"\x85Rs."


WIDEST = {"backbone_width": 4096, "backbone_depth": 64, "backbone_heads": 64, "feature_layers": [64]}
WIDEST |= {"hidden_dim": 4096, "feed_forward_dim": 2**16, "decoder_layers": 64}


def make_bombs(state, folder):
    good = save_torch({"model": state}, folder / "good.pth")

    def pickled(data):
        return lambda name, before: data if name.endswith("data.pkl") else before

    many = torch.zeros(1).expand(10**10)
    many_positions = many[: 1 + 99_999**2, None].expand(1, -1, 384)
    embeddings = "backbone.0.encoder.encoder.embeddings."
    positions = f"{embeddings}position_embeddings"
    sizes = {"model_name": "RFDETRSegNano", "model_config": {"resolution": 12_000}}
    nano = {
        positions: torch.zeros(1, 1, 384).expand(1, 1 + 26**2, 384),
        f"{embeddings}patch_embeddings.projection.weight": torch.zeros(1).expand(384, 3, 12, 12),
        "class_embed.bias": torch.zeros(91),
        "query_feat.weight": torch.zeros(1).expand(100, 256),
    }
    zeros = save_torch({"model": {"class_embed.bias": torch.zeros(2**24)}}, folder / "zeros.pth")
    return {
        "spec classes": save_safetensors(state, folder / "1.safetensors", class_logits=10**7),
        "spec classes in bounds": save_safetensors(state, folder / "2.safetensors", class_logits=2**16),
        "spec size": save_safetensors(state, folder / "3.safetensors", input_size=12_000),
        "spec widest": save_safetensors(state, folder / "4.safetensors", **WIDEST),
        "spec deepest": save_safetensors(state, folder / "5.safetensors", backbone_depth=10**9),
        "config size": save_torch({"model": nano, **sizes}, folder / "6.pth"),
        "stride 0": save_torch({"model": nano | {"class_embed.bias": many}}, folder / "7.pth"),
        "stride 0 positions": save_torch({"model": nano | {positions: many_positions}}, folder / "8.pth"),
        "compressed": edit_records(zeros, folder / "9.pth", lambda _, data: data, compression=zipfile.ZIP_DEFLATED),
        "bytearray": edit_records(good, folder / "10.pth", pickled(allocating(b"c__builtin__\nbytearray\n", 10**10))),
        "storage": edit_records(
            good, folder / "11.pth", pickled(allocating(b"ctorch.storage\nUntypedStorage\n", 10**10))
        ),
        "tensor": edit_records(good, folder / "12.pth", pickled(allocating(b"ctorch\nFloatTensor\n", 10**10))),
        "long pickle": edit_records(good, folder / "13.pth", pickled(b"\x80\x02" + b"]" * 2**24 + b".")),
        "header": write(folder / "14.safetensors", struct.pack("<Q", 2**31) + b"{" + bytes(100)),
    }


@pytest.mark.slow
def test_bombs_are_refused_before_memory_is_taken(state, tmp_path):
    bombs = make_bombs(state, tmp_path)
    for (kind, path), (taken, message) in zip(bombs.items(), peak_of_loading(bombs.values()), strict=True):
        assert path.name in message or "loaded" not in message, (kind, message)
        assert taken < BOMB_MEMORY, (kind, taken, message)


def test_files_beyond_the_limit_are_refused(state, tmp_path, monkeypatch):
    monkeypatch.setattr(limits, "checkpoint_bytes", 10_000)
    for path in (save_safetensors(state, tmp_path / "a.safetensors"), save_torch({"model": state}, tmp_path / "a.pth")):
        with pytest.raises(CheckpointError, match=r"has [\d,]+ bytes, the limit is 10,000; raise maskjet\.limits"):
            read_checkpoint(path)


def test_tensors_that_reach_beyond_their_record_are_refused(tmp_path):
    path = save_torch({"model": {"class_embed.bias": torch.arange(4.0), "b": torch.arange(8.0)}}, tmp_path / "good.pth")
    longer = edit_records(path, tmp_path / "long.pth", lambda _, data: data.replace(b"K\x04tq", b"K\x07tq"))
    with pytest.raises(CheckpointError, match="28 bytes of a tensor are no record of it"):
        read_checkpoint(longer)


@pytest.mark.parametrize("around", [(b"", bytes(3)), (b"PK\x03\x04", b"")], ids=["after", "before"])
def test_archives_within_other_bytes_are_refused(around, state, tmp_path):
    path = save_torch({"model": state}, tmp_path / "weights.pth")
    path.write_bytes(around[0] + path.read_bytes() + around[1])
    with pytest.raises(CheckpointError, match="something is before or after its zip archive"):
        read_checkpoint(path)


def test_what_pytorch_quotes_of_a_file_is_printable(tmp_path):
    path = save_torch({"model": {"class_embed.bias": torch.zeros(4)}}, tmp_path / "weights.pth")
    path.write_bytes(path.read_bytes().replace(b"weights/data/0", b"weights\x1bdata/0"))
    with pytest.raises(CheckpointError, match="weights\ufffddata/0"):
        read_checkpoint(path)
