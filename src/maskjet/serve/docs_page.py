"""/docs: the OpenAPI document as an HTML page that tries requests out, and loads nothing from other sites."""

from __future__ import annotations

import re

import jinja2
from fastapi import APIRouter, Request
from markupsafe import Markup, escape
from starlette.responses import HTMLResponse

from maskjet.serve.page import HEADERS

router = APIRouter()
_environment = jinja2.Environment(autoescape=True, trim_blocks=True, loader=jinja2.PackageLoader("maskjet.serve", ""))


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """The page."""
    template = _environment.get_template("docs.html")
    return HTMLResponse(template.render(document=request.app.openapi()), headers=HEADERS)


def _to_html(text: str) -> Markup:
    """HTML of the little Markdown that descriptions have: paragraphs, code and emphasis."""
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text)))
    return Markup(re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html).replace("\n\n", "<p>"))


_environment.filters["html"] = _to_html
