"""Sources whose outputs exist already, so that a run that was broken off can be repeated."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from maskjet.errors import InputError

if TYPE_CHECKING:
    from maskjet.drawing import Style
    from maskjet.media.selection import Selection
    from maskjet.media.sinks import Outputs
    from maskjet.media.source import Opening, Source, UnopenedSource


def leave_out_finished(
    found: Sequence[UnopenedSource], outputs: Outputs, selection: Selection
) -> list[UnopenedSource | None]:
    """Leave out sources, and images of folders, whose outputs all exist.

    An output is whole if it exists, as it takes its name only then. A folder of annotated images or labels is whole if
    it has a file for each image of the source; of a video, and one of crops, it is never known to be.

    Args:
        found: The sources.
        outputs: Their outputs.
        selection: Frames to give of each source; only if that is all can images be looked for one by one.

    Returns:
        Per source what is left of it; None if nothing is.

    Raises:
        InputError: Several sources share an output, so that it can't be told what is in it; or it is stdout.
    """
    if "-" in outputs.shared:
        raise InputError("skip_existing must not be given for out '-': what was printed can't be found again.")
    if len(found) > 1 and outputs.shared:
        raise InputError(
            f"skip_existing must not be given for out {outputs.shared[0]!r}, which all sources share; write for "
            f"example 'out/{{}}{Path(outputs.shared[0]).suffix}'."
        )
    rests = zip(found, outputs.owned, strict=True)
    return [_rest(source, [*outputs.shared, *own], selection, outputs.content.style) for source, own in rests]


def _rest(source: UnopenedSource, outs: Sequence[str], selection: Selection, style: Style) -> UnopenedSource | None:
    from maskjet.media.frames import ListSource
    from maskjet.media.sinks.folder import is_picture
    from maskjet.media.sinks.outputs import kind_of

    folders = [out for out in outs if kind_of(out) in ("images", "labels") and not is_picture(out)]
    files = [out for out in outs if out not in folders]
    if not all(Path(out).exists() and kind_of(out) != "crops" for out in files):
        return source
    if not folders:
        return None
    if not selection.is_everything:
        return source
    missing = _missing(source, folders, style)
    if missing is None or (missing and files) or len(missing) == len(source.files):
        return source
    if not missing:
        return None

    def opening(how: Opening) -> Source:
        return ListSource(missing, source.name, how, source.root)

    return type(source)(source.name, missing, opening, source.root)


def _missing(source: UnopenedSource, folders: Sequence[str], style: Style) -> list[Path] | None:
    """The images of a source that a folder has no file for; None if that can't be told."""
    from maskjet.media.folders import is_image_path
    from maskjet.media.sinks.annotation_tools import LABELME
    from maskjet.media.sinks.folder import PictureNames
    from maskjet.media.sinks.labels import FILES, SUFFIX
    from maskjet.media.sinks.pictures import suffix_of

    if not source.files or not all(map(is_image_path, source.files)):
        return None
    missing: set[Path] = set()
    for folder in folders:
        files = {SUFFIX: FILES, LABELME: {"suffix": ".json"}}.get(Path(folder).suffix, {"suffix": suffix_of(style)})
        names = PictureNames(folder, set(), root=source.root, **files)
        for index, path in enumerate(source.files):
            alone = PictureNames(folder, set(), root=source.root, **files).take(str(path), index)
            written = names.take(str(path), index)
            if written != alone:  # two images of one name: without the first, the second would get its name
                return None
            if not written.exists():
                missing.add(path)
    return [path for path in source.files if path in missing]
