"""Source URLs: validation of those added by clients, and display without passwords."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from urllib.parse import unquote, urlsplit

from maskjet.host.files import path_of_url
from maskjet.serve import problems
from maskjet.sources.containers import stream_named
from maskjet.sources.folders import match_glob, mode_of_source

SCHEMES = ("rtsp", "rtsps", "http", "https")
"""Schemes of URLs that clients may add."""


def split_name(text: str) -> tuple[str | None, str]:
    """Split NAME=SOURCE; the name is None if there is none."""
    name, separator, location = text.partition("=")
    return (name, location) if separator and location and re.fullmatch(r"[\w -]+", name) else (None, text)


def check_files(texts: Iterable[str]) -> None:
    """Raise SourceError for a source of the settings that is a file and does not exist; others may be there later."""
    for text in texts:
        _, location = split_name(text)
        if stream_named(location) is None and mode_of_source(path := path_of_url(location)) is None:
            match_glob(path)


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
    """Check a client's URL, which is no path or device, and lower its scheme; raises ProblemError 400 for others."""
    scheme, _, rest = text.partition("://")
    url = f"{scheme.lower()}://{rest}"
    try:
        parts = urlsplit(url)
        is_whole = parts.scheme in SCHEMES and bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_whole = False
    if not is_whole or not text.isascii() or not text.isprintable() or " " in text:
        raise problems.bad_request(
            f"url must be a URL of {', '.join(SCHEMES)} that names a host, in printable ASCII characters; it is not."
        )
    return url
