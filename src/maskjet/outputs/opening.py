"""Check output paths before anything is opened, then open them as sinks."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

from maskjet.checks import check_choice, check_whole
from maskjet.drawing import DrawStyle, Style
from maskjet.drawing.style import refuse_transparency
from maskjet.errors import InputError, OutputError
from maskjet.host.files import naming
from maskjet.masks import MaskPixels
from maskjet.outputs import crops, drawing_process, events, labels, pictures, video
from maskjet.outputs.coco import CocoJson
from maskjet.outputs.drawing_process import VideoProcess
from maskjet.outputs.encoders import DEFAULT_QUALITY, HIGHEST_QUALITY, share_cores
from maskjet.outputs.folder import SUFFIXES, FileId, PictureNames, id_of, is_picture, unique_stems
from maskjet.outputs.label_options import LabelOptions
from maskjet.outputs.labels import YoloLabels
from maskjet.outputs.lines import JsonLines, RecordLines, StdoutLines
from maskjet.outputs.pictures import AnnotatedImages
from maskjet.outputs.sink import Sink, Sinks, SinksInTurn
from maskjet.outputs.table import CsvTable, MotText
from maskjet.outputs.video import AnnotatedVideo
from maskjet.sources.containers import shown_name
from maskjet.sources.folders import is_image_path, is_video_path
from maskjet.sources.frames import ListSource, Source, UnopenedSource
from maskjet.sources.selection import EVERYTHING, Selection

Kind = Literal["images", "video", "lines", "table", "labels", "crops", "data set", "tracks", "events"]
AnySource = Source | UnopenedSource
PLACEHOLDER = "{}"
"""Placeholder in an output's path that becomes the name of its source."""
_KINDS: Mapping[str, Kind] = {
    **dict.fromkeys(video.SUFFIXES, "video"),
    ".jsonl": "lines",
    ".json": "data set",
    ".csv": "table",
    labels.SUFFIX: "labels",
    crops.SUFFIX: "crops",
    ".txt": "tracks",
    **dict.fromkeys(SUFFIXES, "images"),
}
_DRAWN = ("images", "video")
_SHARED = ("lines", "table", "events")  # kinds that accept frames of several sources, also into a pipe


@dataclass(frozen=True)
class Content:
    """Options of the outputs' content."""

    style: Style = DrawStyle()
    """Style of video and images: annotated, redacted or cut out."""
    with_audio: bool = True
    """Whether annotated video includes its source's audio."""
    label_options: LabelOptions = LabelOptions()
    """Options of labels, data sets, crops and other data."""
    mask_pixels: MaskPixels = "raw"
    """Mask pixels kept in data outputs; pictures use `style.mask_pixels`."""
    quality: int = DEFAULT_QUALITY
    """Quality of annotated video, 1 to 100."""
    record: Callable[[], Mapping[str, Any]] | None = None
    """Makes the first line of JSON lines that are records, when they are opened; None for plain ones."""

    def __post_init__(self) -> None:
        check_choice("mask_pixels", self.mask_pixels, get_args(MaskPixels))
        check_whole("quality", self.quality, (1, HIGHEST_QUALITY))


