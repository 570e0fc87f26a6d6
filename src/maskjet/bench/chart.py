"""The ablation, and the videos, as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from maskjet.errors import MissingDependencyError

MISSING = "matplotlib is not installed: pip install 'maskjet[bench]'."
_SURVIVORS = 25
_COLOURS = {"triton": "#1f77b4", "compiled": "#8fb8de", "eager": "#b0b0b0"}
_PEER_COLOUR = "#e0a458"


def is_available() -> bool:
    """Whether charts can be drawn here."""
    return find_spec("matplotlib") is not None


def draw(found: Mapping[str, Any], path: Path) -> None:
    """Draw the times of an ablation: a row of charts per output, a chart per size, a bar per rung.

    Args:
        found: The report's `as_dict`, as it stands in ablation.json.
        path: The image to write, .png or .svg.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    if not is_available():
        raise MissingDependencyError(MISSING)
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
    machine = found["machine"]
    where = machine["gpu"]["name"] if machine["gpu"] else machine["cpu"]
    figure.suptitle(
        f"Postprocess of RF-DETR-Seg Nano, {measurements[0]['survivors']} detections, {where}, "
        f"torch {machine['versions']['torch']}, commit {machine['commit']}",
        fontsize=11,
    )
    figure.savefig(path, dpi=120)


def _chosen(measurements: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Those with 25 survivors, or else with the most."""
    counts = {m["survivors"] for m in measurements}
    survivors = _SURVIVORS if _SURVIVORS in counts else max(counts)
    return [m for m in measurements if m["survivors"] == survivors]


def _draw_bars(axes: Any, bars: Sequence[dict[str, Any]]) -> None:
    from matplotlib.ticker import NullFormatter

    colours = [_COLOURS.get(bar["rung"].partition("_")[0], _PEER_COLOUR) for bar in bars]
    times = [bar["p50_ms"] for bar in bars]
    drawn = axes.barh([bar["rung"] for bar in bars], times, color=colours)
    labels = [
        f"{bar['p50_ms']:.3g} ms" + ("" if bar["launches"] is None else f", {bar['launches']:.0f} launches")
        for bar in bars
    ]
    axes.bar_label(drawn, labels, padding=3, fontsize=8)
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    if times:
        room = 5 * (max(times) / min(times)) ** 0.6  # for the labels
        axes.set_xlim(min(times) / 2, max(times) * room)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)


def draw_videos(found: Mapping[str, Any], path: Path) -> None:
    """Draw frames per second: a chart per size, a pair of bars per contender, from the file and from memory.

    Args:
        found: The report's `as_dict`.
        path: The image to write, .png or .svg.

    Raises:
        MissingDependencyError: matplotlib is not installed.
    """
    if not is_available():
        raise MissingDependencyError(MISSING)
    from matplotlib.figure import Figure

    measurements = found["measurements"]
    sizes = list(dict.fromkeys(tuple(m["size_hw"]) for m in measurements))
    figure = Figure(figsize=(4.6 * len(sizes) + 1.2, 5.6), layout="constrained")
    for axes, size_hw in zip(figure.subplots(1, len(sizes), squeeze=False)[0], sizes, strict=True):
        _draw_rates(axes, [m for m in measurements if tuple(m["size_hw"]) == size_hw])
        axes.set_title(f"{size_hw[1]} × {size_hw[0]}", fontsize=10)
    figure.legend(*axes.get_legend_handles_labels(), frameon=False, fontsize=9, loc="outside lower center", ncols=2)
    machine = found["machine"]
    where, versions = machine["gpu"]["name"] if machine["gpu"] else machine["cpu"], machine["versions"]
    figure.suptitle(
        f"Video to COCO RLE, {found['model']}, {where}, torch {versions['torch']}, commit {machine['commit']}",
        fontsize=11,
    )
    figure.savefig(path, dpi=120)


def _draw_rates(axes: Any, bars: Sequence[dict[str, Any]]) -> None:
    from matplotlib.ticker import NullFormatter

    for offset, field, colour, label in (
        (-0.2, "memory_fps", "#8fb8de", "frames in memory"),
        (0.2, "fps", "#1f77b4", "video file"),
    ):
        places = [place + offset for place, bar in enumerate(bars) if bar[field] is not None]
        values = [bar[field] for bar in bars if bar[field] is not None]
        drawn = axes.barh(places, values, height=0.38, color=colour, label=label)
        axes.bar_label(drawn, [f"{value:,.0f}" for value in values], padding=3, fontsize=8)
    axes.set_yticks(range(len(bars)), [bar["name"] for bar in bars])
    axes.invert_yaxis()
    axes.set_xscale("log")
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=9)
    axes.set_xlabel("frames/s, median, log scale")
