"""The command maskjet run."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskjet.checks import parse_detect
from maskjet.cli import signals
from maskjet.cli.choosing import ClassesOption, ClassNamesOption, ThresholdOption, parse_thresholds, split_list
from maskjet.cli.drawing import check_drawn, with_style
from maskjet.cli.flags import Command
from maskjet.cli.options import (
    ENGINE_PANEL,
    INPUT,
    DepthOption,
    ModelOption,
    WeightsOption,
    every_device,
    option,
    parse_processes,
    switch,
    with_config,
    with_label_options,
    with_panel,
    with_tiling,
)
from maskjet.cli.runs import Run, run_in_turn, run_together
from maskjet.config import NMS, EngineConfig
from maskjet.errors import InputError, OutputError
from maskjet.host import process
from maskjet.outputs.label_options import LabelOptions
from maskjet.tiling.layout import Tiling

if TYPE_CHECKING:
    from maskjet.engine.deadlines import Deadlines
    from maskjet.host.devices import Place
    from maskjet.sources.source import UnopenedSource

_EXIT_STRICT, _EXIT_FAILED, _EXIT_LOST = 1, 3, 4
_FRAMES_PANEL = "Which frames are read"
_OUTPUTS_PANEL = "What else outputs hold"
EPILOG = """
# Draw what is found into a copy of a video; list it, frame by frame, as JSON.
maskjet run street.mp4 -o found.mp4 -o found.jsonl
# Certain cars and buses alone, five seconds of every other frame, on stdout.
maskjet run street.mp4 --classes car,bus --threshold 0.6 \\
    --start 0:01 --every 2 --limit 60 -o -
# Hide persons, also where one is missed for up to ten frames.
maskjet run street.mp4 --draw redact=person --hold 10 -o hidden.mp4
# Boxes at any angle: drawn, and as labels for YOLO's OBB models.
maskjet run street.mp4 --draw rotated -o turned.mp4
maskjet run street.mp4 --rotated-boxes --every 9 -o turned.yolo
# Of two detections that overlap by more than 80 %, the more confident one.
maskjet run street.mp4 --nms 0.8 -o once.jsonl
# For a checkpoint that was trained on antialiased frames.
maskjet run street.mp4 --resample antialias -o smooth.jsonl
# Each video of a folder and its sub-folders.
maskjet run videos --recursive -o 'found/{}.mp4'
# Record what is found in two ways, to compare with maskjet parity gate.
maskjet run frames --record --threshold 0.05 -o a.jsonl
maskjet run frames --record --threshold 0.05 --precision bf16 -o b.jsonl
# Results of two cameras within 0.1 s, or none; the gate's go first.
maskjet run rtsp://yard/1 rtsp://gate/1 --max-latency 100ms \\
    --priority gate_1=2 --when-full slower -o -
# RF-DETR on two cameras at once; one that is away for a minute has ended.
maskjet run 0 1 --model rf-detr-seg-nano --weights nano.pt -o 'out/{}.mp4' \\
    --reconnect-for 60

