"""The service's page: the package's static files, served at `/` and `/page/`."""

from __future__ import annotations

import hashlib
from importlib.resources import files

from fastapi import APIRouter, HTTPException, Request, Response

_TYPES = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
    ".webp": "image/webp",
}

# Scripts and styles from this server alone, none inline; no HTML from strings (trusted types). The user's pictures and
# videos are blobs. connect-src 'self' includes this server's WebSocket.
_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "media-src blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)

_HEADERS = {
    "Cache-Control": "no-cache",  # revalidated by ETag, so that a new version shows at once
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}


def page_router() -> APIRouter:
    """Make the router of the page.

    It answers GET and HEAD of `/` and `/page/<file>` from memory, without a token: the page itself asks for one. The
    page's links are relative, so a proxy may mount it below a prefix that ends in a slash.
    """
    folder = files("maskjet.serve") / "page"
    contents = {one.name: one.read_bytes() for one in folder.iterdir() if _suffix(one.name) in _TYPES}
    router = APIRouter(include_in_schema=False)

    @router.api_route("/", methods=["GET", "HEAD"])
    @router.api_route("/page/{name}", methods=["GET", "HEAD"])
    def get_file(request: Request) -> Response:
        """The file, or 304 if the browser has this version."""
        name = request.path_params.get("name", "index.html")
        if name not in contents:
            raise HTTPException(404, f"The page has no file {name!r}.")
        etag = f'"{hashlib.sha256(contents[name]).hexdigest()[:32]}"'
        headers = {**_HEADERS, "ETag": etag}
        known = {one.strip().removeprefix("W/") for one in request.headers.get("If-None-Match", "").split(",")}
        if known & {etag, "*"}:
            return Response(status_code=304, headers=headers)
        return Response(contents[name], media_type=_TYPES[_suffix(name)], headers=headers)

    return router


def _suffix(name: str) -> str:
    return name[name.rfind(".") :]
