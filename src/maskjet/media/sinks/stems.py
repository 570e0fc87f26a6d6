"""Names of sources and classes as names of files and folders."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain, count
from pathlib import Path
from urllib.parse import urlsplit


def unique_stems(names: Sequence[str], roots: Sequence[Path | None] | None = None) -> list[str]:
    """The text that replaces `{}` for each of these source names, without duplicates.

    Args:
        names: Names of the sources.
        roots: Per source, the folder whose sub-folders are kept, as in "day1/cam", or None.
    """
    stems: dict[str, None] = {}
    for name, root in zip(names, roots or [None] * len(names), strict=True):
        stem = _stem(name)
        if root is not None and Path(name).is_relative_to(root):
            stem = "/".join([*map(safe_name, Path(name).relative_to(root).parts[:-1]), stem])
        numbered = (f"{stem}_{number}" for number in count(2))
        stems[next(free for free in chain((stem,), numbered) if free not in stems)] = None
    return list(stems)


def _stem(name: str) -> str:
    """A source's name as part of a file name: no folder, no suffix, and no password or query of a URL."""
    stem = Path(name).stem
    if "://" in name:
        url = urlsplit(name)
        stem = "_".join(filter(None, (url.hostname, Path(url.path).stem)))
    return safe_name(stem)


def safe_name(text: str, otherwise: str = "source") -> str:
    """Text as part of a file name; another where no letter or digit is left."""
    safe = re.sub(r"[^\w -]", "_", text)
    return safe if safe.strip("_ -") else otherwise
