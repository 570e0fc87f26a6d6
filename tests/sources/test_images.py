"""An image has one answer, whatever it comes as: a path, a URL of a file, a file's bytes, or a PIL image."""

import io
import struct
import threading
import zlib
from contextlib import contextmanager, suppress
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from PIL import Image as PILImage
from PIL import ImageCms
from PIL.PngImagePlugin import PngInfo

from maskjet.errors import InputError, SourceError
from maskjet.sources.expansion import expand_sources
from maskjet.sources.frames import open_source
from maskjet.sources.images import decode_image, read_image, to_image
from maskjet.sources.pillow_images import orientation_of_jpeg, stated_orientation
from tests.sources.clips import close_to, picture

pytestmark = pytest.mark.usefixtures("in_folder")

RGB = PILImage.fromarray(picture())
ALPHA = PILImage.fromarray(np.arange(48 * 64, dtype=np.uint8).reshape(48, 64))
RGBA, PALETTE = RGB.copy(), RGB.quantize(200)
RGBA.putalpha(ALPHA)
INVERTED = PILImage.fromarray(255 - picture())
TWELVE_BITS = picture()[..., 0].astype(np.uint16) << 4  # which do not say what white is


def lab():
    profiles = [ImageCms.createProfile(name) for name in ("sRGB", "LAB")]
    return ImageCms.applyTransform(RGB, ImageCms.buildTransform(*profiles, "RGB", "LAB"))


def encode(image, suffix, **options):
    file = io.BytesIO()
    image.save(file, PILImage.registered_extensions()[suffix], **options)
    return file.getvalue()


def ways(data, name):
    """The image in every way that it may come."""
    path = Path(name)
    path.write_bytes(data)
    loaded = PILImage.open(io.BytesIO(data))
    loaded.load()
    yield read_image(path)
    yield decode_image(data, "part 1")
    for value in (str(path), path.absolute().as_uri(), PILImage.open(io.BytesIO(data)), loaded):
        yield to_image(value, "image")


KINDS = {  # image, file name, options, largest difference from its pixels without alpha, of a lossless one
    "alpha": (RGBA, "a.tif", {}, 0),
    "alpha and LZW": (RGBA, "a.tif", {"compression": "tiff_lzw"}, 0),
    "LZMA": (RGB, "a.tif", {"compression": "lzma"}, 0),
    "zstd": (RGB, "a.tif", {"compression": "zstd"}, 0),
    "grey and alpha": (RGBA.convert("LA"), "a.tif", {}, 0),
    "LAB": (lab(), "a.tif", {}, None),
    "CMYK TIFF": (RGB.convert("CMYK"), "a.tif", {}, 0),
    "transparent GIF": (PALETTE, "a.gif", {"transparency": 3}, 0),
    "transparent palette": (PALETTE, "a.png", {"transparency": 3}, 0),
    "APNG's default": (INVERTED, "a.png", {"save_all": True, "append_images": [RGB] * 2, "default_image": True}, 0),
    "CMYK JPEG": (RGB.convert("CMYK"), "a.jpg", {"quality": 95}, None),
    "animated WebP": (RGB, "a.webp", {"save_all": True, "append_images": [INVERTED], "lossless": True}, 0),
}


@pytest.mark.parametrize(("image", "name", "options", "most"), KINDS.values(), ids=KINDS)
def test_a_kind_of_file(image, name, options, most):
    expected = np.asarray(RGB if most is None else image.convert("RGB")).astype(int)
    first, *others = ways(encode(image, Path(name).suffix, **options), name)
    for other in others:
        np.testing.assert_array_equal(other, first)
    assert close_to(first, expected)
    if most is not None:
        assert abs(first - expected).max() <= most


def test_modes_of_pillow_with_premultiplied_alpha():
    opaque = RGB.convert("LA")
    for image in (opaque.convert("La"), opaque.convert("RGBA").convert("RGBa")):
        np.testing.assert_array_equal(to_image(image, "image"), np.asarray(opaque.convert("RGB")))


