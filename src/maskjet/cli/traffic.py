"""The commands maskjet traffic ...: synthetic street scenes with exact masks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskjet.cli.flags import add_command
from maskjet.cli.options import SizeOption, option, parse_size, print_result, progress

_EXAMPLES = """
maskjet traffic video street.mp4
maskjet traffic coco streets --images 20
"""
_VIDEO_EXAMPLES = """
maskjet traffic video street.mp4
maskjet traffic video quiet.mp4 --size 640x360 --frames 100 --density 0.3
"""
_COCO_EXAMPLES = """
maskjet traffic coco more-streets
maskjet traffic coco small --images 20 --size 312
"""

traffic_app = typer.Typer(
    no_args_is_help=True, help="Draw streets to test with: a video, or images with exact masks.", epilog=_EXAMPLES
)


@add_command(traffic_app, _VIDEO_EXAMPLES, "video")
def traffic_video(
    path: Annotated[Path, typer.Argument(metavar="PATH", help="The .mp4 to write.")],
    *,
    size: SizeOption = "720p",
    frames: Annotated[int, option("N", "Number of frames.")] = 538,
    seed: Annotated[int, option("N", "Random seed: same seed, same bytes.")] = 0,
    density: Annotated[float, option("NUMBER", "Traffic density: 1 is lively, 0 empty.")] = 1.0,
) -> None:
    """Draw a video of a street, to try maskjet on."""
    from maskjet.traffic import write_video

    with progress("drawing", frames) as advance:
        write_video(path, size_hw=parse_size(size), frames=frames, seed=seed, density=density, on_progress=advance)
    print_result(f"wrote {path}")


@add_command(traffic_app, _COCO_EXAMPLES, "coco")
def traffic_coco(
    directory: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="The folder to write; images and annotations.json go into it.")
    ],
    *,
    images: Annotated[int, option("N", "Number of images.")] = 100,
    size: SizeOption = "720p",
    seed: Annotated[int, option("N", "Random seed: same seed, same bytes.")] = 0,
) -> None:
    """Draw images of streets with exact masks, in COCO's format."""
    from maskjet.traffic import write_coco

    with progress("drawing", images) as advance:
        write_coco(directory, images=images, size_hw=parse_size(size), seed=seed, on_progress=advance)
    print_result(f"wrote {directory / 'annotations.json'}")
