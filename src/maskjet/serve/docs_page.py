"""/docs: the OpenAPI document as an HTML page that tries requests out, and loads nothing from other sites."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import HTMLResponse

from maskjet.serve.page import HEADERS

router = APIRouter()


@router.get("/docs", include_in_schema=False)
async def docs(request: Request) -> HTMLResponse:
    """The page."""
    document = request.app.openapi()
    return HTMLResponse("".join(_page(document)), headers=HEADERS)


def _page(document: dict[str, Any]) -> Iterator[str]:
    title = escape(f"{document['info']['title']} {document['info']['version']}")
    yield f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
    yield '<meta name="viewport" content="width=device-width"><link rel=stylesheet href=page/docs.css>'
    yield f"<script type=module src=page/docs.js></script><h1>{title}</h1>"
    yield f"<p>{_to_html(document['info'].get('description', ''))}</p>"
    yield '<p>For programs: <a href="openapi.json">openapi.json</a>.</p>'
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield from _operation(method.upper(), path, operation)


def _operation(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    yield f"<h2><code>{method} {escape(path)}</code></h2><p>{_to_html(operation.get('description', ''))}</p>"
    parameters = {each["name"]: each.get("description", "") for each in operation.get("parameters", ())}
    body = operation.get("requestBody")
    if body is not None:
        parameters["body"] = f"{body.get('description', '')} ({', '.join(body['content'])})"
    answers = {status: each["description"] for status, each in operation["responses"].items()}
    for heading, rows in (("Takes", parameters), ("Answers", answers)):
        if rows:
            yield f"<h3>{heading}</h3><dl>"
            yield from (f"<dt><code>{escape(key)}</code><dd>{_to_html(text)}" for key, text in rows.items())
            yield "</dl>"
    yield from _form(method, path, operation)


def _form(method: str, path: str, operation: dict[str, Any]) -> Iterator[str]:
    """A form that sends such a request; `page/docs.js` does."""
    yield f'<details><summary>Try it</summary><form data-method="{method}" data-path="{escape(path)}">'
    for each in operation.get("parameters", ()):
        name, needed = escape(each["name"]), " required" if each.get("required") else ""
        yield f'<label>{name} <input name="{name}" data-in="{each["in"]}"{needed}></label>'
    if (body := operation.get("requestBody")) is not None:
        is_json = next(iter(body["content"])) == "application/json"
        yield f"<label>body {'<textarea name=body></textarea>' if is_json else '<input type=file name=body>'}</label>"
    kinds = [kind for kind in operation["responses"].get("200", {}).get("content", {}) if "*" not in kind]
    if len(kinds) > 1:
        yield f"<label>Accept <select name=accept>{''.join(f'<option>{kind}' for kind in kinds)}</select></label>"
    yield "<button>Send</button><output></output></form></details>"


def _to_html(text: str) -> str:
    """HTML of the little Markdown that descriptions have: paragraphs, code and emphasis."""
    html = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text))
    return re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", html).replace("\n\n", "<p>")
