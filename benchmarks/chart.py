"""Bar charts of the ablation and of the video benchmark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maskjet.errors import MissingDependencyError
from maskjet.host.extras import require

_SURVIVORS = 25
_COLOURS = {"triton": "#1f77b4", "compiled": "#8fb8de", "eager": "#b0b0b0"}
_PEER_COLOUR = "#e0a458"


def check() -> None:
    """Check that charts can be drawn here.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    require("matplotlib", extra="bench", purpose="A chart")


def why_not() -> str | None:
    """The reason why charts can't be drawn here; None if they can."""
    try:
        check()
    except MissingDependencyError as error:
        return str(error)
    return None


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw the times of an ablation: a row of charts per output, a chart per size, a bar per rung.

    Args:
        found: The report's `as_dict`, the content of ablation.json.
        path: The image to write, .png or .svg.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    check()
    from matplotlib.figure import Figure

    measurements = _chosen(found["measurements"])
    sizes = list(dict.fromkeys(tuple(m["size_hw"]) for m in measurements))
    outputs = {"masks": "dense masks on the device", "rle": "COCO RLE on the host"}
    figure = Figure(figsize=(4.4 * len(sizes) + 1.2, 7.2), layout="constrained")
    grid = figure.subplots(len(outputs), len(sizes), squeeze=False)
    for axes_row, (output, title) in zip(grid, outputs.items(), strict=True):
        for axes, size_hw in zip(axes_row, sizes, strict=True):
            bars = [m for m in measurements if m["output"] == output and tuple(m["size_hw"]) == size_hw]
            _draw_bars(axes, bars)
            axes.set_title(f"{title}, {size_hw[1]} × {size_hw[0]}", fontsize=10)
    for axes in grid[-1]:
        axes.set_xlabel("ms, median, log scale")
    what = f"Postprocess of RF-DETR-Seg Nano, {measurements[0]['survivors']} detections"
    _save(figure, what, found["machine"], path)


def _chosen(measurements: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep the measurements with 25 survivors, or else those with the most."""
    counts = {m["survivors"] for m in measurements}
    survivors = _SURVIVORS if _SURVIVORS in counts else max(counts)
    return [m for m in measurements if m["survivors"] == survivors]


def _draw_bars(axes: Any, bars: Sequence[dict[str, Any]]) -> None:
    colours = [_COLOURS.get(bar["rung"].partition("_")[0], _PEER_COLOUR) for bar in bars]
    times = [bar["p50_ms"] for bar in bars]
    drawn = axes.barh([bar["rung"] for bar in bars], times, color=colours)
    labels = [
        f"{bar['p50_ms']:.3g} ms" + ("" if bar["launches"] is None else f", {bar['launches']:.0f} launches")
        for bar in bars
    ]
    axes.bar_label(drawn, labels, padding=3, fontsize=8)
    _style(axes)
    if times:
        room = 5 * (max(times) / min(times)) ** 0.6  # for the labels
        axes.set_xlim(min(times) / 2, max(times) * room)


def draw_videos(found: Mapping[str, Any], path: Path) -> None:
    """Draw frames per second: a chart per size, a pair of bars per contender, from the file and from memory.

    Args:
        found: The report's `as_dict`.
        path: The image to write, .png or .svg.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    check()
    from matplotlib.figure import Figure

    measurements = found["measurements"]
    sizes = list(dict.fromkeys(tuple(m["size_hw"]) for m in measurements))
    figure = Figure(figsize=(4.6 * len(sizes) + 1.2, 5.6), layout="constrained")
    for axes, size_hw in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        _draw_rates(axes, [m for m in measurements if tuple(m["size_hw"]) == size_hw])
        axes.set_title(f"{size_hw[1]} × {size_hw[0]}", fontsize=10)
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, fontsize=9, loc="outside lower center", ncols=2)
    _save(figure, f"Video to COCO RLE, {found['model']}", found["machine"], path)


def _draw_rates(axes: Any, bars: Sequence[dict[str, Any]]) -> None:
    for offset, field, colour, label in (
        (-0.2, "memory_fps", "#8fb8de", "frames in memory"),
        (0.2, "fps", "#1f77b4", "video file"),
    ):
        places = [place + offset for place, bar in enumerate(bars) if bar[field] is not None]
        values = [bar[field] for bar in bars if bar[field] is not None]
        drawn = axes.barh(places, values, height=0.38, color=colour, label=label)
        axes.bar_label(drawn, [f"{value:,.0f}" for value in values], padding=3, fontsize=8)
    axes.set_yticks(range(len(bars)), [bar["name"] for bar in bars])
    _style(axes)
    axes.margins(x=0.25)
    axes.set_xlabel("frames/s, median, log scale")


def _style(axes: Any) -> None:
    """Style axes for horizontal bars, from the top down, on a logarithmic scale."""
    from matplotlib.ticker import NullFormatter

    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def _save(figure: Any, what: str, machine: Mapping[str, Any], path: Path) -> None:
    """Write a figure, with a title that names its content, the machine and the versions."""
    where = machine["gpu"]["name"] if machine["gpu"] else machine["cpu"]
    title = f"{what}, {where}, torch {machine['versions']['torch']}, {machine['measured_at'][:10]}"
    figure.suptitle(title, fontsize=11)
    figure.savefig(path, dpi=120)
