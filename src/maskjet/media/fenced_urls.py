"""URLs of people who may not reach every host: each connection goes to an address that was checked.

FFmpeg looks names up by itself, reads odd URLs in another way than Python does, and follows redirects. So it gets the
content of HTTP URLs from here, and RTSP URLs with the address in place of the name.
"""

from __future__ import annotations

import errno
import re
import socket
import ssl
import threading
import time
import urllib.request as web
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPConnection, HTTPMessage, HTTPResponse, HTTPSConnection
from io import BytesIO
from typing import IO, Any
from urllib.error import HTTPError, URLError
from urllib.parse import unquote, urlsplit

import av.error

from maskjet.errors import SourceError, first_line, translate_errors

Resolve = Callable[[str, int], list[str]]
"""Gives the addresses of a host to connect to at a port; raises SourceError if it must not be reached."""

_TIMEOUT_S = 10.0  # within which a reply begins, redirects included, and then _LEAST_BYTES come each time
_LEAST_BYTES = 1024
_RTSP_PORTS = {"rtsp": 554, "rtsps": 322}
_RANGE = re.compile(r"bytes (\d{1,18})-\d{1,18}/(\d{1,18})")


class Fence:
    """Opens what FFmpeg asks for, over HTTP(S) and from checked addresses alone, also where redirects lead."""

    def __init__(self, resolve: Resolve) -> None:
        self._resolve, self._files = resolve, list[HttpFile]()

    def open(self, url: str, *_: object) -> HttpFile:
        """Open a URL of http or https for reading; errors are those of `HttpFile`."""
        self._files.append(HttpFile(url, self._resolve))
        return self._files[-1]

    def by_address(self, url: str) -> str:
        """A URL of rtsp or rtsps with its host's address in place of the name.

        Raises:
            SourceError: The host must not be reached, or the URL is wrong or of another scheme.
        """
        with translate_errors(SourceError, "source must be a URL of http, https, rtsp or rtsps, it is not"):
            parts = urlsplit(url)
            port = parts.port or _RTSP_PORTS[parts.scheme]
            address = self._resolve(parts.hostname or "", port)[0]
        user, at, _ = parts.netloc.rpartition("@")
        return parts._replace(netloc=f"{user}{at}{f'[{address}]' if ':' in address else address}:{port}").geturl()

    def close(self) -> None:
        """End the connections, which FFmpeg does not."""
        for file in self._files:
            file.close()
        self._files.clear()


