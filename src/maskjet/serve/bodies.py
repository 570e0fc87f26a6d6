"""Bodies of requests: read within limits, taken apart, and decoded in threads."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import python_multipart
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import parse_options_header
from starlette.requests import ClientDisconnect, Request

from maskjet.errors import SourceError, border
from maskjet.media.image_headers import stated_size_hw
from maskjet.media.images import decode_image
from maskjet.serve import problems
from maskjet.serve.service import Service, Share
from maskjet.serve.tickets import Image

_UNNAMED = (b"", b"application/octet-stream", b"application/x-www-form-urlencoded")  # the last is curl's own


@dataclass(frozen=True)
class Part:
    """One image of a request, encoded."""

    name: str
    """What the client calls it; empty for a body that is one image."""
    data: bytes
    """The content of an image file."""

    @property
    def title(self) -> str:
        """The name in error messages."""
        return f"part {self.name!r}" if self.name else "the body"


async def read(request: Request) -> bytes:
    """Read a request's body; `guard` limits its bytes and seconds.

    Raises:
        ProblemError: 408, 413 or 429.
        GoneError: The client went away.
    """
    try:
        return await request.body()
    except ClientDisconnect as error:
        raise problems.GoneError from error


def split(content_type: str, body: bytes, most: int) -> list[Part]:
    """The images of a body: its parts if it is multipart/form-data, else itself.

    Args:
        content_type: The request's header.
        body: The whole body.
        most: Most parts.

    Raises:
        ProblemError: 400, the body is malformed or empty; 413, it has too many parts; 415, it is no image.
    """
    kind, options = parse_options_header(content_type)
    if kind == b"multipart/form-data":
        parts = _split_form(options.get(b"boundary", b""), body, most)
    elif kind in _UNNAMED or kind.startswith(b"image/"):
        parts = [Part("", body)]
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


def _split_form(boundary: bytes, body: bytes, most: int) -> list[Part]:
    if not boundary:
        raise problems.bad_request("Content-Type must name the boundary of multipart/form-data, it does not.")
    form = _Form(body, most)
    try:
        parser = python_multipart.MultipartParser(boundary, form.callbacks())  # type: ignore[arg-type]
        parser.write(body)
        parser.finalize()
    except FormParserError as error:
        raise problems.bad_request(f"The body must be multipart/form-data, it is not: {error}.") from error
    if not form.is_whole:
        raise problems.bad_request("The body must be multipart/form-data, it is cut off.")
    return form.parts


class _Form:
    """Collects the parts of a form; each is one piece of the body."""

    def __init__(self, body: bytes, most: int) -> None:
        self.parts: list[Part] = []
        self.is_whole = False
        self._body, self._most = body, most
        self._header, self._value = bytearray(), bytearray()
        self._headers: dict[bytes, bytes] = {}
        self._chunks: list[bytes] = []

    def callbacks(self) -> dict[str, object]:
        return {
            "on_part_begin": self._begin,
            "on_part_data": lambda data, start, end: self._chunks.append(data[start:end]),
            "on_part_end": self._end,
            "on_header_field": lambda data, start, end: self._header.extend(data[start:end]),
            "on_header_value": lambda data, start, end: self._value.extend(data[start:end]),
            "on_header_end": self._end_header,
            "on_end": self._finish,
        }

    def _begin(self) -> None:
        if len(self.parts) >= self._most:
            raise problems.too_large(f"The body has more than {self._most} parts.")
        self._headers, self._chunks = {}, []

    def _end_header(self) -> None:
        self._headers[bytes(self._header).lower()] = bytes(self._value)
        self._header.clear()
        self._value.clear()

    def _end(self) -> None:
        _, options = parse_options_header(self._headers.get(b"content-disposition", b""))
        name = options.get(b"filename") or options.get(b"name") or str(len(self.parts)).encode()
        self.parts.append(Part(name.decode(errors="replace"), b"".join(self._chunks)))

    def _finish(self) -> None:
        self.is_whole = True


def check_sizes(parts: Sequence[Part], most: int) -> int:
    """Read the sizes that images state, before any is decoded.

    Args:
        parts: The images.
        most: Most pixels of one.

    Returns:
        Bytes that they take together when decoded.

    Raises:
        ProblemError: 413, an image is larger.
        SourceError: Not an image.
    """
    total = 0
    for part in parts:
        with border(SourceError, f"image must be decodable, {part.title} is not"):
            size_hw = stated_size_hw(part.data)
        if size_hw is None:
            decode_image(part.data[:64], part.title)  # says what is wrong
            raise problems.ProblemError(422, "undecodable", f"image must be decodable, {part.title} is not.")
        pixels = size_hw[0] * size_hw[1]
        if pixels > most:
            raise problems.too_large(f"{part.title} has {size_hw[1]}×{size_hw[0]} pixels, the limit is {most:,}.")
        total += 3 * pixels
    return total


async def decoders(service: Service, parts: Sequence[Part], share: Share) -> list[Callable[[], Image]]:
    """Functions that decode images, for `Dispatcher.predict_all`; each image has memory before it is decoded.

    Raises:
        ProblemError: 413, an image is too large; 429, the memory is taken. For one image, its function raises them.
        SourceError: Not an image, as above.
    """
    if len(parts) == 1:
        return [partial(_decode, parts[0], service.settings.pixels, share)]
    share.take(await service.in_thread(check_sizes, parts, service.settings.pixels))
    return [partial(decode_image, part.data, part.title) for part in parts]


def _decode(part: Part, most_pixels: int, share: Share) -> Image:
    share.take(check_sizes([part], most_pixels))
    return decode_image(part.data, part.title)