@dataclass(frozen=True)
class Outputs:
    """Checked output paths, ready to open; opening raises OutputError if a path can't be written."""

    shared: Sequence[str]
    """Paths of outputs that receive the frames of all sources."""
    owned: Sequence[Sequence[str]]
    """For each source, paths of outputs that receive only its frames."""
    sources: Sequence[AnySource]
    """All sources, in the order of `Frame.stream`."""
    content: Content = field(default_factory=Content)
    """Options of the outputs' content."""
    existing: Collection[str] = ()
    """Output paths that exist already, as files or non-empty folders."""

    def shows_frames(self, out: str) -> bool:
        """Whether an output contains original pixels of frames, without annotation or redaction."""
        copies_images = self.content.label_options.yolo_images != "none"
        return kind_of(out) == "crops" or (kind_of(out) == "labels" and copies_images)

    def prepare(self) -> None:
        """Start drawing processes early, which take seconds, for the outputs of the first source."""
        drawing_process.prepare([kind_of(out) for out in (*self.shared, *self.owned[0])].count("video"))

    def open(self) -> Sinks:
        """Open a sink for every path, for open sources that are read in parallel."""
        sinks = iter(self._open_each(self.pairs(), set()))
        shared = [next(sinks) for _ in self.shared]
        return Sinks(shared, [[next(sinks) for _ in own] for own in self.owned])

    def open_in_turn(self) -> SinksInTurn:
        """Open the shared sinks, for sources read in sequence; `begin` opens each source's own sinks."""
        taken: set[Path] = set()
        shared = self._open_each(((out, self.sources[0]) for out in self.shared), taken)

        def open_own(position: int, source: Source) -> list[Sink]:
            return self._open_each(((out, source) for out in self.owned[position]), taken)

        return SinksInTurn(shared, open_own)

    @cached_property
    def _files(self) -> set[FileId]:
        """Ids of the sources' files, which must not be overwritten."""
        return set(_identities(self.sources))

    def _open_each(self, pairs: Iterable[tuple[str, AnySource]], taken: set[Path]) -> list[Sink]:
        """Open paths with their sources, all or none; no path of a picture or label in `taken` is taken again."""
        pairs = list(pairs)
        videos = sum(kind_of(out) == "video" for out, _ in pairs)
        video_class = VideoProcess if drawing_process.prepare(videos) else AnnotatedVideo
        make_video = partial(video_class, threads=share_cores(videos))
        with ExitStack() as undo:
            sinks: list[Sink] = []
            for out, source in pairs:
                sinks.append(self._open_one(out, source, make_video, taken))
                if kind_of(out) not in _DRAWN:
                    sinks[-1].mask_pixels = self.content.mask_pixels
                    sinks[-1].rotated_boxes = self.content.label_options.rotated_boxes
                undo.callback(sinks[-1].abandon)
            undo.pop_all()
        return sinks

    def _open_one(self, out: str, source: AnySource, make_video: Callable[..., Sink], taken: set[Path]) -> Sink:
        kind, style = kind_of(out), self.content.style
        own: dict[str, Any] = {"taken": taken, "sources": self._files, "root": source.root}
        if kind == "images":
            return AnnotatedImages(out, style=style, **own)
        if kind == "labels":
            return YoloLabels(out, self.content.label_options, **own)
        if kind == "crops":
            return crops.Crops(out, self.content.label_options, **own)
        if kind == "video":
            opened = source if isinstance(source, Source) else None
            quality, with_audio = self.content.quality, self.content.with_audio
            return make_video(out, source=opened, with_audio=with_audio, style=style, quality=quality)
        if kind == "tracks":
            return MotText(out)
        if kind == "events":
            return events.EventDelivery(out) if events.is_url(out) else events.EventLines(out)
        if kind == "table":
            return CsvTable(out)
        if out == "-":
            return StdoutLines()
        if kind == "lines":
            if self.content.record is not None:
                assert isinstance(source, Source)
                return RecordLines(out, self.content.record(), source)
            return JsonLines(out)
        return CocoJson(out, self.content.label_options)

    def pairs(self) -> Iterator[tuple[str, AnySource]]:
        """Pairs of path and source; shared paths are paired with the first source."""
        yield from ((out, self.sources[0]) for out in self.shared)
        for source, own in zip(self.sources, self.owned, strict=True):
            yield from ((out, source) for out in own)


