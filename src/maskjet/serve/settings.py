"""Settings of the service and their defaults."""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass, field, fields, replace
from ipaddress import ip_address
from typing import Annotated

from maskjet.checks import Detect, check_count, parse_detect
from maskjet.errors import InputError
from maskjet.tiling.layout import Tiling, parse_tile


@dataclass(frozen=True)
class Settings:
    """Address, token and limits of the service.

    Field names are the options of `maskjet serve`, which show the annotations as their help.
    """

    host: Annotated[str, "Address to listen on; 0.0.0.0 for all, which needs a token."] = "127.0.0.1"
    port: Annotated[int, "Port to listen on; 0 for a free one."] = 8000
    token: Annotated[
        str | None, "Secret that clients send as Authorization: Bearer; better given by MASKJET_TOKEN."
    ] = field(default=None, repr=False)
    insecure: Annotated[bool, "Listen beyond this machine without a token."] = False
    body_bytes: Annotated[int, "Most bytes of a request's body."] = 2**25
    parts: Annotated[int, "Most images in one request."] = 16
    pixels: Annotated[int, "Most pixels of one image, read from its header."] = 2**26
    memory_bytes: Annotated[int, "Most bytes of all bodies and decoded images at a time."] = 2**30
    queue: Annotated[int, "Most images of a model that wait; more are answered with 429."] = 64
    deadline_s: Annotated[float, "Seconds after which an image that still waits is answered with 504."] = 10.0
    header_s: Annotated[float, "Seconds within which a request's headers must come."] = 5.0
    body_s: Annotated[float, "Seconds within which a request's body must come."] = 20.0
    connections: Annotated[int, "Most connections at a time; more are answered with 503."] = 256
    drain_s: Annotated[float, "Seconds that requests have to end after SIGTERM."] = 15.0
    threads: Annotated[int | None, "Threads that decode, draw and encode. Not given: one per core, 2 to 8."] = None
    batch: Annotated[
        int | None, "Most images in one batch. Not given: 8 on a GPU; 1 on a CPU, where larger ones are no faster."
    ] = None

    tile: Annotated[str | None, "Size of tiles where a request does not choose, as run --tile takes it."] = None
    overlap: Annotated[float, "Least overlap of tiles, 0 to 0.9 of a side."] = 0.2
    full: Annotated[bool, "Whether whole images are looked at, too, beside tiles."] = True
    source: Annotated[
        tuple[str, ...],
        "A video, camera or URL that the service watches; repeated for several. NAME= before it names it.",
    ] = field(default=(), repr=False)
    sources: Annotated[int, "Most sources at a time; 0 for none."] = 8
    allow_sources: Annotated[
        bool,
        "Let clients add and remove sources; needs a token. Whoever may add a source reaches whatever this service "
        "reaches, this machine and its network.",
    ] = False
    detect: Annotated[
        str, "Detect on every N-th frame of sources, 1 to 64, and move masks in between; or realtime, as run --detect."
    ] = "1"
    preview_fps: Annotated[int, "Most pictures a second in a source's preview."] = 15
    label: Annotated[
        str | None, "Text of labels in pictures and previews, as run --label takes it, '{name} {confidence:.0%}'."
    ] = None
    streams: Annotated[int, "Most WebSockets at a time; more are closed with 1013."] = 32
    frame_bytes: Annotated[int, "Most bytes of a WebSocket's frame; larger ones close it with 1009."] = 2**23
    frame_rate: Annotated[int, "Most frames a second that a WebSocket sends; more close it with 1008."] = 240
    idle_s: Annotated[float, "Seconds without a frame after which a WebSocket is closed."] = 300.0
    stall_s: Annotated[float, "Seconds after which a client that does not read its answer is cut off."] = 20.0

    def __post_init__(self) -> None:
        for each in fields(self):
            name, value = each.name, getattr(self, each.name)
            is_optional = name in ("threads", "batch") and value is not None
            if is_optional or (type(each.default) is int and name != "port"):
                check_count(name, value, least=0 if name == "sources" else 1)
            is_seconds = not isinstance(value, bool) and isinstance(value, int | float) and 0 < value < float("inf")
            if name.endswith("_s") and not is_seconds:
                raise InputError(f"{name} must be a number of seconds above 0, got {value!r}.")
        if len(self.source) > self.sources:
            raise InputError(f"source must be given at most {self.sources} times, got {len(self.source)}; see sources.")
        if not 0 <= self.port < 2**16:
            raise InputError(f"port must be 0..65535, got {self.port}.")
        _ = self.tiling, self.detecting  # raise for invalid values
        if self.label is not None:
            from maskjet.drawing.templates import parse_template  # imports OpenCV, which no other setting needs

            parse_template(self.label)
        if self.token is not None and not (self.token and self.token.isascii() and self.token.isprintable()):
            raise InputError("token must be printable ASCII characters, at least one; the given one is not shown here.")

    @property
    def tiling(self) -> Tiling:
        """Tiling of images."""
        return Tiling(parse_tile(self.tile), self.overlap, self.full)

    @property
    def detecting(self) -> Detect:
        """`detect` as `Model.stream` takes it."""
        return parse_detect(self.detect)

    def with_token(self) -> Settings:
        """These settings, with MASKJET_TOKEN of the environment if they have no token."""
        token = os.environ.get("MASKJET_TOKEN")
        return self if self.token is not None or not token else replace(self, token=token)

    def check_exposure(self) -> None:
        """Raise InputError if the service needs a token and has none.

        It does to listen beyond this machine, unless `insecure`, and to let clients add sources.
        """
        if self.token is None and self.allow_sources:
            raise InputError(
                "token must be given with allow_sources, as whoever may add a source reaches whatever this service "
                "reaches: set MASKJET_TOKEN."
            )
        if self.token is None and not self.insecure and not is_loopback(self.host):
            raise InputError(
                f"token must be given to listen on {self.host!r}, which other machines reach: set MASKJET_TOKEN, or "
                "insecure if whoever reaches it may use it."
            )


def is_loopback(host: str) -> bool:
    """Whether an address is reachable from this machine only."""
    with suppress(ValueError):  # a host name
        return ip_address(host.strip("[]")).is_loopback
    return host == "localhost"
