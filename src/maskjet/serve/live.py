"""The WebSocket /v1/stream: frames in, results out in order.

At most `_DEPTH` frames of a socket are in progress, and one more waits. A newer frame replaces the one that waits, so a
client that sends faster than it is answered gets answers to fresh frames.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np
from fastapi import APIRouter, WebSocket, WebSocketDisconnect, WebSocketException

from maskjet.errors import MaskjetError
from maskjet.serve import bodies, problems, v1
from maskjet.serve.queries import Query, parse_query
from maskjet.serve.service import Service
from maskjet.serve.subscribers import offer
from maskjet.tracking import Tracker

router = APIRouter()
DESCRIPTION = """\
**WebSocket `/v1/stream?model=&threshold=&classes=&max_detections=&masks=&track=`**: each binary message is a frame, an
image file; the answers are JSON texts, in order. docs/serving.md has their fields, subprotocols and closing codes.
"""
_DEPTH = 2  # as `dispatcher.PERMITS`
_BURST_S = 2.0  # for which the rate of frames is measured: so many may come at once, as after a network stall
_SUBPROTOCOL = "maskjet"
_SOURCE = "stream"  # label `source` in the metrics


@router.websocket("/v1/stream")
async def stream(websocket: WebSocket) -> None:
    """Answer the frames of one client."""
    service: Service = websocket.app.state.service
    offered = websocket.scope.get("subprotocols", ())
    await websocket.accept(_SUBPROTOCOL if _SUBPROTOCOL in offered else None)
    try:
        await _run(websocket, service)
    except WebSocketException as error:
        await _close(websocket, error)
    except WebSocketDisconnect:
        pass
    except Exception as error:
        await _close(websocket, WebSocketException(1011, problems.to_problem(error).detail))


async def _close(websocket: WebSocket, error: WebSocketException) -> None:
    reason = error.reason.encode()[:120].decode(errors="ignore")  # a close frame holds 123 bytes
    with suppress(WebSocketDisconnect, RuntimeError):  # it is closed already
        await websocket.close(error.code, reason)


async def _run(websocket: WebSocket, service: Service) -> None:
    limit, task = service.settings.streams, asyncio.current_task()
    if len(service.streams) >= limit:
        raise WebSocketException(1013, f"The service has {limit} WebSockets already; try again later.")
    try:
        query = parse_query(websocket.scope["query_string"], service, is_stream=True)
    except (problems.ProblemError, MaskjetError) as error:
        problem = problems.to_problem(error)
        raise WebSocketException(1013 if problem.status == 503 else 1008, problem.detail) from error
    assert task is not None
    service.streams.add(task)
    service.metrics.streams.inc()
    try:
        await _FrameStream(websocket, service, query).run()
    finally:
        service.streams.discard(task)
        service.metrics.streams.dec()


class _FrameStream:
    """The frames and answers of one WebSocket."""

    def __init__(self, websocket: WebSocket, service: Service, query: Query) -> None:
        self._websocket, self._service, self._query = websocket, service, query
        self._tracker: Tracker | None = None
        self._options = query.options
        if query.is_tracked:
            self._options = replace(query.options, weak=True)
            threshold = query.options.arguments()["threshold"]
            self._tracker = query.dispatcher.model.tracker(threshold, query.options.classes)
        self._dropped = 0
        self._newest: asyncio.Queue[tuple[int, bytes]] = asyncio.Queue(1)
        self._in_progress: set[asyncio.Task[None]] = set()
        self._failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def run(self) -> None:
        """Answer until the client leaves or the service ends; raises WebSocketException to close the socket."""
        receiving = asyncio.create_task(self._receive())
        answering = asyncio.create_task(self._answer_all())
        ending = asyncio.create_task(self._service.ending.wait())
        ends: Sequence[asyncio.Future[Any]] = (receiving, answering, ending, self._failed)
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            for each in (self._failed, receiving, answering):
                if each.done():
                    each.result()
                    return
            answering.cancel()
            if self._in_progress:
                await asyncio.wait((receiving, asyncio.gather(*self._in_progress)), return_when=asyncio.FIRST_COMPLETED)
            if self._service.failure is not None:
                raise WebSocketException(1011, self._service.failure)
            raise WebSocketException(1001, "The service is shutting down.")
        finally:
            for each in (*ends, *self._in_progress):
                each.cancel()
            await asyncio.gather(*ends, *self._in_progress, return_exceptions=True)

    async def _receive(self) -> None:
        """Receive frames and keep the newest; returns when the client disconnects."""
        loop, settings = asyncio.get_running_loop(), self._service.settings
        arrivals = deque[float](maxlen=round(settings.frame_rate * _BURST_S))
        index = 0
        while True:
            try:
                async with asyncio.timeout(settings.idle_s):
                    message = await self._websocket.receive()
            except TimeoutError:
                raise WebSocketException(1008, f"No frame came for {settings.idle_s:g} s.") from None
            if message["type"] == "websocket.disconnect":
                return
            data = message.get("bytes")
            if data is None:
                raise WebSocketException(1003, "A frame must be a binary message, a text came.")
            if len(arrivals) == arrivals.maxlen and loop.time() - arrivals[0] < _BURST_S:
                raise WebSocketException(1008, f"At most {settings.frame_rate} frames may come a second, more came.")
            arrivals.append(loop.time())
            if self._newest.full():
                self._dropped += 1
                self._service.metrics.dropped.labels(_SOURCE).inc()
            offer(self._newest, (index, data))
            index += 1

    async def _answer_all(self) -> None:
        """Start on the newest frame whenever fewer than `_DEPTH` are in progress."""
        room = asyncio.Semaphore(_DEPTH)
        before: asyncio.Task[None] | None = None
        while True:
            await room.acquire()
            index, data = await self._newest.get()
            before = asyncio.create_task(self._answer(index, data, before))
            self._in_progress.add(before)
            before.add_done_callback(self._in_progress.discard)
            before.add_done_callback(lambda _: room.release())

    async def _answer(self, index: int, data: bytes, before: asyncio.Task[None] | None) -> None:
        """Detect on one frame, and answer after the frame before it."""
        problem = None
        try:
            answer = f'"result": {await self._detect(data, before)}'
        except Exception as error:
            problem = problems.to_problem(error)
            answer = f'"problem": {json.dumps(problem.as_dict())}'
        if before is not None:
            await asyncio.wait((before,))
        with suppress(WebSocketDisconnect, RuntimeError):  # it is closed: `_receive` ends, too
            await self._websocket.send_text(f'{{"frame": {index}, "dropped": {self._dropped}, {answer}}}')
        if self._service.failure is not None and problem is not None and not self._failed.done():
            self._failed.set_exception(WebSocketException(1011, problem.detail))

    async def _detect(self, data: bytes, before: asyncio.Task[None] | None) -> str:
        """The result of one frame, as JSON; a tracked one waits for the frame before it."""
        service, query, came_s = self._service, self._query, asyncio.get_running_loop().time()
        deadline = came_s + service.settings.deadline_s
        with service.memory.reserve() as reservation:
            reservation.take(len(data))
            images = bodies.decoders(service, [bodies.EncodedImage(data, "the frame")], reservation)
            (answer,) = await query.dispatcher.predict_all(
                images, self._options, deadline=deadline, release=reservation.release
            )
            service.metrics.frames.labels(_SOURCE).inc()
            found = answer.detections
            if self._tracker is not None:
                if before is not None:
                    await asyncio.wait((before,))
                tracked = await service.in_thread(self._tracker.update, found, came_s)
                is_reported = tracked.confidence > np.float32(self._tracker.threshold)
                found = tracked[is_reported][: query.options.max_detections]
            return (await v1.to_json(service, found, query)).decode()
