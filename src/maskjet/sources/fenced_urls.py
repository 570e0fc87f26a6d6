"""URLs of people who may not reach every host: FFmpeg gets an address that was checked, and follows no redirects.

FFmpeg looks names up by itself, and reads odd URLs in another way than Python does. So it gets URLs with the address in
place of the name.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from maskjet.errors import SourceError, translate_errors

Resolve = Callable[[str, int], list[str]]
"""Gives the addresses of a host to connect to at a port; raises SourceError if it must not be reached."""
_PORTS = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443}
_PROTOCOLS = {"http": "http,tcp", "https": "https,tls,tcp"}


def by_address(url: str, resolve: Resolve) -> tuple[str, dict[str, str]]:
    """A URL of rtsp, rtsps, http or https by its host's address, and FFmpeg's options to open it and nothing else.

    Raises:
        SourceError: The host must not be reached, or the URL is wrong or of another scheme.
    """
    with translate_errors(SourceError, "source must be a URL of http, https, rtsp or rtsps, it is not"):
        parts = urlsplit(url)
        port = parts.port or _PORTS[parts.scheme]
        address = resolve(parts.hostname or "", port)[0]
    user, at, host = parts.netloc.rpartition("@")
    located = parts._replace(netloc=f"{user}{at}{f'[{address}]' if ':' in address else address}:{port}").geturl()
    if parts.scheme not in _PROTOCOLS:  # without "rtsp", FFmpeg follows no redirect
        return located, {"protocol_whitelist": "tcp,tls"}
    # An empty proxy keeps FFmpeg from that of the environment, which would be asked to reach the address.
    options = {"headers": f"Host: {host}\r\n", "max_redirects": "0", "http_proxy": ""}
    return located, {"protocol_whitelist": _PROTOCOLS[parts.scheme], **options}
