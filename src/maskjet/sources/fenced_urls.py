"""Open URLs of untrusted users safely: FFmpeg gets a checked IP address, and follows no redirects.

FFmpeg looks names up by itself, and reads odd URLs in another way than Python does. So it gets URLs with the address in
place of the name.
"""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from maskjet.errors import SourceError, translate_errors

Resolve = Callable[[str, int], list[str]]
"""Resolves (host, port) to allowed IP addresses; raises SourceError if the host is forbidden."""
_PORTS = {"rtsp": 554, "rtsps": 322, "http": 80, "https": 443}
_PROTOCOLS = {"http": "http,tcp", "https": "https,tls,tcp"}


def by_address(url: str, resolve: Resolve) -> tuple[str, dict[str, str]]:
    """Replace the host in a URL by its checked address; also returns FFmpeg options that allow nothing else.

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
    # An empty proxy overrides http_proxy in the environment, so that FFmpeg connects directly.
    options = {"headers": f"Host: {host}\r\n", "max_redirects": "0", "http_proxy": ""}
    return located, {"protocol_whitelist": _PROTOCOLS[parts.scheme], **options}
