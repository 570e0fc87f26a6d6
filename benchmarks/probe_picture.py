"""The tensor probe's picture: an image, and maps of the differences between its network inputs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
from numpy.typing import NDArray

from maskjet.host.machine import Machine
from maskjet.sources.images import Image
from maskjet.spec import ModelSpec


@dataclass(frozen=True)
class Scene:
    """An image, and the differences between its network inputs."""

    image: Image
    """uint8 [H, W, 3] RGB."""
    index: int
    """Position of the image, from 0."""
    maps: Mapping[tuple[str, str], NDArray[np.float64]]
    """Largest absolute difference over the channels, [h, w], by variant and oracle."""


_SAME = "#e4e4e4"
_MARK = "#ff2d78"
_CAPTION = (
    "triton, cpu, reference: maskjet's implementations, with PyTorch's filter or, marked “cv2”, with OpenCV's.\n"
    "F.interpolate: PyTorch's own. cv2.resize: OpenCV's own. The network's input is (pixel / 255 − mean) / std."
)


def draw(scene: Scene, spec: ModelSpec, machine: Machine, path: Path) -> None:
    """Draw the image, and beside it a map for each pair that differs; pairs with equal maps share one."""
    from matplotlib.figure import Figure

    groups: dict[bytes, list[tuple[str, str]]] = {}
    for pair, where in scene.maps.items():
        groups.setdefault(where.tobytes() if where.any() else b"", []).append(pair)
    equal = groups.pop(b"", [])
    columns = min(3, 1 + len(groups))
    rows = -(-(1 + len(groups)) // columns)
    lines = max(map(len, groups.values()), default=0) + len(equal)  # of text, above and below the maps
    figure = Figure(figsize=(5 * columns + 1.8, 5.2 * rows + 0.19 * lines + 1.9), layout="compressed")
    cells = list(figure.subplots(rows, columns, squeeze=False).flat)
    _draw_image(cells[0], scene, spec, equal)
    if groups:
        limits = _find_limits([scene.maps[pairs[0]] for pairs in groups.values()])
        drawn = [_draw_map(axes, scene, pairs, limits) for axes, pairs in zip(cells[1:], groups.values(), strict=False)]
        _draw_colour_bar(figure, cells, drawn[0], spec)
    for axes in cells[1 + len(groups) :]:
        axes.set_axis_off()
    what = "Where preprocessed network inputs differ" if groups else "Preprocessed network inputs: no pair differs"
    where_run = machine.gpu.name if machine.gpu else machine.cpu
    versions = f"torch {machine.versions['torch']}, OpenCV {cv2.__version__}, maskjet commit {machine.commit}"
    _draw_caption(figure, has_maps=bool(groups))
    figure.suptitle(f"{what}\n{where_run}, {versions}", fontsize=12)
    figure.savefig(path, dpi=110, format="png")


def _draw_image(axes: Any, scene: Scene, spec: ModelSpec, equal: Sequence[tuple[str, str]]) -> None:
    height, width = scene.image.shape[:2]
    rows, columns = spec.input_hw
    axes.imshow(cv2.resize(scene.image, (columns, rows), interpolation=cv2.INTER_LINEAR))
    which = ", which differs most" if len(equal) < len(scene.maps) else ""
    axes.set_title(f"image {scene.index}, counted from 0{which}", fontsize=10)
    below = f"{width} × {height} pixels, resized to {columns} × {rows}"
    axes.set_xlabel(f"{below}\n\nno difference here:\n{_list_pairs(equal)}" if equal else below, fontsize=9)
    axes.set(xticks=[], yticks=[])


def _list_pairs(pairs: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{variant}  vs  {oracle}" for variant, oracle in pairs)


def _find_limits(maps: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Find powers of ten around the finite differences, without the smallest 1 %, which would reduce the contrast."""
    differences = np.concatenate([where[(where > 0) & np.isfinite(where)] for where in maps])
    if not len(differences):
        return 0.1, 1.0
    low, high = np.log10([np.quantile(differences, 0.01), differences.max()])
    return float(10.0 ** np.floor(low)), float(10.0 ** max(np.ceil(high), np.floor(low) + 1))


def _draw_map(axes: Any, scene: Scene, pairs: Sequence[tuple[str, str]], limits: tuple[float, float]) -> Any:
    """Draw one map, titled with all pairs that share it."""
    from matplotlib import colormaps
    from matplotlib.colors import LogNorm

    where = scene.maps[pairs[0]]
    shown = axes.imshow(
        np.ma.masked_equal(where, 0).clip(max=10 * limits[1]),  # infinity would have no colour
        norm=LogNorm(*limits),
        cmap=colormaps["viridis"].with_extremes(bad=_SAME),
        interpolation="nearest",
    )
    y, x = divmod(int(where.argmax()), where.shape[1])
    axes.plot(x, y, marker="o", markersize=14, fillstyle="none", color=_MARK, markeredgewidth=1.8)
    axes.set_title(_list_pairs(pairs), fontsize=10)
    axes.set_xlabel(
        f"{np.count_nonzero(where):,} of {where.size:,} pixels differ, by {np.median(where[where > 0]):.2g} at the "
        f"median\nand at most by {where.max():.2g}, at x = {x}, y = {y}",
        fontsize=9,
    )
    axes.set(xticks=[], yticks=[])
    return shown


def _draw_colour_bar(figure: Any, cells: Sequence[Any], shown: Any, spec: ModelSpec) -> None:
    """Draw the colour bar, with marks at one step of a byte and at one ULP."""
    bar = figure.colorbar(shown, ax=cells, extend="both", shrink=0.8, aspect=40, extendfrac=0.02, pad=0.02)
    bar.set_label("difference, the largest of three colours,\nin units of the network's input (log scale)", fontsize=9)
    low, high = shown.get_clim()
    for size, name in ((1 / 255 / max(spec.std), "one step\nof a byte"), (2.0**-23, "float32's\nULP at 1")):
        if low < size < high:
            bar.ax.axhline(size, color="white", linewidth=1.5)
            across = bar.ax.get_yaxis_transform()
            bar.ax.text(-0.25, size, name, transform=across, ha="right", va="center", fontsize=8)


def _draw_caption(figure: Any, *, has_maps: bool) -> None:
    """Draw the legend: the meaning of the names, of grey and of the ring."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    ring = Line2D([], [], marker="o", markersize=10, fillstyle="none", color=_MARK, linestyle="none")
    handles = {"no difference": Patch(color=_SAME), "the largest difference": ring} if has_maps else {}
    options = {"ncols": 2, "frameon": False, "fontsize": 9, "title": _CAPTION, "title_fontsize": 9}
    figure.legend(handles.values(), handles, loc="outside lower center", **options)
