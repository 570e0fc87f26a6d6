"""The service's pages: the package's static files, served at `/` and `/page/`, and the OpenAPI document at `/docs`.

The latter tries requests out. Neither loads anything from other sites.
"""

from __future__ import annotations

import mimetypes
import re

import jinja2
from fastapi import APIRouter, Request, Response
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse
from starlette.staticfiles import StaticFiles

router = APIRouter(include_in_schema=False)
mimetypes.add_type("image/webp", ".webp")  # known to Python from 3.13 on

# Scripts and styles from this server alone, none inline; no HTML from strings (trusted types). The user's pictures and
# videos are blobs. connect-src 'self' includes this server's WebSocket.
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; media-src blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "Cache-Control": "no-cache",  # revalidated by ETag, so that a new version shows at once
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(self), microphone=(), geolocation=()",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of all pages."""


_environment = jinja2.Environment(autoescape=True, trim_blocks=True, loader=jinja2.PackageLoader("maskjet.serve", ""))
_files = StaticFiles(packages=[("maskjet.serve", "page")], follow_symlink=True)


@router.api_route("/", methods=["GET", "HEAD"])
@router.api_route("/page/{name}", methods=["GET", "HEAD"])
async def get_file(request: Request) -> Response:
    """A file of the page, without a token: the page itself asks for one.

    Its links are relative, so a proxy may mount it below a prefix that ends in a slash.
    """
    response = await _files.get_response(request.path_params.get("name", "index.html"), request.scope)
    response.headers.update(HEADERS)
    return response


@router.get("/docs")
async def docs(request: Request) -> HTMLResponse:
    """The OpenAPI document as HTML."""
    template = _environment.get_template("docs.html")
    return HTMLResponse(template.render(document=request.app.openapi()), headers=HEADERS)


def _to_html(text: str) -> Markup:
    """Convert the Markdown of descriptions to HTML: paragraphs, code and emphasis."""
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html).replace("\n\n", "<p>"))


_environment.filters["html"] = _to_html
