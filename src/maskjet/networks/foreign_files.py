"""Recognise files mistaken for weights, by their first bytes, and give advice for the error message."""

from __future__ import annotations

from collections.abc import Sequence

_CHECKPOINT = "pass the checkpoint that training saved"
_AGAIN = "fetch it again"

# (first bytes, kind of file, advice); text is compared in lower case, without leading spaces.
_SIGNATURES: Sequence[tuple[bytes, str, str]] = (
    (b"version https://git-lfs", "a Git LFS pointer and not the file itself", "run git lfs pull where it was cloned"),
    (b"<!doctype html", "a web page and not the file that it links to", _AGAIN),
    (b"<html", "a web page and not the file that it links to", _AGAIN),
    (b"\x80", "a pickle that torch.save did not write", _CHECKPOINT),
    (b"\x1f\x8b", "compressed with gzip", "unpack it"),
)


def describe(head: bytes) -> tuple[str, str]:
    """Name the kind of a file by its first 512 bytes, or all if it has fewer: a text to follow "is", and advice."""
    if not head:
        return "empty", _AGAIN
    if not head.strip(b"\0"):
        return "nothing but zeros so far, perhaps a download that was broken off", _AGAIN
    for signature, kind, cure in _SIGNATURES:
        if signature in (head[: len(signature)], head.lstrip()[: len(signature)].lower()):
            return kind, cure
    if all(byte >= 0x20 or byte in b"\t\n\r" for byte in head):
        return "a text file", _CHECKPOINT
    return "neither", _CHECKPOINT