Exit codes: 0 done; 1 a frame could not be decoded (--strict); 2 wrong usage;
3 a source or checkpoint can't be read, be it one of several; 4 an output
can't be written, or events were lost; 5 the device failed; 128 + n ended by
signal n (130 Ctrl-C, 141 nobody reads stdout any more, 143 SIGTERM), with
whole outputs.
"""
_TRACKING = ("online", "two-pass")
"""Values of `--track`; the first one is that of the option alone."""


@dataclass(frozen=True)
class FrameOptions:
    """Options that say which frames are read."""

    every: Annotated[int, option("N", "Take one frame in N.")] = 1
    start: Annotated[
        str, option("N|TIME", "First frame to take: its number from 0, or a time such as 12.5s, 1:02 or 1:02:03.5.")
    ] = "0"
    limit: Annotated[int | None, option("N", "Most frames to take of a source.")] = None
    detect: Annotated[
        str,
        option(
            "N|realtime",
            "Detect on every N-th of the frames taken, 1 to 64, and move masks on those between; realtime: whenever a "
            "live source allows. Files wait for the next detected frame.",
        ),
    ] = "1"
    delay: Annotated[
        int | None, option("0", "With --detect: never wait for the next detected frame, as live sources don't.")
    ] = None
    side_by_side: Annotated[
        bool,
        switch(
            "--side-by-side",
            "Read files side by side, too, all at once: a frame of each is in a batch, which is faster on a GPU.",
        ),
    ] = False
    drop_late: Annotated[
        bool, switch("--drop-late", "Drop late frames of live sources in favour of the newest one, and count them.")
    ] = False
    max_latency: Annotated[
        str | None,
        option(
            "TIME",
            "Promise results of live sources within this time of a frame's packet, as 60ms or 0.1s; frames that can't "
            "be ready in time are dropped before the network sees them, and counted.",
        ),
    ] = None
    priority: Annotated[
        list[str] | None,
        option(
            "NAME=N",
            "With --max-latency: frames of this source go before those of others of a lower number, which is 1 if not "
            "given. The name is what {} becomes in outputs. May be repeated.",
        ),
    ] = None
    when_full: Annotated[
        str | None,
        option(
            "slower|refuse",
            "With --max-latency: where the machine can't hold all sources, take fewer frames of the last one of those "
            "of the lowest priority, or end it. Not given: frames of all are dropped.",
            choices=("slower", "refuse"),
        ),
    ] = None
    reconnect_for: Annotated[
        float,
        option(
            "SECONDS",
            "For how long to try to open a live source again that broke off, ended or fell silent; 0 does not try. "
            "Not given: for ever.",
            show_default=False,
        ),
    ] = math.inf
    strict: Annotated[bool, switch("--strict", "Exit with 1 if a frame could not be decoded.")] = False


@dataclass(frozen=True)
class OutputOptions:
    """Options of outputs that say nothing of drawing and labels."""

    no_overwrite: Annotated[
        bool, switch("--no-overwrite", "Refuse to write where a file is, or a folder with files.")
    ] = False
    record: Annotated[
        bool,
        switch(
            "--record",
            "Add to .jsonl what maskjet parity gate compares: how it was made, and a digest of each image's pixels.",
        ),
    ] = False
    audio: Annotated[
        bool,
        switch(
            "--audio/--no-audio",
            "Whether annotated video keeps its source's audio, copied and in sync.",
        ),
    ] = True
    quality: Annotated[
        int,
        option(
            "N",
            "Quality of annotated video, 1 to 100, alike for H.264 and VP9; 12 more are two to three times the bytes.",
        ),
    ] = 60
    count: Annotated[
        list[str] | None,
        option(
            "NAME=KIND:NUMBERS",
            "Count tracks that cross a line of two points in pixels, gate=line:0,9,99,9, or come into, stay in and "
            "leave a zone of three points or more, yard=zone:0,0,9,0,9,9. The name may be missing; :anchor=center, "
            ":frames=5 or, for a zone, :share=0.5 of a mask may follow. Implies --track. May be repeated.",
        ),
    ] = None


class RunCommand(Command):
    """The command, whose option --track may lack its value."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the arguments."""
        return super().parse_args(ctx, [f"--track={_TRACKING[0]}" if word == "--track" else word for word in args])


