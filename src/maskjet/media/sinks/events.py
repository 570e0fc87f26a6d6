"""Events of lines and zones as output: JSON lines, a webhook, or a topic of an MQTT broker."""

from __future__ import annotations

import base64
import json
import queue
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from urllib.parse import SplitResult, unquote, urlsplit

from maskjet.detections import Detections
from maskjet.errors import InputError
from maskjet.extras import require
from maskjet.media.containers import shown_name
from maskjet.media.frames import Frame
from maskjet.media.sinks.lines import TextFile
from maskjet.media.sinks.sink import Sink

SUFFIX = ".events.jsonl"
"""End of the path of a file of events."""
_PORTS = {"http": 80, "https": 443, "mqtt": 1883, "mqtts": 8883}
_MOST_WAITING = 1000  # events to be delivered; those that come when so many wait are lost
_DELAYS_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # before each try of a webhook
_TIMEOUT_S = 10.0  # of a try, and for all that waits at the end


def is_url(out: str) -> bool:
    """Whether an output is the URL of a webhook or of an MQTT topic."""
    scheme, separator, _ = out.partition("://")
    return bool(separator) and scheme.lower() in _PORTS


def parse_url(url: str) -> SplitResult:
    """The parts of a URL of http, https, mqtt or mqtts.

    Raises:
        InputError: It has no host, a wrong port, or no topic that one can publish to.
    """
    try:
        parts = urlsplit(url)
        is_right = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_right = False
    if not is_right:
        raise InputError(f"out must be a URL with a host, as in https://host/path, got {shown_name(url)!r}.")
    if parts.scheme.startswith("mqtt") and (not parts.path.strip("/") or parts.query or set("+#") & {*unquote(url)}):
        raise InputError(f"out must name a topic, as in mqtt://host/street/gate, got {shown_name(url)!r}.")
    return parts


def open_events(out: str) -> Sink:
    """Open an output of events: a path in .events.jsonl, or a URL that `parse_url` takes.

    Raises:
        MissingDependencyError: mqtt and mqtts need `pip install "maskjet[mqtt]"`.
    """
    if not is_url(out):
        return EventLines(out)
    return (MqttTopic if parse_url(out).scheme.startswith("mqtt") else Webhook)(out)


def _texts(frame: Frame) -> Iterator[str]:
    """A frame's events as JSON."""
    about = {"index": frame.index, "time_s": frame.time_s, "source": frame.source, "stream": frame.stream}
    for count in frame.counts:
        for event in count.events:
            yield json.dumps(about | {name: value for name, value in vars(event).items() if value is not None})


class EventLines(TextFile):
    """One line of JSON per event: index, time_s, source and stream of the frame, and the fields of `Event`."""

    def write(self, frame: Frame, _: Detections) -> None:
        """Write one frame's lines."""
        self._append("".join(f"{text}\n" for text in _texts(frame)))


class Webhook(Sink):
    """Posts events to a URL of http or https in a thread, each as a JSON object, in order.

    A try that fails, or is answered by 408, 429 or 5xx, is repeated up to five times over 16 s. Any other answer but
    2xx, also a redirect, loses the event. One whose answer is lost comes twice. At most 1,000 events wait, and `close`
    waits for them for 10 s at most. Certificates are verified.

    Attributes:
        lost: Number of events that were not delivered.
    """

    def __init__(self, url: str) -> None:
        parts, self.paths, self._lost_in_thread = parse_url(url), (shown_name(url),), 0
        self._connection = (HTTPSConnection if parts.scheme == "https" else HTTPConnection)(
            parts.hostname or "", parts.port or _PORTS[parts.scheme], timeout=_TIMEOUT_S
        )
        self._target = f"{parts.path or '/'}{f'?{parts.query}' if parts.query else ''}"
        self._headers = {"Content-Type": "application/json", "User-Agent": "maskjet"}
        if parts.username is not None:
            user = f"{unquote(parts.username)}:{unquote(parts.password or '')}".encode()
            self._headers["Authorization"] = f"Basic {base64.b64encode(user).decode()}"
        self._waiting: queue.Queue[str] = queue.Queue(_MOST_WAITING)
        self._ending, self._gave_up = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._deliver_all, name="maskjet-webhook", daemon=True)
        self._thread.start()

    def write(self, frame: Frame, _: Detections) -> None:
        """Queue one frame's events; never waits."""
        for text in _texts(frame):
            try:
                self._waiting.put_nowait(text)
            except queue.Full:
                self.lost += 1

    def close(self) -> None:
        """Deliver what waits, for 10 s at most."""
        if self._ending.is_set():
            return
        self._ending.set()
        self._thread.join(_TIMEOUT_S)
        self._gave_up.set()
        self.lost += self._lost_in_thread + self._thread.is_alive() + self._waiting.qsize()

    abandon = close

    def _deliver_all(self) -> None:
        while not (self._gave_up.is_set() or (self._ending.is_set() and self._waiting.empty())):
            try:
                text = self._waiting.get(timeout=0.1)
            except queue.Empty:
                continue
            self._lost_in_thread += not self._deliver(text)
        self._connection.close()

    def _deliver(self, text: str) -> bool:
        """Post an event until it is taken, refused, or tried often enough."""
        for delay_s in _DELAYS_S:
            if self._gave_up.wait(delay_s):
                break
            try:
                self._connection.request("POST", self._target, text, self._headers)
                reply = self._connection.getresponse()
                reply.read(2**16)
                status = reply.status
            except (OSError, HTTPException):
                status = 503
            if status >= 300:
                self._connection.close()
            if status < 500 and status not in (408, 429):
                return status < 300
        return False


class MqttTopic(Sink):
    """Publishes events to a topic, mqtt://host/topic or mqtts://user:password@host/topic, each as a JSON object.

    They are delivered at least once (QoS 1), in a thread, also after the broker was away; at most 1,000 wait, and
    `close` waits for them for 10 s at most.

    Attributes:
        lost: Number of events that were not delivered.
    """

    def __init__(self, url: str) -> None:
        mqtt = require("paho.mqtt.client", extra="mqtt", purpose="mqtt://")
        parts, self.paths = parse_url(url), (shown_name(url),)
        self._topic, self._sent, self._published = unquote(parts.path.strip("/")), 0, 0
        self._client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2)
        self._client.max_queued_messages_set(_MOST_WAITING)
        self._client.reconnect_delay_set(1, 30)
        self._client.on_publish = self._note
        if parts.username is not None:
            self._client.username_pw_set(unquote(parts.username), unquote(parts.password or ""))
        if parts.scheme == "mqtts":
            self._client.tls_set()
        self._client.connect_async(parts.hostname, parts.port or _PORTS[parts.scheme])
        self._client.loop_start()

    def write(self, frame: Frame, _: Detections) -> None:
        """Queue one frame's events; never waits."""
        for text in _texts(frame):
            self._client.publish(self._topic, text, qos=1)
            self._sent += 1

    def _note(self, *_: object) -> None:
        self._published += 1

    def close(self) -> None:
        """Deliver what waits, for 10 s at most."""
        deadline = time.monotonic() + _TIMEOUT_S
        while self._published < self._sent and time.monotonic() < deadline:
            time.sleep(0.02)
        self._client.disconnect()
        self._client.loop_stop()
        self.lost = self._sent - self._published

    abandon = close
