"""/docs: the OpenAPI document as an HTML page that loads nothing from other sites."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

router = APIRouter()
_STYLE = (
    ":root{color-scheme:light dark}body{font:1rem/1.5 system-ui,sans-serif;max-width:50rem;margin:2rem auto;"
    "padding:0 1rem}h2{font-size:1.1rem;border-top:1px solid;padding-top:1rem}code{overflow-wrap:anywhere}"
    "dt{float:left;clear:left;min-width:9rem}dd{margin-left:9.5rem}"
)
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; frame-ancestors 'none'"


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """The page."""
    document = request.app.openapi()
    return HTMLResponse("".join(_page(document)), headers={"Content-Security-Policy": _POLICY})


def _page(document: dict[str, Any]) -> Iterator[str]:
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    yield f'<meta name="viewport" content="width=device-width"><style>{_STYLE}</style><h1>{title}</h1>'
    yield f"<p>{escape(document['info'].get('description', ''))}</p>"
    yield '<p>For programs: <a href="openapi.json">openapi.json</a>.</p>'
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield from _operation(f"{method.upper()} {path}", operation)


def _operation(name: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{escape(name)}</code></h2><p>{escape(operation.get('description', ''))}</p>"
    parameters = {each["name"]: each.get("description", "") for each in operation.get("parameters", ())}
    body = operation.get("requestBody")
    if body is not None:
        parameters["body"] = f"{body.get('description', '')} ({', '.join(body['content'])})"
    answers = {status: each["description"] for status, each in operation["responses"].items()}
    for heading, rows in (("Takes", parameters), ("Answers", answers)):
        if rows:
            yield f"<h3>{heading}</h3><dl>"
            yield from (f"<dt><code>{escape(key)}</code><dd>{escape(text)}" for key, text in rows.items())
            yield "</dl>"