@with_panel("frames", FrameOptions, _FRAMES_PANEL)
@with_panel("writing", OutputOptions, _OUTPUTS_PANEL)
@with_style
@with_label_options
@with_tiling
@with_config(
    *("device", "precision", "runtime", "engine", "compile", "implementation", "resample", *INPUT, "decoder"),
    *("max_detections", *NMS, "nvtx"),
)
def run(
    source: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Image, folder, glob, video, camera number or URL. Each video of a folder or glob is a source of its "
            "own, its images are one. Files are read one after another, cameras and URLs side by side.",
            show_default=False,
        ),
    ],
    *,
    out: Annotated[
        list[str] | None,
        option(
            "PATH",
            "Video (.mp4, .mkv, .mov, .webm), .jsonl, .csv, .json (a COCO data set), .segm.json or .bbox.json (COCO "
            "results), .txt (MOT tracks), a folder of images, or one in .yolo for labels; - for JSON lines on stdout; "
            ".events.jsonl, http(s)://HOST/PATH or mqtt(s)://HOST/TOPIC for events of --count. May be repeated. {} "
            "becomes the source's name; with several sources all but .jsonl, .csv and events need it. Until a "
            "file is whole it has .partial in its name.",
            "--out",
            "-o",
        ),
    ] = None,
    show: Annotated[bool, switch("--show", "Show the frames in a window; q or Esc ends the run.")] = False,
    model: ModelOption = "demo",
    weights: WeightsOption = None,
    threshold: ThresholdOption = None,
    classes: ClassesOption = None,
    as_json: Annotated[
        bool, switch("--json", "Print the summary as JSON: on stdout, or in one line on stderr with --out -.")
    ] = False,
    recursive: Annotated[bool, switch("--recursive", "Search the sub-folders of folders.", _FRAMES_PANEL)] = False,
    frames: FrameOptions,
    track: Annotated[
        str | None,
        option(
            "[=two-pass]",
            "Give each instance one number in all frames of a source; what is found stays. With two-pass files "
            "are read twice, so that gaps are filled, also for redact, and ghosts are removed.",
            choices=_TRACKING,
        ),
    ] = None,
    tiling: Tiling,
    style: Any,
    writing: OutputOptions,
    label_options: LabelOptions,
    config: EngineConfig,
    class_names: ClassNamesOption = None,
    depth: DepthOption = 2,
    batch: Annotated[
        int | None,
        option(
            "N",
            "Most frames the network sees at once; by default one of each source, up to 8, or on a GPU 8 of a folder.",
            panel=ENGINE_PANEL,
        ),
    ] = None,
    processes: Annotated[
        str,
        option(
            "N|auto",
            "Processes per GPU, or on the CPU, over which cameras and files read side by side are spread; each has its "
            "own decoders, model and outputs. One that dies is started again. auto: as many as fill a GPU.",
            panel=ENGINE_PANEL,
        ),
    ] = "1",
) -> None:
    """Find instances in images and video; write video, JSON or pictures."""
    process.keep_freed_memory()
    from maskjet.drawing import Redaction
    from maskjet.model import open_model
    from maskjet.outputs.opening import kind_of
    from maskjet.sources.containers import shown_name, stream_named
    from maskjet.sources.expansion import expand_sources
    from maskjet.sources.source import check_opening

    outs = out or []
    if not outs and not show:
        raise InputError(
            "--out must name at least one output, or --show be given, got neither: for example -o out.mp4."
        )
    everywhere, by_class = parse_thresholds(threshold)
    if writing.record and config.decoder == "auto":
        config = replace(config, decoder="cpu")  # a GPU's JPEGs differ by 1, and other machines must get these digests
    counters: Any = ()
    if writing.count:
        from maskjet.tracking import parse_counters

        counters = parse_counters(writing.count)
    kinds = {kind_of(out): shown_name(out) for out in outs}
    if track not in (None, *_TRACKING):
        raise InputError(f"track must be two-pass, or have no value, got {track!r}.")
    tracks = track is not None or bool(counters)
    if "tracks" in kinds and not tracks:
        raise InputError(f"out must go with --track where it lists tracks, got {kinds['tracks']!r} without.")
    if "events" in kinds and not counters:
        raise InputError(f"out must go with --count where it gets events, got {kinds['events']!r} without.")
    drawing, mask_pixels = style
    check_drawn(drawing, outs, shows=show)
    opening = check_opening(frames.every, frames.start, frames.limit, frames.reconnect_for)
    is_live = any(stream_named(each) is not None for each in source)
    is_together = frames.side_by_side or (len(source) > 1 and is_live)
    if track == "two-pass" and (is_live or is_together):
        raise InputError(
            "track must be without two-pass for cameras, URLs and sources that are read side by side, as they are read "
            "once, got two-pass: use --track."
        )
    detect = parse_detect(frames.detect)
    covers = detect != 1 and isinstance(drawing, Redaction)
    if covers and (is_live or frames.delay == 0 or detect == "realtime"):
        raise InputError(
            "detect must be 1 where people are hidden and frames don't wait for the next detected one, as whoever "
            f"appears is found late, got {detect!r}."
        )
    found = expand_sources(source[0] if len(source) == 1 else list(source), recursive=recursive)
    job = Run(
        config=config,
        load=partial(
            open_model,
            *(model, weights),
            threshold=everywhere,
            classes=split_list(classes) or None,
            class_names=class_names,
            has_digest=writing.record,
        ),
        opening=opening,
        streams=len(found) if is_together else 1,
        deadlines=_deadlines_of(frames, found),
        streaming={
            "depth": depth,
            "batch": batch,
            "drop_late": frames.drop_late,
            "threshold": by_class or None,
            "track": tracks,
            "detect": detect,
            "delay": frames.delay,
            "covers": covers,
            **asdict(tiling),
        },
        in_two_passes=track == "two-pass",
        style=drawing,
        counters=counters,
        writing={
            "with_audio": writing.audio,
            "label_options": label_options,
            "mask_pixels": mask_pixels,
            "quality": writing.quality,
            "selection": opening.selection,
            "overwrite": not writing.no_overwrite,
        },
        shows=show,
    )
    if writing.record:
        job.writing["record"] = job.describe
    places = [] if processes == "1" else _choose_places(processes, job, is_together=is_together)[: len(found)]
    try:
        if len(places) > 1:
            from maskjet.cli.spreading import spread

            spread(job, found, outs, places)
        elif is_together:
            run_together(job, found, partial(job.check_outputs, outs))
        else:
            run_in_turn(job, found, outs)
    except Exception:
        if job.summary.frames or job.summary.outputs:
            with suppress(OutputError):
                job.summary.show(as_json=as_json, stdout_is_taken="-" in outs)
        raise
    job.summary.show(as_json=as_json, stdout_is_taken="-" in outs)
    if job.stop.number is not None:
        raise typer.Exit(signals.exit_code(job.stop.number))
    if job.summary.failed:
        raise typer.Exit(_EXIT_FAILED)
    if job.summary.lost_events:
        raise typer.Exit(_EXIT_LOST)
    if frames.strict and job.summary.bad_frames:
        raise typer.Exit(_EXIT_STRICT)


