"""Recognise files that are no weights by their first bytes, and advise the user."""

from __future__ import annotations

from collections.abc import Sequence

LEGACY = b"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20"
"""First bytes of what PyTorch before 1.6 wrote."""
_CHECKPOINT = "pass the checkpoint that training saved"
_EXPORTED = "pass the checkpoint that it was exported from"
_AS_MODEL = "give it as the model, by a name that ends in"
_AGAIN = "fetch it again"

# (offset of the bytes, the bytes, kind of file, advice).
_SIGNATURES: Sequence[tuple[int, bytes, str, str]] = (
    (
        0,
        b"version https://git-lfs",
        "a Git LFS pointer and not the file itself",
        "run git lfs pull where it was cloned",
    ),
    (0, LEGACY, "of PyTorch before 1.6", "load and save it with a newer PyTorch"),
    (0, b"\x89HDF\r\n\x1a\n", "an HDF5 file, perhaps of Keras", _CHECKPOINT),
    (4, b"TFL3", "a TFLite model", _EXPORTED),
    (4, b"ET12", "an ExecuTorch program", _EXPORTED),
    (0, b"ftrt", "a TensorRT engine", f"{_AS_MODEL} .engine"),
    (0, b"ptrt", "a TensorRT engine", f"{_AS_MODEL} .engine"),
    (0, b"GGUF", "a GGUF file", _CHECKPOINT),
    (0, b"\xff\xd8\xff", "a JPEG image", _CHECKPOINT),
    (0, b"\x89PNG", "a PNG image", _CHECKPOINT),
    (0, b"GIF8", "a GIF image", _CHECKPOINT),
    (0, b"RIFF", "a WebP image, an AVI video or a sound", _CHECKPOINT),
    (4, b"ftyp", "an MP4 video", _CHECKPOINT),
    (0, b"%PDF", "a PDF document", _CHECKPOINT),
    (0, b"\x93NUMPY", "a NumPy array", _CHECKPOINT),
    (0, b"\x1f\x8b", "compressed with gzip", "unpack it"),
    (0, b"\x28\xb5\x2f\xfd", "compressed with Zstandard", "unpack it"),
    (0, b"BZh", "compressed with bzip2", "unpack it"),
    (0, b"\xfd7zXZ", "compressed with xz", "unpack it"),
    (0, b"7z\xbc\xaf", "a 7z archive", "unpack it"),
    (0, b"Rar!", "a RAR archive", "unpack it"),
    (257, b"ustar", "a tar archive", "unpack it"),
    (0, b"PK\x05\x06", "an empty zip archive", _AGAIN),
    (0, b"\x7fELF", "a program", _CHECKPOINT),
    (0, b"\x80", "a pickle that torch.save did not write", _CHECKPOINT),
)
_TEXTS = (
    (b"<!doctype html", "a web page and not the file that it links to", _AGAIN),
    (b"<html", "a web page and not the file that it links to", _AGAIN),
    (b"<?xml", "an XML file, such as OpenVINO's or an error of a server", _CHECKPOINT),
    (b"{", "a JSON file", _CHECKPOINT),
    (b"[", "a JSON file", _CHECKPOINT),
)
# An ONNX file starts with its IR version and then, as a protobuf's fields, its producer or its graph.
_ONNX_FIELDS = (0x12, 0x1A, 0x22, 0x2A, 0x32, 0x3A, 0x42)


def describe(head: bytes) -> tuple[str, str]:
    """Name the kind of a file.

    Args:
        head: The file's first 512 bytes, or all if it has fewer.

    Returns:
        The kind of file, to follow "is", and advice.
    """
    if not head:
        return "empty", _AGAIN
    if not head.strip(b"\0"):
        return "nothing but zeros so far, perhaps a download that was broken off", _AGAIN
    for start, signature, kind, cure in _SIGNATURES:
        if head.startswith(signature, start):
            return kind, cure
    if head[0] == 0x08 and len(head) > 2 and head[1] < 32 and head[2] in _ONNX_FIELDS:
        return "an ONNX model", f"{_AS_MODEL} .onnx"
    for signature, kind, cure in _TEXTS:
        if head.lstrip().lower().startswith(signature):
            return kind, cure
    if all(byte >= 0x20 or byte in b"\t\n\r" for byte in head):
        return "a text file", _CHECKPOINT
    return "neither", _CHECKPOINT


def describe_archive(names: Sequence[str]) -> tuple[str, str]:
    """Name the kind of a zip file without a checkpoint.

    Args:
        names: Names of its records.

    Returns:
        The kind of file, to follow "is", and advice.
    """
    if any(name.endswith("/constants.pkl") for name in names):
        return "a TorchScript module", _EXPORTED
    if any(
        name.endswith(("/archive_format", "serialized_exported_program.json", "/models/model.json")) for name in names
    ):
        return "a program of torch.export", _EXPORTED
    if "model.weights.h5" in names:
        return "a Keras model", _CHECKPOINT
    if names and all(name.endswith(".npy") for name in names):
        return "a NumPy archive", _CHECKPOINT
    if any(name.endswith((".pt", ".pth", ".ckpt", ".safetensors")) for name in names):
        return "a zip archive with a checkpoint in it", "unpack it"
    return "a zip archive of other things", _CHECKPOINT
