"""Rasters: maps of what is found on tiles of GeoTIFFs, drawn by hand and streets."""

import json
import os
import struct
import warnings
from pathlib import Path

import cv2
import numpy as np
import pytest

from maskjet import limits, rasters, traffic
from maskjet.detections import Detections
from maskjet.errors import SourceError
from maskjet.masks import coco_rle
from maskjet.rasters import detect_raster
from tests.cli.command_line import call

rasterio = pytest.importorskip("rasterio")
parquet = pytest.importorskip("pyarrow.parquet")
pytestmark = pytest.mark.filterwarnings("ignore::PendingDeprecationWarning")  # of affine 3, by rasterio 1.4
HW, BLUE, RED = (600, 900), (0, 0, 255), (255, 0, 0)
MAPS = ["a.geojson", "a.parquet"]
UTM = {"crs": "EPSG:32632", "transform": rasterio.Affine(0.5, 0, 500_000, 0, -0.5, 5_400_000)}


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write_raster(pixels, **options):
    height, width, count = pixels.shape
    shape = {"height": height, "width": width, "count": count, "dtype": pixels.dtype}
    tiled = {"driver": "GTiff", "tiled": True, "blockxsize": 128, "blockysize": 128, "compress": "deflate"}
    with warnings.catch_warnings(action="ignore"), rasterio.open("a.tif", "w", **(shape | tiled | options)) as raster:
        raster.write(np.moveaxis(pixels, -1, 0))


def draw_shapes():
    """A raster of discs, a ring, a bar through many rows of tiles, and pixels that touch at a corner alone."""
    pixels = np.zeros((*HW, 3), np.uint8)
    for k, centre in enumerate([(40, 30), (256, 256), (205, 430), (700, 410), (860, 560), (450, 205)]):
        cv2.circle(pixels, centre, 14 + 2 * k, RED if k % 2 else BLUE, -1)
    cv2.circle(pixels, (650, 230), 60, RED, 12)
    cv2.line(pixels, (560, 20), (380, 590), BLUE, 5)
    pixels[500:510, 100:110] = pixels[510:520, 110:120] = RED
    return pixels


class Finder:
    """A model that finds the blobs of each colour."""

    def predict(self, images, **_):
        return list(map(self.find, images))

    def find(self, image):
        found = []
        for number, colour in enumerate((BLUE, RED)):
            count, blobs = cv2.connectedComponents(np.uint8((image == colour).all(axis=2)))
            found += [(number, coco_rle.encode(blobs == k)[0]) for k in range(1, count)]
        class_id, rle = np.array([number for number, _ in found], np.int32), [one for _, one in found]
        confidence = np.array([0.9 - coco_rle.area(one) / 10**6 for one in rle], np.float32)
        xyxy = np.array([coco_rle.to_xyxy(one) for one in rle], np.float32).reshape(-1, 4)
        return Detections(image.shape[:2], xyxy, confidence, class_id, rle, {0: "blue", 1: "red"})


def to_wkb(polygons):
    each = [[struct.pack(f"<I{2 * len(ring)}d", len(ring), *np.ravel(ring)) for ring in rings] for rings in polygons]
    parts = [struct.pack("<BII", 1, 3, len(rings)) + b"".join(rings) for rings in each]
    return struct.pack("<BII", 1, 6, len(parts)) + b"".join(parts)


def paint(polygons, **transform):
    geometry = {"type": "MultiPolygon", "coordinates": polygons}
    return rasterio.features.rasterize([geometry], HW, dtype="uint8", **transform).astype(bool)


@pytest.mark.parametrize("tile", [128, (100, 256), 900])
def test_maps_show_each_thing_once_in_the_crs_and_in_degrees(monkeypatch, tile):
    pixels, rows = draw_shapes(), []
    write_raster(pixels, **UTM)
    monkeypatch.setattr(rasters, "_PIXELS_AT_ONCE", 2**15)  # so that rows are read in several windows
    count = detect_raster(Finder(), "a.tif", MAPS, tile=tile, on_row=lambda *row: rows.append(row))
    table, features = parquet.read_table("a.parquet"), json.loads(Path("a.geojson").read_text())["features"]
    expected = {tuple(one.xyxy[0].tolist()): one for one in Finder().find(pixels)}
    assert (count, *rows[-1]) == (len(expected), len(rows), len(rows))
    for row, feature in zip(table.to_pylist(), features, strict=True):
        one, data = expected.pop(tuple(row["xyxy"])), row.pop("geometry")
        assert (row["class_id"], row["class_name"]) == (one.class_id[0], one.class_name[0])
        assert feature["properties"] == row
        back = rasterio.warp.transform_geom("EPSG:4326", UTM["crs"], feature["geometry"])["coordinates"]
        assert np.array_equal(paint(back, transform=UTM["transform"]), one.masks()[0])
        assert np.abs(np.subtract(back[0][0][0], struct.unpack_from("<dd", data, 22))).max() < 1e-3
        areas = [[cv2.contourArea(np.float32(np.subtract(ring, ring[0])), True) for ring in rings] for rings in back]
        assert all(outer > 0 and max(holes, default=-1) < 0 for outer, *holes in areas)  # holes run clockwise
    assert not expected
    column = json.loads(table.schema.metadata[b"geo"])["columns"]["geometry"]
    assert (column["encoding"], column["crs"]["id"]["code"]) == ("WKB", 32632)
    assert column["bbox"] == [500_000, 5_400_000 - 300, 500_000 + 450, 5_400_000]


