"""The peer rfdetr behind LitServe, which loads it in a process of its own and reads the annotations as objects."""

from typing import Any

import cv2
import litserve
import numpy as np
from fastapi import Request, Response

from benchmarks.peers import rfdetr
from maskjet.config import DEFAULT_THRESHOLD
from maskjet.model import read_network


class RfdetrAPI(litserve.LitAPI):  # type: ignore[misc, unused-ignore]
    """An image as a part of a form in, `Detections.as_dict` out.

    Args:
        model: A model of `maskjet.load` that rfdetr runs.
        weights: Its weights file; empty for a model that needs none.
        device: PyTorch's name of the device.
    """

    def __init__(self, model: str, weights: str, device: str) -> None:
        super().__init__()
        self._model, self._weights, self._on = model, weights, device

    def setup(self, device: str) -> None:  # noqa: ARG002
        """Load the weights into rfdetr, and detect once."""
        import torch

        network = read_network(self._model, self._weights or None)
        on = torch.device(self._on)
        self._detect = rfdetr.build_fastest(network.state_dict(), network.spec, on, DEFAULT_THRESHOLD).detect
        self._detect(np.zeros((720, 1280, 3), np.uint8))

    def decode_request(self, request: Request) -> Any:
        """Decode the image of a form."""
        form: Any = request  # by now
        data = np.frombuffer(form["image"].file.read(), np.uint8)
        image: Any = cv2.imdecode(data, cv2.IMREAD_COLOR)
        return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)

    def predict(self, x: Any) -> Any:
        """Detect on one image."""
        return self._detect(x)

    def encode_response(self, output: Any) -> Response:
        """Detections as JSON types, which LitServe makes a response of."""
        found: Any = output.as_dict()
        return found  # type: ignore[no-any-return]
