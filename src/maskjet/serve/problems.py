"""Errors as HTTP answers: RFC 9457 problem details with the messages of maskjet's exceptions."""

from __future__ import annotations

import json
import logging
import secrets
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from maskjet.errors import DeviceError, InputError, SourceError, UnsupportedError

MEDIA_TYPE = "application/problem+json"
RESPONSES: dict[int | str, dict[str, Any]] = {"default": {"description": "What is wrong.", "content": {MEDIA_TYPE: {}}}}
"""Errors of every route, for OpenAPI. Without it FastAPI documents its own validation error."""
PROTOCOL = "/v2"
"""Path prefix of the Open Inference Protocol."""
_GONE = 499  # nginx's code for disconnected clients
_log = logging.getLogger("maskjet.serve")


class ProblemError(Exception):
    """An error that is answered with problem details.

    Attributes:
        status: HTTP status code.
        name: Short name of the kind of problem; its type is `urn:maskjet:problem:<name>`.
        detail: One sentence for the client.
        headers: Further headers of the answer.
        reference: Number of the log's entry, if there is one.
    """

    def __init__(
        self, status: int, name: str, detail: str, *, headers: Mapping[str, str] | None = None, reference: str = ""
    ) -> None:
        super().__init__(detail)
        self.status, self.name, self.detail = status, name, detail
        self.headers = dict(headers or {})
        self.reference = reference

    def as_dict(self) -> dict[str, Any]:
        """The problem details, as JSON types."""
        members: dict[str, Any] = {
            "type": f"urn:maskjet:problem:{self.name}",
            "title": "Gone Away" if self.status == _GONE else HTTPStatus(self.status).phrase,
            "status": self.status,
            "detail": self.detail,
        }
        if self.reference:
            members["reference"] = self.reference
        return members

    def body(self) -> bytes:
        """The problem details as JSON."""
        return json.dumps(self.as_dict()).encode()

    def response(self, path: str = "") -> Response:
        """HTTP response for a request path; the Open Inference Protocol has its own error format."""
        if path != PROTOCOL and not path.startswith(f"{PROTOCOL}/"):
            return Response(self.body(), self.status, self.headers, MEDIA_TYPE)
        detail = self.detail
        if self.name == "not-found":
            detail = (
                f"path must be one of the Open Inference Protocol, got {path[:200]!r}; of its extensions only "
                "binary tensor data is supported."
            )
        return Response(json.dumps({"error": detail}), self.status, self.headers, "application/json")


class GoneError(Exception):
    """The client disconnected before it was answered."""


def bad_request(detail: str) -> ProblemError:
    """A parameter or header is invalid."""
    return ProblemError(400, "bad-request", detail)


def too_large(detail: str) -> ProblemError:
    """The body, an image or their number is above a limit."""
    return ProblemError(413, "too-large", detail)


def busy(detail: str, *, retry_s: float = 1) -> ProblemError:
    """The queue or the memory is full."""
    return ProblemError(429, "queue-full", detail, headers={"Retry-After": str(max(1, round(retry_s)))})


def too_late(detail: str) -> ProblemError:
    """The deadline passed before the work began."""
    return ProblemError(504, "deadline", detail)


def unavailable(detail: str) -> ProblemError:
    """The service ends or has failed."""
    return ProblemError(503, "unavailable", detail, headers={"Retry-After": "5", "Connection": "close"})


def to_problem(error: BaseException) -> ProblemError:
    """The problem details of an exception; an unexpected one is logged, and only its reference is told.

    The error loses its traceback: frames that hold a request's body and images would live until garbage is collected.
    """
    problem = _describe(error)
    error.__traceback__ = None
    return problem


def _describe(error: BaseException) -> ProblemError:
    if isinstance(error, ProblemError):
        return error
    if isinstance(error, SourceError):
        return ProblemError(422, "undecodable", str(error))
    if isinstance(error, InputError):
        return bad_request(str(error))
    if isinstance(error, DeviceError | UnsupportedError):
        return unavailable(str(error))
    if isinstance(error, HTTPException):
        phrase = HTTPStatus(error.status_code).phrase.lower().replace(" ", "-")
        return ProblemError(error.status_code, phrase, f"{error.detail}.", headers=error.headers)
    reference = secrets.token_hex(6)
    _log.error("request failed, reference %s", reference, exc_info=error)
    return ProblemError(
        500, "internal", f"The service failed; its log has the cause under {reference}.", reference=reference
    )
