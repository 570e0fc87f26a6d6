"""A small stand-in for the service, for tests of its page alone: the same routes, results that a function finds."""

import asyncio
import base64
import json
import threading
from contextlib import contextmanager

import cv2
import numpy as np
import uvicorn
from fastapi import FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import JSONResponse, StreamingResponse

from maskjet.serve.page import page_router


class Stub:
    """The service's routes; `find` gets RGB images, and attributes switch troubles on."""

    def __init__(self, find, class_names):
        self.find, self.class_names = find, class_names
        self.token = None
        self.problem = None  # (status, detail) that /v1/predict answers
        self.sources = None
        self.streams = []  # the query of each WebSocket
        self.is_breaking = False  # whether a WebSocket breaks off after the third frame
        self.app = self._make_app()

    def _make_app(self):
        app = FastAPI()
        app.include_router(page_router())
        app.middleware("http")(self._guard)
        app.get("/v1/models")(self._models)
        app.post("/v1/predict")(self._predict)
        app.get("/v1/sources")(self._sources)
        app.get("/v1/sources/door/events")(self._events)
        app.get("/v1/sources/door/preview.mjpeg")(self._preview)
        app.websocket("/v1/stream")(self._stream)
        return app

    async def _guard(self, request: Request, call_next):
        is_open = not request.url.path.startswith("/v1")
        if is_open or self.token is None or request.headers.get("Authorization") == f"Bearer {self.token}":
            return await call_next(request)
        return _problem(401, "This service needs its token.")

    async def _models(self):
        classes = {str(key): name for key, name in self.class_names.items()}
        one = {"classes": classes, "threshold": 0.5, "has_masks": True, "input_size": 312}
        return {"models": [{"name": "demo", **one}, {"name": "other", **one, "threshold": 0.3}]}

    async def _predict(self, request: Request):
        body = await request.body()
        if self.problem:
            return _problem(*self.problem)
        result = await asyncio.to_thread(self._answer, body)
        return JSONResponse(result, headers={"Server-Timing": "decode;dur=1.5, predict;dur=30"})

    def _answer(self, body):
        image = cv2.imdecode(np.frombuffer(body, np.uint8), cv2.IMREAD_COLOR)
        return self.find(cv2.cvtColor(image, cv2.COLOR_BGR2RGB)).as_dict()

    async def _sources(self):
        return _problem(404, "Not found.") if self.sources is None else {"sources": self.sources}

    async def _events(self):
        async def events():
            for frame in range(10_000):
                result = await asyncio.to_thread(self._answer, self.still)
                yield f"data: {json.dumps({'frame': frame, 'time_s': frame / 10, 'result': result})}\n\n"
                await asyncio.sleep(0.05)

        return StreamingResponse(events(), media_type="text/event-stream")

    async def _preview(self):
        async def parts():
            for _ in range(10_000):
                yield b"--frame\r\nContent-Type: image/jpeg\r\n\r\n" + self.still + b"\r\n"
                await asyncio.sleep(0.05)

        return StreamingResponse(parts(), media_type="multipart/x-mixed-replace; boundary=frame")

    async def _stream(self, socket: WebSocket):
        protocols = socket.scope["subprotocols"]
        if self.token is not None:
            bearer = "bearer." + base64.urlsafe_b64encode(self.token.encode()).decode().rstrip("=")
            if bearer not in protocols:
                await socket.close(1008)
                return
        await socket.accept("maskjet")
        self.streams.append(dict(socket.query_params))
        newest, came = [], asyncio.Event()

        async def receive():
            index = 0
            while True:
                body = await socket.receive_bytes()
                newest.append((index, body))
                index += 1
                came.set()

        receiving = asyncio.create_task(receive())
        dropped = answered = 0
        try:
            while not receiving.done():
                waiting = asyncio.create_task(came.wait())
                await asyncio.wait([receiving, waiting], return_when=asyncio.FIRST_COMPLETED)
                waiting.cancel()
                if not newest:
                    continue
                dropped += len(newest) - 1
                index, body = newest[-1]
                newest.clear()
                came.clear()
                result = await asyncio.to_thread(self._answer, body)
                await socket.send_json({"frame": index, "dropped": dropped, "result": result})
                answered += 1
                if self.is_breaking and answered == 3:
                    await socket.close(1011, "The device failed.")
                    break
        except WebSocketDisconnect:
            pass
        finally:
            receiving.cancel()
            await asyncio.gather(receiving, return_exceptions=True)


def _problem(status, detail):
    content = {"type": "about:blank", "title": "Error", "status": status, "detail": detail}
    return JSONResponse(content, status, media_type="application/problem+json")


@contextmanager
def running(app):
    """Serve an app on a free port of this machine; gives its address."""
    config = uvicorn.Config(app, port=0, log_level="error", ws="websockets-sansio", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive()
        thread.join(0.02)
    yield f"http://localhost:{server.servers[0].sockets[0].getsockname()[1]}/"
    server.should_exit = True
    thread.join(10)