def test_a_grey_tiff_of_twelve_bits_has_white_at_4095():
    white = np.full((2, 4), 4095)
    packed = b"".join(int(a << 12 | b).to_bytes(3, "big") for a, b in white.reshape(-1, 2))
    tags = {256: 4, 257: 2, 258: 12, 259: 1, 262: 1, 273: 8, 277: 1, 278: 2, 279: len(packed), 339: 1}
    entries = b"".join(struct.pack("<HHII", tag, 3, 1, value) for tag, value in tags.items())
    data = b"II*\0" + struct.pack("<I", 8 + len(packed)) + packed + struct.pack("<H", len(tags)) + entries + bytes(4)
    for image in ways(data, "a.tif"):
        np.testing.assert_array_equal(image, np.full((2, 4, 3), 255))


def test_an_animated_gif_is_refused_as_a_source_and_elsewhere_its_first_image():
    for name, others in {"a.gif": [INVERTED], "still.gif": [], "a.png": [INVERTED]}.items():
        PALETTE.save(name, save_all=True, append_images=others)
    with pytest.raises(SourceError, match=r"must be an image or a video, 'a\.gif' is an animation: make an MP4 of it"):
        open_source("a.gif")
    for given, count in (("still.gif", 1), ("a.png", 1), (["a.gif", "still.gif"], 2), (".", 3), ("*.gif", 2)):
        frames = list(open_source(given))
        assert [close_to(frame.image, picture()) for frame in frames] == [True] * count
    (images,) = expand_sources(".")
    assert [path.name for path in images.files] == ["a.gif", "a.png", "still.gif"]


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((8, 9), np.float32), "must have 8 or 16 bits per channel, got a PIL image of mode 'F'"),
        (np.zeros((8, 9, 3), np.float32), r"image must be decodable, 'a\.tif' is not: unknown pixel mode"),
    ],
)
def test_a_tiff_of_floats_is_refused_by_name(array, message):
    cv2.imwrite("a.tif", array)
    with pytest.raises(SourceError, match=message) as caught:
        read_image(Path("a.tif"))
    assert "'a.tif'" in str(caught.value)


MARKED = RGB.copy()  # in one corner, so that each orientation differs
MARKED.paste((250, 20, 20), (0, 0, 20, 12))


def exif_of(orientation, extra=()):
    """An EXIF block; `extra` is another entry with its value."""
    entries = [struct.pack("<HHII", 274, 3, 1, orientation)]
    if extra:
        entries.append(struct.pack("<HHII", 282, 10, 1, 8 + 2 + 2 * 12 + 4))
    count = struct.pack("<H", len(entries))
    return b"II*\0\x08\0\0\0" + count + b"".join(entries) + bytes(4) + struct.pack(f"<{len(extra)}i", *extra)


def xmp_of(orientation):
    return f'<rdf:Description xmlns:tiff="http://ns.adobe.com/tiff/1.0/" tiff:Orientation="{orientation}"/>'.encode()


def with_late_exif(orientation):
    chunk = b"eXIf" + exif_of(orientation)
    data = encode(MARKED, ".png")
    return data[:-12] + struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[-12:]


def with_raw_profile(orientation):
    info, exif = PngInfo(), b"Exif\0\0" + exif_of(orientation)
    info.add_text("Raw profile type exif", f"\nexif\n{len(exif):8}\n{exif.hex()}\n", zip=True)
    return encode(MARKED, ".png", pnginfo=info)


STATED = {
    "JPEG": (".jpg", lambda n: encode(MARKED, ".jpg", quality=95, exif=b"Exif\0\0" + exif_of(n))),
    "doubled header": (".jpg", lambda n: encode(MARKED, ".jpg", quality=95, exif=b"Exif\0\0Exif\0\0" + exif_of(n))),
    "rational": (".jpg", lambda n: encode(MARKED, ".jpg", quality=95, exif=b"Exif\0\0" + exif_of(n, (-1, 0)))),
    "XMP": (".jpg", lambda n: encode(MARKED, ".jpg", quality=95, xmp=xmp_of(n))),
    "CMYK": (".jpg", lambda n: encode(MARKED.convert("CMYK"), ".jpg", quality=95, exif=b"Exif\0\0" + exif_of(n))),
    "PNG": (".png", lambda n: encode(MARKED, ".png", exif=exif_of(n, (-1, 0)))),
    "late in a PNG": (".png", with_late_exif),
    "raw profile": (".png", with_raw_profile),
    "WebP": (".webp", lambda n: encode(MARKED, ".webp", quality=95, exif=exif_of(n, (-1, 0)))),
    "XMP in WebP": (".webp", lambda n: encode(MARKED, ".webp", quality=95, xmp=xmp_of(n))),
    "TIFF": (".tif", lambda n: encode(MARKED, ".tif", tiffinfo={274: n})),
    "LZW": (".tif", lambda n: encode(MARKED, ".tif", tiffinfo={274: n}, compression="tiff_lzw")),
}


