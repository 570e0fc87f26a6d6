"""Request bodies: read within limits, split into images, decode in threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from typing import cast

from python_multipart.exceptions import FormParserError
from python_multipart.multipart import FormParser, parse_options_header
from starlette.requests import ClientDisconnect, Request

from maskjet.serve import problems
from maskjet.serve.service import LARGE, Reservation, Service
from maskjet.serve.tickets import Decode, LargeImage, WholeJPEG
from maskjet.sources.image_headers import stated_size_hw
from maskjet.sources.images import Image, decode_image

_UNNAMED = (b"", b"application/octet-stream", b"application/x-www-form-urlencoded")  # the last is curl's default


@dataclass(frozen=True)
class EncodedImage:
    """An encoded image of a request."""

    data: bytes
    """Content of an image file, unchecked."""
    title: str = "the body"
    """Name of the image in error messages."""
    name: str = ""
    """Name of the multipart part, given by the client; empty for other images."""


async def read(request: Request) -> bytes:
    """Read a request's body, limited by `guard`; raises ProblemError, 415 if it is compressed, or GoneError."""
    encoding = request.headers.get("content-encoding", "identity").lower()
    if encoding != "identity":
        raise problems.ProblemError(
            415, "unsupported-encoding", f"Content-Encoding must be identity, got {encoding[:100]!r}."
        )
    try:
        return await request.body()
    except ClientDisconnect as error:
        raise problems.GoneError from error


def split(content_type: str, body: bytes, most: int) -> list[EncodedImage]:
    """Split a body into images: parts of multipart/form-data, at most `most`, or else the body itself.

    Raises:
        ProblemError: 400, the body is malformed or empty; 413, it has too many parts; 415, it is no image.
    """
    kind, options = parse_options_header(content_type)
    if kind == b"multipart/form-data":
        parts = _split_form(options.get(b"boundary", b""), body, most)
    elif kind in _UNNAMED or kind.startswith(b"image/"):
        parts = [EncodedImage(body)]
    else:
        raise problems.ProblemError(
            415,
            "unsupported-media-type",
            "Content-Type must be an image's, application/octet-stream or multipart/form-data, "
            f"got {content_type[:100]!r}.",
        )
    if not parts or not body:
        raise problems.bad_request("The body must have an image, it is empty.")
    return parts


def _split_form(boundary: bytes, body: bytes, most: int) -> list[EncodedImage]:
    if not boundary:
        raise problems.bad_request("Content-Type must name the boundary of multipart/form-data, it does not.")
    parts: list[EncodedImage] = []
    ends: list[bool] = []

    def add(given: bytes | None, data: bytes | None) -> None:
        if len(parts) >= most:
            raise problems.too_large(f"The body has more than {most} parts.")
        name = (given or str(len(parts)).encode()).decode(errors="replace")
        parts.append(EncodedImage(data or b"", f"part {name!r}", name))

    parser = None
    try:
        parser = FormParser(
            "multipart/form-data",
            lambda field: add(field.field_name, field.value),
            lambda file: add(file.file_name or file.field_name, cast(BytesIO, file.file_object).getvalue()),
            lambda: ends.append(True),
            boundary,
            config={"MAX_MEMORY_FILE_SIZE": len(body)},  # keep all parts in memory
        )
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise problems.bad_request(f"The body must be multipart/form-data, it is not: {error}.") from error
    finally:
        if parser is not None:
            parser.parser = None  # they refer to each other, so that the parts would live until garbage is collected
    if not ends:
        raise problems.bad_request("The body must be multipart/form-data, it is cut off.")
    return parts


def decoders(service: Service, images: Sequence[EncodedImage], reservation: Reservation) -> list[Decode]:
    """Functions that reserve memory, then decode an image or mark it for the GPU; see `Dispatcher.predict_all`.

    They raise:
        ProblemError: 413, the image is too large; 429, the memory is taken.
        SourceError: Not an image.
    """
    return [partial(_decode, service, image, reservation) for image in images]


def _decode(service: Service, image: EncodedImage, reservation: Reservation) -> Image | WholeJPEG | LargeImage:
    size_hw = stated_size_hw(image.data)
    if size_hw is None:
        return decode_image(image.data, image.title)  # raises with the reason
    pixels, most = size_hw[0] * size_hw[1], service.settings.pixels
    if pixels > most:
        raise problems.too_large(f"{image.title} has {size_hw[1]}×{size_hw[0]} pixels, the limit is {most:,}.")
    decode = partial(decode_image, image.data, image.title)
    if service.jpeg_decoder is not None:
        from maskjet.sources.plain_jpegs import PlainJPEG, choose_gpu

        found = choose_gpu(image.data)
        if isinstance(found, str):
            service.metrics.jpegs_on_cpu.labels(found).inc()
        if isinstance(found, PlainJPEG):
            reservation.take(3 * pixels)
            return WholeJPEG(found, decode)
    if pixels > LARGE:
        return LargeImage(pixels, partial(_decode_large, service, decode, pixels, reservation))
    reservation.take(3 * pixels)
    return decode()


def _decode_large(service: Service, decode: Callable[[], Image], pixels: int, reservation: Reservation) -> Image:
    with service.memory.working(pixels):
        reservation.take(3 * pixels)
        return decode()
