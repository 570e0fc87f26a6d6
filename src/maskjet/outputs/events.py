"""Events of lines and zones as output: JSON lines, a webhook, or an MQTT topic."""

from __future__ import annotations

import base64
import logging
import queue
import string
import threading
import urllib.request as web
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import SplitResult, quote, unquote, urlsplit

from maskjet.detections import Detections
from maskjet.errors import InputError, explain
from maskjet.host.extras import require
from maskjet.host.files import compact_json
from maskjet.outputs.lines import TextFile, place_of
from maskjet.outputs.sink import Sink
from maskjet.sources.containers import shown_name
from maskjet.sources.frames import Frame

SUFFIX = ".events.jsonl"
"""End of the path of an output file of events."""
_log = logging.getLogger("maskjet")
_SCHEMES = ("http://", "https://", "mqtt://", "mqtts://")
_MOST_WAITING = 1000  # queued events; further ones are dropped
_DELAYS_S = (0.0, 0.5, 1.0, 2.0, 4.0, 8.0)  # delay before each attempt
_TIMEOUT_S = 10.0  # per attempt, and for the queue at the end


def is_url(out: str) -> bool:
    """Whether an output is the URL of a webhook or of an MQTT topic."""
    return out.lower().startswith(_SCHEMES)


def parse_url(url: str) -> SplitResult:
    """Split the URL of a webhook or MQTT topic; raises InputError without host, valid port or topic."""
    try:
        parts = urlsplit(url)
        is_right = bool(parts.hostname) and parts.port != 0
        if parts.scheme.startswith("mqtt"):
            is_right = is_right and bool(parts.path.strip("/")) and not set("?+#") & {*unquote(url)}
    except ValueError:
        is_right = False
    if not is_right:
        wanted = "https://host/path or mqtt://host/topic, without wildcards"
        raise InputError(f"out must be a URL as {wanted}, got {shown_name(url)!r}.")
    return parts


def _texts(frame: Frame) -> Iterator[str]:
    about = place_of(frame)
    for count in frame.counts:
        for event in count.events:
            yield compact_json(about | {name: value for name, value in vars(event).items() if value is not None})


class EventLines(TextFile):
    """One line of JSON per event: index, time_s and source of the frame, and the fields of `Event`."""

    def write(self, frame: Frame, _: Detections) -> None:
        """Write one frame's lines."""
        self.append("".join(f"{text}\n" for text in _texts(frame)))


class EventDelivery(Sink):
    """Delivers events as JSON objects, in order, from a thread: posts to a webhook or publishes to MQTT.

    docs/counting.md has the forms of URLs, how often it tries, and how many events wait.
    """

    def __init__(self, url: str) -> None:
        parts, self.paths = parse_url(url), (shown_name(url),)
        self._send = (_publishing if parts.scheme.startswith("mqtt") else _posting)(parts)
        self._waiting: queue.SimpleQueue[str | None] = queue.SimpleQueue()  # None ends the thread
        self._written = self._delivered = 0
        self._why = ""  # nothing was delivered the last time, in a message
        self._gave_up = threading.Event()
        self._thread = threading.Thread(target=self._deliver_all, name="maskjet-events", daemon=True)
        self._thread.start()

    def write(self, frame: Frame, _: Detections) -> None:
        """Queue one frame's events; never waits."""
        for text in _texts(frame):
            self._written += 1
            if self._waiting.qsize() < _MOST_WAITING:
                self._waiting.put(text)

    def close(self) -> None:
        """Deliver queued events, for 10 s at most."""
        if not self._gave_up.is_set():
            self._waiting.put(None)
            self._thread.join(_TIMEOUT_S)
            self._gave_up.set()
            self.lost = self._written - self._delivered
            if self.lost:
                _log.warning("%s took %d of %d events%s", *self.paths, self._delivered, self._written, self._why)
                self.paths = self.paths if self._delivered else ()

    abandon = close

    def _deliver_all(self) -> None:
        for text in iter(self._waiting.get, None):
            for delay_s in _DELAYS_S:
                if self._gave_up.wait(delay_s):
                    return
                try:
                    self._send(text)
                except Exception as error:
                    self._why = f": {explain(getattr(error, 'reason', error))}"  # urllib wraps the system's
                    continue
                self._delivered += 1
                break


class _NoRedirects(web.HTTPRedirectHandler):
    """Refuses redirects: neither event nor password are sent to another host."""

    def redirect_request(self, *_: Any) -> None:
        return None


def _posting(parts: SplitResult) -> Callable[[str], object]:
    """Return a function that posts a text, or raises an exception."""
    url = quote(parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl(), safe=string.punctuation)
    headers = {"Content-Type": "application/json", "User-Agent": "maskjet"}
    if parts.username is not None:
        user = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
        headers["Authorization"] = f"Basic {base64.b64encode(user.encode()).decode()}"
    opener = web.build_opener(_NoRedirects)

    def post(text: str) -> None:
        with opener.open(web.Request(url, text.encode(), headers), timeout=_TIMEOUT_S):
            pass

    return post


def _publishing(parts: SplitResult) -> Callable[[str], object]:
    """As `_posting`, for an MQTT broker; events are rare, so each gets its own connection."""
    mqtt = require("paho.mqtt.client", extra="mqtt", purpose="mqtt://")
    topic, is_safe = unquote(parts.path.strip("/")), parts.scheme == "mqtts"

    def publish(text: str) -> None:
        why, taken = "the broker closed the connection", []

        def send(_: Any, __: Any, ___: Any, reason: Any, ____: Any) -> None:
            nonlocal why
            if reason.is_failure:
                why = str(reason)
            else:
                client.publish(topic, text, qos=1)

        def leave(*_: Any) -> None:
            taken.append(text)
            client.disconnect()

        # Not `paho.mqtt.publish`, which would connect again for ever to a broker that closes the connection.
        client = mqtt.Client(mqtt.CallbackAPIVersion.VERSION2, reconnect_on_failure=False)
        client.on_connect, client.on_publish = send, leave
        if is_safe:
            client.tls_set()
        if parts.username is not None:
            client.username_pw_set(unquote(parts.username), unquote(parts.password or ""))
        client.connect(parts.hostname, parts.port or (8883 if is_safe else 1883), keepalive=round(_TIMEOUT_S))
        client.loop_forever()
        if not taken:
            raise ConnectionError(why)

    return publish
