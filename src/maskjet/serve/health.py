"""Health probes: live until the device fails, ready while requests are answered at once."""

from __future__ import annotations

from fastapi import APIRouter, Request
from starlette.responses import PlainTextResponse

from maskjet.serve.service import Service

router = APIRouter(tags=["health"])


@router.get("/health/live", response_class=PlainTextResponse)
async def live(request: Request) -> PlainTextResponse:
    """Whether the process works: 503 once the device has failed, so that a supervisor restarts it."""
    service: Service = request.app.state.service
    if service.failure is not None:
        return PlainTextResponse(service.failure, 503)
    return PlainTextResponse("live")


@router.get("/health/ready", response_class=PlainTextResponse)
async def ready(request: Request) -> PlainTextResponse:
    """Whether to send requests: 503 until each model has answered frames, and from SIGTERM on.

    The text says how large batches may be, while larger ones are compiled.
    """
    service: Service = request.app.state.service
    if service.is_ready:
        growing = [each.largest for each in service.dispatchers.values() if each.largest < each.batch]
        return PlainTextResponse(f"ready, with batches of {min(growing)} at most" if growing else "ready")
    reason = "shutting down" if service.is_draining else "warming up"
    return PlainTextResponse(service.failure or reason, 503)