def check_outputs(
    outs: Sequence[str],
    sources: Sequence[AnySource],
    *,
    style: Style | None = None,
    with_audio: bool = True,
    label_options: LabelOptions = LabelOptions(),
    mask_pixels: MaskPixels = "raw",
    quality: int = DEFAULT_QUALITY,
    selection: Selection = EVERYTHING,
    overwrite: bool = True,
    record: Callable[[], Mapping[str, Any]] | None = None,
) -> Outputs:
    """Check, without opening anything, that outputs are writable, distinct and no sources.

    Args:
        outs: Paths, whose suffixes name the kinds of output, as docs/video.md lists them. Each `{}` becomes the name of
            the source: a file's without folder and suffix, a URL's host and file, "video0" for a camera. Characters
            other than letters, digits, spaces and hyphens become "_", and equal names get a number. With several
            sources only JSON lines, CSV and events may lack `{}`.
        sources: At least one, in the order of `Frame.stream`; open, or as `expand_sources` finds them. None of their
            files is overwritten.
        style: A `DrawStyle`, `Redaction` or `Cutout` of video and images; None for all that can be drawn.
        with_audio: Whether annotated video gets its source's audio.
        label_options: What labels, data sets, crops and other data hold.
        mask_pixels: Pixels of masks in other outputs than video and images; see `Detections.keep_mask_pixels`.
        quality: Quality of annotated video, 1 to 100, alike for H.264 and VP9; 12 more are twice to thrice the bytes.
        selection: Frames that the sources give, or will.
        overwrite: Whether outputs may exist; an existing file is replaced once the new one is whole.
        record: Makes the first line of JSON lines that `maskjet parity` compares, when they are opened; None for plain
            lines. Each source needs its own file.

    Raises:
        InputError: There is no output; one has an unknown suffix, is given twice, is a source's file, lacks `{}`, is
            one picture for several frames, exists and overwrite is false, can't hold the style's transparent pixels or
            shows those that it hides; or another argument is none of its choices.
        OutputError: A path is too long, or its folder is not a writable folder.
    """
    for out in outs:
        _check_form(out)
        if len(sources) > 1 and PLACEHOLDER not in out and kind_of(out) not in _SHARED:
            example = f"out/{PLACEHOLDER}{Path(out).suffix}"
            raise InputError(
                f"out must contain {PLACEHOLDER} for several sources, got {out!r}; write for example {example!r}: "
                f"{PLACEHOLDER} becomes each source's name."
            )
    # With a single source all outputs are owned by it, so that they get its colours and audio.
    templates = [out for out in outs if PLACEHOLDER in out or (len(sources) == 1 and out != "-")]
    shared = [out for out in outs if out not in templates]
    stems = unique_stems([source.name for source in sources], [source.root for source in sources])
    owned = [[template.replace(PLACEHOLDER, stem) for template in templates] for stem in stems]
    if record is not None:
        lines = [out for out in outs if kind_of(out) == "lines"]
        if not lines or set(lines) & set(shared):
            raise InputError(f"record must go with a .jsonl file for each source, as {PLACEHOLDER}.jsonl, got {outs}.")
    content = Content(style or DrawStyle(), with_audio, label_options, mask_pixels, quality, record)
    paths = [*shared, *chain.from_iterable(owned)]
    _check_paths(paths, sources, content.style)
    existing = {out for out in paths if not _is_no_file(out) and _exists(Path(out))}
    if existing and not overwrite:
        raise InputError(f"out must not exist, {min(existing)!r} does: write to another path, or move it away.")
    outputs = Outputs(shared, owned, sources, content, existing)
    _check_pictures(outputs, selection)
    if not isinstance(content.style, DrawStyle) and (shown := next(filter(outputs.shows_frames, paths), None)):
        raise InputError(f"out must not show frames that are redacted or cut out, {shown!r} has them as they are.")
    return outputs


def open_sinks(outs: Sequence[str], *, fps: float | None = None, **options: Any) -> Sinks:
    """Open outputs for frames that come from no opened source.

    Args:
        outs: Paths, as of `check_outputs`.
        fps: Frames per second of videos whose frames have no times; None for 30.
        **options: Further arguments of `check_outputs`, whose errors it raises.

    Returns:
        One sink that writes to all of them.
    """
    if fps is not None and not (math.isfinite(fps) and fps > 0):
        raise InputError(f"fps must be above 0, got {fps}.")
    source = ListSource([], "frames")
    source.fps = fps
    return check_outputs(outs, [source], **options).open()


def kind_of(out: str) -> Kind:
    """The kind of output that a path names."""
    suffix = Path(out).suffix.lower()
    if out == "-":
        return "lines"
    if events.is_url(out) or out.lower().endswith(events.SUFFIX):
        return "events"
    if Path(out).name.lower() == crops.SUFFIX[1:]:
        return "crops"
    if suffix == "" or (out.endswith("/") and suffix not in (labels.SUFFIX, crops.SUFFIX)):
        return "images"
    if suffix not in _KINDS and not Path(out).is_dir():
        raise InputError(f"out must end in one of {', '.join(_KINDS)}, or be a folder or '-', got {out!r}.")
    return _KINDS.get(suffix, "images")


