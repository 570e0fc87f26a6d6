"""Detect on huge GeoTIFFs, read window by window, and write instances to GeoJSON or GeoParquet."""

from __future__ import annotations

import json
import math
import os
import struct
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import chain, groupby, repeat
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from maskjet import limits
from maskjet.detections import Detections
from maskjet.errors import InputError, SourceError, translate_errors
from maskjet.host.extras import require
from maskjet.host.files import is_same_file, replacing
from maskjet.tiling.layout import Tile, TileSize, cut_tiles

if TYPE_CHECKING:
    from maskjet.model import Model
    from maskjet.tiling.merging import Things

SUFFIXES = (".geojson", ".parquet")
"""Suffixes of map outputs."""
_PIXELS_AT_ONCE = 2**23  # pixels per window, whose blocks are decoded on all cores
_Features = list[dict[str, Any]]  # GeoJSON features, in the raster's CRS
_Writer = Callable[[_Features], object]


def detect_raster(
    model: Model,
    path: str | os.PathLike[str],
    outs: Sequence[str],
    *,
    tile: TileSize = 640,
    overlap: float = 0.2,
    on_row: Callable[[int, int], object] = lambda *_: None,
    **options: Any,
) -> int:
    """Detect on overlapping tiles of a GeoTIFF of any size, and write the merged instances to maps.

    Some megapixels are in memory, and what was found in rows of tiles that later ones overlap.

    Args:
        model: What detects.
        path: A TIFF file with 3 bands of uint8, or 4 with alpha. No other file, such as .tfw, is read.
        outs: Files to write: `.geojson` in longitude and latitude, `.parquet` (GeoParquet 1.1) in the raster's CRS.
            Without a CRS both have the raster's coordinates: pixels, y downwards, if no others are given. Things are
            in the order of rows of tiles. One whose mask is empty is left out.
        tile: Side of tiles in pixels, 32 or more, or (height, width); at most 262,144 tiles.
        overlap: Least overlap of tiles, 0..0.9 of their sides; larger than most things.
        on_row: Called after each row of tiles, with the number of rows done and of all.
        **options: threshold, classes and max_detections of `Model.predict`, the last one for a tile.

    Returns:
        The number of things.

    Raises:
        InputError: An argument is not as above; or waiting masks or a thing's box exceed a limit of `maskjet.limits`.
        SourceError: The file can't be read, has other bands, or is stored in too large pieces.
        OutputError: A file can't be written; one that is not whole replaces none.
        MissingDependencyError: It lacks `pip install "maskjet[geo]"`.
    """
    files = {os.path.realpath(out) for out in outs if out.lower().endswith(SUFFIXES) and not is_same_file(out, path)}
    if not outs or len(files) < len(outs):
        raise InputError(f"out must be one {' or '.join(SUFFIXES)} or several, none the source, got {', '.join(outs)}.")
    if tile == "auto":
        raise InputError("tile must be a side in pixels or (height, width) for a raster, got 'auto'.")
    from maskjet.tiling.merging import merge_tiles

    count, waiting = 0, list[tuple[Tile, Detections]]()
    with _open_raster(path) as raster, ExitStack() as stack:
        size_hw = raster.height, raster.width
        tiles = cut_tiles(size_hw, tile, overlap, (1, 1), full=False, most=2**18)
        writers: list[_Writer] = []
        for out in outs:
            open_map = _open_geojson if out.lower().endswith(SUFFIXES[0]) else _open_geoparquet
            writers.append(stack.enter_context(open_map(stack.enter_context(replacing(out)).file, raster)))
        rows = [list(row) for _, row in groupby(tiles, attrgetter("top"))]
        for number, row in enumerate(rows, 1):
            cut, parts = zip(*waiting, *_detect(model, raster, row, options), strict=True)
            next_top = rows[number][0].top if number < len(rows) else math.inf
            merged = merge_tiles(parts, cut, size_hw, None, next_top)
            waiting = [(cut[k], part) for k, part in merged.waiting]
            features = list(_outline(merged, raster, parts[-1]))
            for write in writers:
                write(features)
            count += len(features)
            on_row(number, len(rows))
    return count


@contextmanager
def _open_raster(path: str | os.PathLike[str]) -> Iterator[Any]:
    """Open a GeoTIFF with rasterio, allowing only GDAL's GTiff driver; errors are those of `detect_raster`."""
    rasterio = require("rasterio", extra="geo", purpose="A raster")
    path, file = os.fspath(path), Path(os.path.realpath(path))  # absolute, so not taken for a URL
    options = {"GDAL_CACHEMAX": 256, "GDAL_DISABLE_READDIR_ON_OPEN": "EMPTY_DIR", "GDAL_NUM_THREADS": "ALL_CPUS"}
    with rasterio.Env(**options), ExitStack() as stack:
        with warnings.catch_warnings(), translate_errors(SourceError, f"source must be a GeoTIFF, {path!r} is not"):
            warnings.simplefilter("ignore")  # about missing georeference
            raster = stack.enter_context(rasterio.open(file, driver="GTiff"))
        kinds = [kind for kind, _ in zip(raster.dtypes, range(5), strict=False)]
        if kinds[3:] and raster.colorinterp[3].name == "alpha":
            del kinds[3]
        if kinds != ["uint8"] * 3:
            raise SourceError(
                f"source must have 3 bands of uint8, or 4 with alpha, {path!r} has {raster.count} of "
                f"{' and '.join(sorted(set(kinds)))}: write them with gdal_translate -b 1 -b 2 -b 3 -ot Byte -scale."
            )
        if not raster.crs and raster.gcps[0]:
            raise SourceError(f"source must be placed by a transform, {path!r} has control points: use gdalwarp.")
        limits.check("image_pixels", math.prod(raster.block_shapes[0]), f"a strip or tile of {path!r} has", SourceError)
        yield raster