class HttpFile:
    """The content of an HTTP(S) URL, perhaps with user and password, as a file, after at most ten redirects.

    As in FFmpeg certificates are not verified: cameras sign their own.

    Raises:
        SourceError: A host must not be reached.
        OSError: The URL can't be read, or is of another scheme.
    """

    def __init__(self, url: str, resolve: Resolve) -> None:
        parts = urlsplit(url)
        user, _, host = parts.netloc.rpartition("@")
        self._url, self._resolve = parts._replace(netloc=host).geturl(), resolve
        handlers: list[web.BaseHandler] = [_ConnectionHandler(self._connect), _RedirectHandler()]
        handlers += [web.HTTPErrorProcessor(), web.HTTPDefaultErrorHandler(), web.UnknownHandler()]
        if user:
            passwords = web.HTTPPasswordMgrWithDefaultRealm()
            passwords.add_password(None, self._url, *map(unquote, user.partition(":")[::2]))
            handlers += [web.HTTPDigestAuthHandler(passwords), web.HTTPBasicAuthHandler(passwords)]
        self._opener = web.OpenerDirector()
        for handler in handlers:
            self._opener.add_handler(handler)
        self._position, self._size = 0, -1  # the latter if the server gives no parts
        self._is_broken = False
        self._connection: socket.socket | None = None
        self._reply = self._request()

    def _request(self) -> HTTPResponse:
        """Ask for the content from the position on."""
        request = web.Request(self._url, headers={"Range": f"bytes={self._position}-", "User-Agent": "maskjet"})
        self._deadline, self._waited_s, self._counted = time.monotonic() + _TIMEOUT_S, 0.0, self._position
        watch = threading.Timer(_TIMEOUT_S, self._hang_up)  # a server may send its headers byte by byte
        watch.start()
        try:
            reply: HTTPResponse = self._opener.open(request, timeout=_TIMEOUT_S)
        except HTTPError as error:
            error.close()
            raise OSError(f"the server answers {error.code}") from None
        except URLError as error:
            raise OSError(str(error.reason)) from None
        finally:
            watch.cancel()
            self._let_go()
        part = _RANGE.match(reply.headers.get("Content-Range", "")) if reply.status == 206 else None
        if self._position != (int(part[1]) if part else 0):
            reply.close()
            raise OSError("the server gives another part than was asked for")
        self._size = int(part[2]) if part else -1
        return reply

    def _connect(self, host: str, port: int) -> socket.socket:
        """A connection to one of a host's addresses."""
        why: OSError = TimeoutError("no reply came")
        for address in self._resolve(host, port):
            left_s = self._deadline - time.monotonic()
            if left_s <= 0:
                break
            try:
                connection = socket.create_connection((address, port), left_s)
            except OSError as error:
                why = error
            else:
                connection.settimeout(_TIMEOUT_S)
                self._let_go()
                self._connection = connection.dup()  # as TLS takes the other one away
                return connection
        raise why

    def _hang_up(self) -> None:
        if self._connection is not None:
            with suppress(OSError):  # it has ended
                self._connection.shutdown(socket.SHUT_RDWR)

    def _let_go(self) -> None:
        if self._connection is not None:
            self._connection.close()

    def seekable(self) -> bool:
        """Whether any part can be read."""
        return self._size >= 0

    def tell(self) -> int:
        """Position of the next byte."""
        return self._position

    def seek(self, offset: int, whence: int = 0) -> int:
        """Go to a byte, as in any file."""
        position = offset + (0, self._position, self._size)[whence]
        if position != self._position:
            self._position = position
            self._reply.close()
        return position

    def read(self, count: int) -> bytes:
        """The bytes that have come, at least one and at most `count`; none at the end, and after an error.

        Raises:
            SourceError: The host must not be reached any more.
            FFmpegError: The connection broke off, or is silent.
        """
        if self._is_broken or 0 <= self._size <= self._position:
            return b""
        try:
            return self._read(count)
        except SourceError:
            self._is_broken = True
            raise
        except Exception as error:
            self._is_broken = True  # PyAV prints a second error
            raise av.error.ConnectionResetError(errno.ECONNRESET, first_line(error)) from error

    def _read(self, count: int) -> bytes:
        if self._reply.closed:
            self._reply = self._request()
        since = time.monotonic()
        data = self._reply.read1(count)
        self._waited_s += time.monotonic() - since
        if not data and self._reply.length:
            raise OSError("the connection broke off")
        self._position += len(data)
        if self._position - self._counted >= _LEAST_BYTES:
            self._waited_s, self._counted = 0.0, self._position
        elif self._waited_s > _TIMEOUT_S:
            raise TimeoutError("too little came")
        return data

    def close(self) -> None:
        """End the connection; may be called twice."""
        self._reply.close()


class _ConnectionHandler(web.AbstractHTTPHandler):
    """Opens URLs over given connections."""

    def __init__(self, connect: Callable[[str, int], socket.socket]) -> None:
        super().__init__()

        class Plain(HTTPConnection):
            def connect(self) -> None:
                self.sock = connect(self.host, self.port)

        class Secure(HTTPSConnection):
            def connect(self) -> None:
                context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
                context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
                self.sock = context.wrap_socket(connect(self.host, self.port), server_hostname=self.host)

        self._kinds: dict[str, Any] = {"http": Plain, "https": Secure}

    def http_open(self, request: web.Request) -> Any:
        return self.do_open(self._kinds[request.type], request)

    https_open = http_open
    http_request = https_request = web.AbstractHTTPHandler.do_request_


class _RedirectHandler(web.HTTPRedirectHandler):
    """Follows redirects without reading their content, which may have no end."""

    def http_error_302(
        self, req: web.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage
    ) -> HTTPResponse | None:
        fp.close()
        followed: HTTPResponse | None = super().http_error_302(req, BytesIO(), code, msg, headers)
        return followed

    http_error_301 = http_error_303 = http_error_307 = http_error_308 = http_error_302
