"""Find instances in a GeoTIFF of any size, tile by tile, and write outlines to GeoJSON, in longitude and latitude.

    pip install rasterio
    python examples/geotiff.py scene.tif found.geojson

The file has three bands of uint8, or four with alpha, and is placed by a CRS and a transform. Pixels are in memory for
some tiles at a time; masks for all, so that memory grows with the number of things and not with the raster.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import rasterio
from rasterio.features import shapes
from rasterio.warp import transform_geom
from rasterio.windows import Window

import maskjet
from maskjet.tiling.layout import cut_tiles
from maskjet.tiling.merging import merge_tiles, to_runs


def find(model: maskjet.Model, raster: Any, tile: int) -> Iterator[dict[str, Any]]:
    """Yield a GeoJSON feature per thing, most confident first. Things larger than a tile may come in pieces."""
    size_hw = raster.height, raster.width
    tiles = cut_tiles(size_hw, tile, 0.2, (tile, tile), full=False, most=2**18)  # they overlap by 0.2 of their sides
    found: list[maskjet.Detections] = []
    for k in range(0, len(tiles), 16):
        windows = [Window(left, top, width, height) for top, left, height, width in tiles[k : k + 16]]
        found += model.predict([np.dstack(raster.read((1, 2, 3), window=window)) for window in windows])
    for strips, _, confidence, class_id in zip(*merge_tiles(found, tiles, size_hw, most=None), strict=True):
        if len(strips):  # else its mask is empty
            name = found[0].class_names.get(int(class_id), str(class_id))
            about = {"class_name": name, "confidence": float(confidence)}
            yield {"type": "Feature", "properties": about, "geometry": outline(strips, raster)}


def outline(strips: Any, raster: Any) -> Any:
    """Trace a mask, given as rows of (column, top, bottom), along its pixels' edges; it is dense in its box alone."""
    left, right, top, bottom = strips[0, 0], strips[-1, 0] + 1, strips[:, 1].min(), strips[:, 2].max()
    mask = to_runs([strips - (left, top, top)], (int(bottom - top), int(right - left))).unite()
    place = raster.window_transform(Window(left, top, right - left, bottom - top))
    traced = shapes(mask, mask=mask.view(bool), connectivity=4, transform=place)  # with 8 polygons may be invalid
    turn = -1 if place.determinant > 0 else 1  # outer rings run counterclockwise, also where rows go north
    polygons = [[ring[::turn] for ring in part["coordinates"]] for part, _ in traced]
    return transform_geom(raster.crs, "EPSG:4326", {"type": "MultiPolygon", "coordinates": polygons}, precision=9)


if __name__ == "__main__":
    _, path, out = sys.argv
    with rasterio.open(path, driver="GTiff") as scene, maskjet.load("demo") as detector:  # or another, with its weights
        if not scene.crs:
            sys.exit(f"{path} is not placed by a CRS and a transform.")
        collection = {"type": "FeatureCollection", "features": list(find(detector, scene, tile=640))}
        Path(out).write_text(json.dumps(collection, allow_nan=False))
