"""The commands maskjet traffic ...: synthetic street scenes with exact masks."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from maskjet.cli.options import SizeOption, parse_size, print_result, progress

traffic_app = typer.Typer(no_args_is_help=True, help="Synthetic street scenes with exact masks.")


@traffic_app.command("video")
def traffic_video(
    path: Annotated[Path, typer.Argument(help="Path of the .mp4 to write.")],
    size: SizeOption = "720p",
    frames: Annotated[int, typer.Option(help="Number of frames.")] = 538,
    seed: Annotated[int, typer.Option(help="Random seed: same seed, same bytes.")] = 0,
    density: Annotated[float, typer.Option(help="Traffic density: 1 is lively, 0 empty.")] = 1.0,
) -> None:
    """Write a video of a street."""
    from maskjet.traffic import write_video

    with progress("drawing", frames) as advance:
        write_video(path, size_hw=parse_size(size), frames=frames, seed=seed, density=density, on_progress=advance)
    print_result(f"wrote {path}")


@traffic_app.command("coco")
def traffic_coco(
    directory: Annotated[Path, typer.Argument(help="The folder to write; images and annotations.json go into it.")],
    images: Annotated[int, typer.Option(help="Number of images.")] = 100,
    size: SizeOption = "720p",
    seed: Annotated[int, typer.Option(help="Random seed: same seed, same bytes.")] = 0,
    annotations: Annotated[str, typer.Option(help="Form of the masks: rle or polygon.")] = "rle",
) -> None:
    """Write a data set in COCO's format."""
    from maskjet.traffic import write_coco

    with progress("drawing", images) as advance:
        write_coco(
            directory,
            images=images,
            size_hw=parse_size(size),
            seed=seed,
            annotations=annotations,  # type: ignore[arg-type] # checked there
            on_progress=advance,
        )
    print_result(f"wrote {directory / 'annotations.json'}")