@pytest.mark.parametrize(("suffix", "write"), STATED.values(), ids=STATED)
def test_every_orientation(suffix, write):
    stored = np.asarray(MARKED)
    for orientation in range(1, 9):
        expected = {
            1: stored,
            2: stored[:, ::-1],
            3: stored[::-1, ::-1],
            4: stored[::-1],
            5: stored.swapaxes(0, 1),
            6: np.rot90(stored, -1),
            7: np.rot90(stored, 2).swapaxes(0, 1),
            8: np.rot90(stored),
        }[orientation]
        for image in ways(write(orientation), f"a{suffix}"):
            assert image.shape == expected.shape
            assert close_to(image, expected)


def test_an_orientation_above_8_is_none():
    for name in ("JPEG", "rational", "PNG"):
        assert stated_orientation(STATED[name][1](9)) == 1
    assert orientation_of_jpeg(b"", [b"Exif\0\0" + exif_of(9)]) == 1


class Camera(SimpleHTTPRequestHandler):
    """Serves the folder's files, and images without end."""

    def do_GET(self):
        if self.path != "/camera":
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Type", "multipart/x-mixed-replace; boundary=b")
        self.end_headers()
        with suppress(OSError):
            while True:
                self.wfile.write(b"--b\r\nContent-Type: image/jpeg\r\n\r\n" + encode(RGB, ".jpg") + b"\r\n")

    def log_message(self, *_):
        pass


@contextmanager
def serve():
    with ThreadingHTTPServer(("127.0.0.1", 0), Camera) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


class TestUrls:
    def test_a_file_by_its_url(self):
        path = Path("é %41#?.png").absolute()
        path.write_bytes(encode(RGB, ".png"))
        np.testing.assert_array_equal(to_image(path.as_uri(), "image"), picture())
        with pytest.raises(SourceError, match=r"'file://elsewhere/a\.png' names 'elsewhere'"):
            to_image("file://elsewhere/a.png", "image")

    def test_an_image_behind_a_url_is_to_be_downloaded_first(self):
        message = "images must be a file or in memory, got 'https://host/a.jpg': download an image first"
        with pytest.raises(InputError, match=message):
            to_image("https://user:secret@host/a.jpg", "images")
        for name in ("a.jpg", "a.png", "a.webp", "a.gif"):
            Path(name).write_bytes(encode(PALETTE if name == "a.gif" else RGB, Path(name).suffix))
        with serve() as address:
            for name in Path().iterdir():
                url = f"{address}/{name}"
                message = f"source must be a video or camera if it is a URL, '{url}' is an image: download it first"
                with pytest.raises(SourceError, match=message):
                    open_source(url)
            with open_source(f"{address}/camera", limit=2) as source:  # which is images, too
                assert [close_to(frame.image, picture()) for frame in source] == [True, True]


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.zeros(3, 8, 9).to_sparse(),
        lambda: torch.empty(3, 8, 9, device="meta"),
        lambda: torch.empty(8, 9, 3, dtype=torch.uint8, device="meta"),
        lambda: torch.nested.nested_tensor([torch.zeros(3, 8, 9)]),
        lambda: torch.quantize_per_tensor(torch.zeros(3, 8, 9), 1.0, 0, torch.quint8),
        lambda: np.array([picture(), picture(9, 9)], dtype=object),
        lambda: np.array(["a.png", "b.png"]),
        lambda: picture().astype(object),
        lambda: picture().astype(float),
        *(lambda pack=pack: pack(TWELVE_BITS) for pack in (np.asarray, torch.from_numpy, PILImage.fromarray)),
        *(lambda shape=shape: np.zeros(shape, np.uint8) for shape in ((3, 8, 9), (8, 9, 2), (0, 9, 3), (5,))),
        lambda: torch.zeros(8, 9, 3),
        lambda: PILImage.fromarray(np.zeros((4, 4), np.float32)),
    ],
)
@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors", "ignore:.*quantize:UserWarning")
def test_what_is_no_image_is_refused(make):
    for use in (lambda image: to_image(image, "image"), open_source):
        with pytest.raises(InputError) as caught:
            use(make())
        assert caught.value.argument == "image"