def _deadlines_of(frames: FrameOptions, found: Sequence[UnopenedSource]) -> Deadlines | None:
    """The promise for live sources, if --max-latency makes one."""
    from maskjet.engine.deadlines import Deadlines
    from maskjet.outputs.folder import unique_stems

    if frames.max_latency is None:
        for name in ("priority", "when_full"):
            if getattr(frames, name):
                raise InputError(f"{name} must go with --max-latency, got it alone.")
        return None
    given = re.fullmatch(r"(\d{1,6}(?:\.\d{1,6})?)(ms|s)", frames.max_latency)
    if given is None:
        raise InputError(f"max_latency must be a time, as 60ms or 0.1s, got {frames.max_latency!r}.")
    priorities = dict.fromkeys(unique_stems([each.name for each in found], [each.root for each in found]), 1)
    for text in frames.priority or ():
        name, _, number = text.rpartition("=")
        if name not in priorities or not re.fullmatch(r"[1-9]\d{0,5}", number):
            names = ", ".join(priorities)
            raise InputError(f"priority must be NAME=N, with N from 1 and a name of {names}, got {text!r}.")
        priorities[name] = int(number)
    seconds = float(given[1]) * (0.001 if given[2] == "ms" else 1)
    when_full: Any = frames.when_full
    return Deadlines(seconds, priorities=[*priorities.values()] if frames.priority else (), when_full=when_full)


def _choose_places(processes: str, job: Run, *, is_together: bool) -> list[Place]:
    """Places of the processes for --processes, which are more than one."""
    from maskjet.host.devices import choose

    for name, is_given in (("show", job.shows), ("record", "record" in job.writing)):
        if is_given:
            raise InputError(f"{name} must be left out with several processes, got --processes {processes}.")
    if not is_together:
        raise InputError(
            f"processes must be 1 for one source, or several that are read in turn, got {processes}; files are "
            "read at once with --side-by-side."
        )
    return choose(every_device(job.config), job.config.check_cpu, parse_processes(processes))