def _detect(model: Model, raster: Any, row: Sequence[Tile], options: Any) -> Iterator[tuple[Tile, Detections]]:
    """Detect on a row of tiles, read in windows of several tiles."""
    top, _, height, width = row[0]
    count = max(1, _PIXELS_AT_ONCE // (height * width))
    for some in (row[k : k + count] for k in range(0, len(row), count)):
        left = some[0].left
        with translate_errors(SourceError, f"source must be a sound GeoTIFF, {raster.name!r} is not at row {top}"):
            pixels = raster.read((1, 2, 3), window=((top, top + height), (left, some[-1].left + width)))
        pixels = np.ascontiguousarray(np.moveaxis(pixels, 0, -1))
        found = model.predict([pixels[:, tile.left - left :][:, :width] for tile in some], **options)
        finite = (each[np.flatnonzero(np.isfinite(each.xyxy).all(axis=1))] for each in found)
        yield from zip(some, finite, strict=True)


def _outline(things: Things, raster: Any, seen: Detections) -> Iterator[dict[str, Any]]:
    """Convert instances to features; masks are dense only in their boxes. `seen`: any detections of the model."""
    from rasterio.features import shapes

    from maskjet.tiling.merging import to_runs

    for strips, xyxy, confidence, class_id in zip(*things[:4], strict=True):
        if not len(strips):
            continue
        left, right, top, bottom = strips[0, 0], strips[-1, 0] + 1, strips[:, 1].min(), strips[:, 2].max()
        size_hw = int(bottom - top), int(right - left)
        limits.check("mask_pixels", math.prod(size_hw), "a thing's box has")
        mask = to_runs([strips - (left, top, top)], size_hw).unite()
        place = raster.window_transform(((top, bottom), (left, right)))
        traced = shapes(mask, mask=mask.view(bool), connectivity=4, transform=place)  # 8 gives invalid polygons
        turn = -1 if place.determinant > 0 else 1  # exteriors must be counterclockwise, also if rows go north
        polygons = [[ring[::turn] for ring in part["coordinates"]] for part, _ in traced]
        geometry = {"type": "MultiPolygon", "coordinates": polygons}
        name = seen.class_names.get(int(class_id), str(class_id))
        about = {"class_id": int(class_id), "class_name": name, "confidence": float(confidence), "xyxy": xyxy.tolist()}
        yield {"type": "Feature", "properties": about, "geometry": geometry}


@contextmanager
def _open_geojson(file: Any, raster: Any) -> Iterator[_Writer]:
    from rasterio.warp import transform_geom

    mark = "" if raster.crs else '"coordinates": "of the raster, which names no CRS", '
    file.write(f'{{"type": "FeatureCollection", {mark}"features": ['.encode())
    marks = chain(["\n"], repeat(",\n"))

    def write(features: _Features) -> None:
        geometries = [feature["geometry"] for feature in features]
        with translate_errors(SourceError, f"source must lie where its CRS has longitudes, {raster.name!r} does not"):
            if raster.crs and features:
                geometries = transform_geom(raster.crs, "EPSG:4326", geometries, precision=9)
            pairs = zip(features, geometries, strict=True)
            texts = [next(marks) + json.dumps(one | {"geometry": geometry}, allow_nan=False) for one, geometry in pairs]
        file.write("".join(texts).encode())

    yield write
    file.write(b"\n]}\n")


@contextmanager
def _open_geoparquet(file: Any, raster: Any) -> Iterator[_Writer]:
    pa, parquet = (require(name, extra="geo", purpose="GeoParquet") for name in ("pyarrow", "pyarrow.parquet"))
    x1, y1, x2, y2 = raster.bounds
    column = {
        "encoding": "WKB",
        "geometry_types": ["MultiPolygon"],
        "crs": raster.crs.to_dict(projjson=True) if raster.crs else None,
        "bbox": [min(x1, x2), min(y1, y2), max(x1, x2), max(y1, y2)],
    }
    about = {"version": "1.1.0", "primary_column": "geometry", "columns": {"geometry": column}}
    kinds = pa.int32(), pa.string(), pa.float32(), pa.list_(pa.float32(), 4), pa.binary()
    names = "class_id", "class_name", "confidence", "xyxy", "geometry"
    schema = pa.schema(zip(names, kinds, strict=True), metadata={"geo": json.dumps(about)})
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:

        def write(features: _Features) -> None:
            rows = [one["properties"] | {"geometry": _to_wkb(one["geometry"]["coordinates"])} for one in features]
            writer.write_table(pa.Table.from_pylist(rows, schema))

        yield write


def _to_wkb(polygons: Sequence[Any]) -> bytes:
    """Encode a multipolygon as well-known binary (WKB)."""
    parts = [struct.pack("<BII", 1, 6, len(polygons))]
    for rings in polygons:
        parts.append(struct.pack("<BII", 1, 3, len(rings)))
        parts += [struct.pack("<I", len(ring)) + np.asarray(ring, "<f8").tobytes() for ring in rings]
    return b"".join(parts)