def test_without_a_crs_coordinates_are_pixels_and_the_files_say_so():
    pixels = draw_shapes()
    write_raster(np.dstack([pixels, pixels[..., :1]]), photometric="RGB", alpha="YES")
    detect_raster(Finder(), "a.tif", MAPS)
    found = json.loads(Path("a.geojson").read_text())
    assert found["coordinates"] == "of the raster, which names no CRS"
    every = [feature["geometry"]["coordinates"] for feature in found["features"]]
    assert np.array_equal(np.any(list(map(paint, every)), axis=0), pixels.any(axis=2))
    assert parquet.read_table("a.parquet")["geometry"].to_pylist() == list(map(to_wkb, every))
    geo = json.loads(parquet.read_schema("a.parquet").metadata[b"geo"])["columns"]["geometry"]
    assert (geo["crs"], geo["bbox"]) == (None, [0, 0, 900, 600])
    rings = [(np.float32(outer), holes) for polygons in every for outer, *holes in polygons]
    assert all(cv2.contourArea(outer, True) > 0 for outer, _ in rings)  # counterclockwise, though rows go down


@pytest.mark.parametrize(
    ("bands", "options", "message"),
    [
        (1, {}, "3 bands of uint8, or 4 with alpha, .* has 1 of uint8: write them with gdal_translate"),
        (3, {"dtype": "uint16"}, "has 3 of uint16"),
        (3, {"tiled": False, "blockysize": 600}, "a strip or tile of .* has 540,000 pixels, the limit is 500,000"),
    ],
)
def test_rasters_of_other_kinds_are_refused(monkeypatch, bands, options, message):
    monkeypatch.setattr(limits, "image_pixels", 500_000)
    write_raster(np.zeros((*HW, bands), options.get("dtype", np.uint8)), **options)
    with pytest.raises(SourceError, match=message):
        detect_raster(Finder(), "a.tif", MAPS)


def test_a_raster_that_control_points_place_is_refused():
    points = [rasterio.control.GroundControlPoint(row, column, column, row) for row, column in ((0, 0), (0, 9), (9, 0))]
    write_raster(draw_shapes(), gcps=points, crs=UTM["crs"])
    with pytest.raises(SourceError, match=r"source must be placed by a transform, .* has control points: use gdalwarp"):
        detect_raster(Finder(), "a.tif", MAPS)


@pytest.mark.parametrize("source", ["none.tif", "/vsicurl/http://127.0.0.1:9/a.tif", "GTIFF_DIR:1:a.tif", "a.vrt"])
def test_only_files_in_the_format_are_opened(source):
    write_raster(draw_shapes(), **UTM)
    Path("a.vrt").write_text('<VRTDataset rasterXSize="9" rasterYSize="9"></VRTDataset>')
    with pytest.raises(SourceError, match="source must be a GeoTIFF"):
        detect_raster(Finder(), source, MAPS)


def test_damage_is_an_error_that_leaves_no_file():
    write_raster(np.random.default_rng(0).integers(0, 256, (*HW, 3), np.uint8), **UTM)
    os.truncate("a.tif", 900_000)
    with pytest.raises(SourceError, match=r"a.tif' is not at row \d+: "):
        detect_raster(Finder(), "a.tif", MAPS, tile=128)
    assert list(Path().iterdir()) == [Path("a.tif")]


def test_the_command_writes_maps_of_streets(capsys):
    write_raster(traffic.sample(seed=3, size_hw=(360, 640)).image, **UTM)
    words = "maskjet run a.tif -o a.geojson -o a.parquet --tile 320 --overlap 0.4 --json"
    code, out, _ = call(capsys, *words.split())
    code, again, _ = call(capsys, *words.replace("-o a.", "-o {}.").split())
    assert (code, sorted(json.loads(again)["replaced"])) == (0, MAPS)
    names = parquet.read_table("a.parquet")["class_name"].to_pylist()
    assert (code, len(names), set(names) >= {"car", "person"}) == (0, json.loads(out)["detections"], True)
    wrong = {
        "--every 2": "--every must not be given",
        "-o b.jsonl": "--out must be one .geojson or .parquet or several",
        "--tile auto": "--tile must be a side in pixels",
        "-o a.geojson --no-overwrite": "--out must not exist, 'a.geojson' does",
    }
    for words, message in wrong.items():
        code, _, err = call(capsys, *f"maskjet run a.tif -o b.geojson {words}".split())
        assert (code, message in err) == (2, True)
