"""Expand folders and globs into sources: one per video, and one for all images."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from maskjet.errors import SourceError
from maskjet.host.files import path_of_url
from maskjet.sources.containers import files_of, shown_name, stream_named
from maskjet.sources.folders import is_image_path, is_video_path, list_folder, match_glob, mode_of_source
from maskjet.sources.frames import ListSource, open_with, split_sources
from maskjet.sources.source import Source, UnopenedSource
from maskjet.sources.videos import open_video_source


def expand_sources(source: Any, *, recursive: bool = False) -> list[UnopenedSource]:
    """Expand the user's argument into single sources, without opening any.

    In a folder or glob, each video is a source of its own, and the images together are one, which comes first. Files of
    a folder that are neither are left out, as are hidden ones; a glob's are taken as videos, as the user asked for
    them. Folders that a glob matches are expanded, too. The items of a list are expanded one by one, unless all are
    images. Everything else is one source.

    There may be thousands: `check_outputs(outs, found).open_in_turn()` writes them one after another, as docs/video.md
    shows, so that one is open at a time.

    Args:
        source: As in `open_source`.
        recursive: Whether to search the sub-folders of folders, as `maskjet.sources.folders.list_folder` does. Outputs
            then keep the names of the sub-folders.

    Returns:
        The sources, at least one, in natural order.

    Raises:
        SourceError: There is nothing to read, or a folder can't be read; the message names it.
        InputError: An opened source is given twice.
    """
    items = split_sources(source)
    if len(items) > 1:
        return [found for item in items for found in expand_sources(item, recursive=recursive)]
    (item,) = items
    if not isinstance(item, str | os.PathLike):
        return [_wrap_given(item)]
    text = path_of_url(os.fspath(item))
    if stream_named(text) is not None:
        return [_wrap_given(text)]
    mode = mode_of_source(text)
    if mode is None:
        return _expand_glob(text, recursive=recursive)
    return _expand_folder(text, recursive=recursive) if stat.S_ISDIR(mode) else [_wrap_given(text)]


def _wrap_given(given: Any) -> UnopenedSource:
    if isinstance(given, UnopenedSource):
        return given
    if isinstance(given, Source):
        return UnopenedSource(given.name, given.files, partial(open_with, given))
    if isinstance(given, str | int):
        name = stream_named(str(given)) or str(given)
        return UnopenedSource(shown_name(name), files_of(name), partial(open_with, given))
    files = [Path(item) for item in given if isinstance(item, str | os.PathLike)] if isinstance(given, list) else []
    return UnopenedSource(type(given).__name__, files, partial(open_with, given))


def _expand_folder(text: str, *, recursive: bool) -> list[UnopenedSource]:
    files = list_folder(text, recursive=recursive)
    videos = [path for path in files if is_video_path(path)]
    root = Path(text) if recursive else None
    found = [*_wrap_images(files, text, root), *(_wrap_video(path, root) for path in videos)]
    if not found:
        hint = "" if recursive else "; its sub-folders are searched only if asked to"
        raise SourceError(f"source must be a folder with images or videos, {text!r} has none{hint}.")
    return found


def _expand_glob(text: str, *, recursive: bool) -> list[UnopenedSource]:
    paths = match_glob(text)
    videos = [path for path in paths if not is_image_path(path)]
    found = _wrap_images(paths, text, None)
    for path in videos:
        found += _expand_folder(str(path), recursive=recursive) if path.is_dir() else [_wrap_video(path, None)]
    return found


def _wrap_images(paths: Sequence[Path], name: str, root: Path | None) -> list[UnopenedSource]:
    """Wrap the images among the paths as one source; an empty list without images."""
    images = list(filter(is_image_path, paths))
    return [UnopenedSource(name, images, lambda how: ListSource(images, name, how, root), root)] if images else []


def _wrap_video(path: Path, root: Path | None) -> UnopenedSource:
    name = str(path)
    return UnopenedSource(name, [path], lambda how: open_video_source(name, how.selection, how.decoding), root)
