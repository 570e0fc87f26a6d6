"""Source URLs: validation of those added by clients, and display without passwords."""

from __future__ import annotations

import ipaddress
import re
import socket
from contextlib import suppress
from urllib.parse import unquote, urlsplit

from maskjet.errors import SourceError
from maskjet.serve import problems

SCHEMES = ("rtsp", "rtsps", "http", "https")
"""Schemes of URLs that clients may add."""
_MOST_CHARACTERS = 2048  # longest URL
_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:]+)(:\d*)?")  # libraries disagree on other forms


def split_name(text: str) -> tuple[str | None, str]:
    """Split NAME=SOURCE; the name is None if there is none."""
    name, separator, location = text.partition("=")
    return (name, location) if separator and location and re.fullmatch(r"[\w -]+", name) else (None, text)


def shown_name(location: str) -> str:
    """A source's display name: a URL without user, password and query; a file without its folders."""
    if "://" not in location:
        return re.split(r"[/\\]", location.rstrip("/\\"))[-1] or location
    scheme, _, rest = location.partition("://")
    return f"{scheme}://{re.split(r'[?#]', rest)[0].rpartition('@')[2]}"


def redact(text: str, location: str) -> str:
    """Remove a source's user, password, query and folders from a message."""
    shown = shown_name(location)
    text = text.replace(repr(location), repr(shown)).replace(location, shown)
    with suppress(ValueError):
        parts = urlsplit(location)
        user = parts.netloc.rpartition("@")[0]
        for secret in (user, parts.password, parts.query):
            if secret and "://" in location:
                text = text.replace(secret, "…").replace(unquote(secret), "…")
    return text


def check_url(text: str) -> str:
    """Check a client's URL; returns it with its scheme in lower case, or raises ProblemError 400."""
    expected = f"url must be a URL of {', '.join(SCHEMES)}"
    if len(text) > _MOST_CHARACTERS or not text.isascii() or not text.isprintable() or " " in text:
        raise problems.bad_request(f"{expected}, of at most {_MOST_CHARACTERS} printable ASCII characters; it is not.")
    scheme, separator, rest = text.partition("://")
    if not separator or scheme.lower() not in SCHEMES:
        raise problems.bad_request(f"{expected}; the given one is of another kind.")
    url = f"{scheme.lower()}://{rest}"
    try:
        parts = urlsplit(url)
        is_whole = bool(parts.hostname) and (parts.port is None or parts.port > 0)
    except ValueError:
        is_whole = False
    if not is_whole or "\\" in url or not _HOST.fullmatch(parts.netloc.rpartition("@")[2]):
        raise problems.bad_request(f"{expected} that names a host; the given one does not.")
    return url


def check_host(url: str) -> None:
    """Refuse a URL whose host `resolve_host` refuses; raises ProblemError 400."""
    parts = urlsplit(url)
    try:
        resolve_host(parts.hostname or "", parts.port or 80)
    except SourceError as error:
        raise problems.bad_request(str(error)) from None


def resolve_host(host: str, port: int) -> list[str]:
    """Resolve a host named by a client, by blocking DNS; raises SourceError if refused or unknown.

    This machine and link-local addresses, where clouds serve credentials, are refused. Private networks are allowed, as
    cameras are there.
    """
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        raise SourceError("url must name a host that is known, it does not.") from None
    for *_, address in found:
        ip = ipaddress.ip_address(str(address[0]).partition("%")[0])
        ip = getattr(ip, "ipv4_mapped", None) or ip
        if ip.is_loopback or ip.is_link_local or ip.is_multicast or ip.is_reserved or int(ip) < 2**24:
            raise SourceError("url must name another machine, it names this one or a reserved address.")
    return [str(address[0]) for *_, address in found]
