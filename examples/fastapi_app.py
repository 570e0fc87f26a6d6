"""Detect in a route of your own FastAPI application, for whoever has one; else `maskjet serve` does more.

    pip install '.[serve]'
    uvicorn --app-dir examples fastapi_app:app
    curl -F image=@street.jpg 'http://127.0.0.1:8000/find?threshold=0.6'

Each request is predicted alone. `maskjet serve` has what a service on a network needs beyond that: batches, a bounded
queue, limits of bytes and time, a token, metrics, several processes per GPU.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, HTTPException, Query, Request, Response, UploadFile

import maskjet

MOST_BYTES = 16 * 2**20
maskjet.limits.image_pixels = 2**25  # of a picture when decoded: a few bytes may state any size


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    """Load the model before the first request, and free it after the last."""
    with maskjet.load("demo") as app.state.model:  # or a checkpoint of your own
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/find")
def find(request: Request, image: UploadFile, threshold: Annotated[float, Query(ge=0, lt=1)] = 0.5) -> Response:
    """Answer with boxes, classes and masks (COCO RLE) of an image file.

    No coroutine, so that FastAPI calls it in a thread and goes on with others; a model serves several threads at once.
    """
    if (image.size or 0) > MOST_BYTES:
        raise HTTPException(413, f"image must have at most {MOST_BYTES:,} bytes, got {image.size:,}.")
    try:
        found = request.app.state.model.predict(image.file.read(), threshold=threshold)
    except maskjet.InputError as error:  # a file that is no image, damaged, or too large
        raise HTTPException(422, str(error)) from error
    return Response(found.to_json(), media_type="application/json")
