"""Recognise files mistaken for weights, by their first bytes, and give advice for the error message."""

from __future__ import annotations

from collections.abc import Sequence

_CHECKPOINT = "pass the checkpoint that training saved"
_EXPORTED = "pass the checkpoint that it was exported from"
_AGAIN = "fetch it again"

# (first bytes, kind of file, advice); text is compared in lower case, without leading spaces.
_SIGNATURES: Sequence[tuple[bytes, str, str]] = (
    (b"version https://git-lfs", "a Git LFS pointer and not the file itself", "run git lfs pull where it was cloned"),
    (b"<!doctype html", "a web page and not the file that it links to", _AGAIN),
    (b"<html", "a web page and not the file that it links to", _AGAIN),
    (b"\x80", "a pickle that torch.save did not write", _CHECKPOINT),
    (b"ftrt", "a TensorRT engine", _EXPORTED),
    (b"ptrt", "a TensorRT engine", _EXPORTED),
    (b"\x1f\x8b", "compressed with gzip", "unpack it"),
)
# An ONNX file is a protobuf: first its IR version, then a field such as the producer or the graph.
_ONNX_FIELDS = (0x12, 0x1A, 0x22, 0x2A, 0x32, 0x3A, 0x42)


def describe(head: bytes) -> tuple[str, str]:
    """Name the kind of a file by its first 512 bytes, or all if it has fewer: a text to follow "is", and advice."""
    if not head:
        return "empty", _AGAIN
    if not head.strip(b"\0"):
        return "nothing but zeros so far, perhaps a download that was broken off", _AGAIN
    for signature, kind, cure in _SIGNATURES:
        if signature in (head[: len(signature)], head.lstrip()[: len(signature)].lower()):
            return kind, cure
    if head[0] == 0x08 and len(head) > 2 and head[1] < 32 and head[2] in _ONNX_FIELDS:
        return "an ONNX model", "give it as the model, by a name that ends in .onnx"
    if all(byte >= 0x20 or byte in b"\t\n\r" for byte in head):
        return "a text file", _CHECKPOINT
    return "neither", _CHECKPOINT


def describe_archive(names: Sequence[str]) -> tuple[str, str]:
    """Name the kind of a zip file without a checkpoint, by its records: a text to follow "is", and advice."""
    if any(name.endswith("/constants.pkl") for name in names):
        return "a TorchScript module", _EXPORTED
    if any(
        name.endswith(("/archive_format", "serialized_exported_program.json", "/models/model.json")) for name in names
    ):
        return "a program of torch.export", _EXPORTED
    if any(name.endswith((".pt", ".pth", ".ckpt", ".safetensors")) for name in names):
        return "a zip archive with a checkpoint in it", "unpack it"
    return "a zip archive of other things", _CHECKPOINT