def _check_form(out: str) -> None:
    if not out or "\0" in out:
        raise InputError(f"out must be a path, got {out!r}.")
    if events.is_url(out):
        events.parse_url(out)
    elif "://" in out:
        raise InputError(f"out must be a path, got the URL {out!r}.")
    with naming(out):
        kind_of(out)


def _check_paths(outs: Sequence[str], sources: Sequence[AnySource], style: Style) -> None:
    if not outs:
        raise InputError("out must name at least one output, got none.")
    files = set(_identities(sources))
    seen: set[str | FileId] = set()
    for out in outs:
        if kind_of(out) == "video" or (is_picture(out) and Path(out).suffix.lower() != pictures.ALPHA):
            refuse_transparency(style, out)
        with naming(out):
            identities = {out} if _is_no_file(out) else _check_path(out, files)
        if seen & identities:
            raise InputError(f"out must name each output once, got {', '.join(map(shown_name, outs))}.")
        seen |= identities


def _check_path(out: str, files: Collection[FileId]) -> set[str | FileId]:
    """Check one path; returns keys that identify its file under any spelling."""
    path = Path(os.path.realpath(out))
    is_folder = kind_of(out) in ("labels", "crops") or (kind_of(out) == "images" and not is_picture(out))
    try:
        identity = id_of(path)
    except FileNotFoundError:
        _check_folder(out, path if is_folder else path.parent)
        return {str(path)}
    if is_folder:
        _check_folder(out, path)
    elif path.is_dir():
        raise InputError(f"out must be a file, {out!r} is a folder; write {out + '/'!r} for images in it.")
    elif not path.is_file() and kind_of(out) not in _SHARED:
        raise InputError(
            f"out must be a file or a new name, {out!r} is neither; only .jsonl and .csv may be a pipe or device."
        )
    if identity in files:
        raise InputError(f"out must not be the source, got {out!r} for both.")
    if path.is_file():
        _check_folder(out, path.parent)
    return {str(path), identity}


def _is_no_file(out: str) -> bool:
    return out == "-" or events.is_url(out)


def _exists(path: Path) -> bool:
    """Whether a path is a file or a non-empty folder."""
    return path.is_file() or (path.is_dir() and any(path.iterdir()))


def _check_folder(out: str, folder: Path) -> None:
    """Check that a folder is writable or, if missing, can be created."""
    while not folder.exists():
        folder = folder.parent
    if not folder.is_dir():
        raise OutputError(f"out must be writable, {out!r} is not: {str(folder)!r} is no folder.")
    if not os.access(folder, os.W_OK | os.X_OK):
        raise OutputError(f"out must be writable, {out!r} is not: {str(folder)!r} is closed to writing.")


def _check_pictures(outputs: Outputs, selection: Selection) -> None:
    """Check that a single picture gets one frame and that no picture overwrites a source's image."""
    files = {path.resolve() for source in outputs.sources for path in source.files if is_image_path(path)}
    taken: set[Path] = set()
    for out, source in outputs.pairs():
        if is_picture(out) and _has_several_frames(source, selection):
            pictures.refuse_several(out)
        names = PictureNames(out, taken, root=source.root, suffix=pictures.suffix_of(outputs.content.style))
        for index, path in enumerate(filter(is_image_path, source.files if kind_of(out) == "images" else ())):
            if names.take(str(path), index) in files:
                raise InputError(f"out must not be where the source is, {str(path)!r} would be overwritten.")


def _has_several_frames(source: AnySource, selection: Selection) -> bool:
    """Whether a source has several frames, as far as known; assumed for unopened videos."""
    if selection.limit == 1:
        return False
    if isinstance(source, Source):
        return source.is_live or (source.length or 0) > 1
    return any(map(is_video_path, source.files)) or (selection.count(len(source.files)) or 0) > 1


def _identities(sources: Sequence[AnySource]) -> Iterator[FileId]:
    """Yield device and inode of each existing source file."""
    for path in chain.from_iterable(source.files for source in sources):
        with suppress(OSError, ValueError):
            yield id_of(path)
