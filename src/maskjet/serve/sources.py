"""Cameras, streams and videos watched by the service, each in its own thread."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

from maskjet.errors import DeviceError, MaskjetError
from maskjet.host.files import compact_json
from maskjet.serve import problems, v1
from maskjet.serve.dispatcher import Dispatcher
from maskjet.serve.source_names import redact, shown_name, split_name
from maskjet.serve.subscribers import Broadcast
from maskjet.serve.tickets import Options
from maskjet.sources.containers import stream_named
from maskjet.sources.frames import open_source
from maskjet.sources.live import Retries, open_stream
from maskjet.sources.metering import Meter, SourceState
from maskjet.sources.source import Opening

if TYPE_CHECKING:
    from maskjet.detections import Detections
    from maskjet.serve.service import Service
    from maskjet.sources.frames import Frame
    from maskjet.sources.source import Source

State = Literal["starting", "running", "waiting", "ended", "failed"]
_BEHIND_S = 1.0  # a video that is later skips catching up
_JOIN_S = 5.0
_log = logging.getLogger("maskjet.serve")


class WatchedSource:
    """A watched source: its thread and state; `broadcast` distributes its results.

    Its identity is its name in paths, its name one for people, without passwords.
    """

    def __init__(
        self,
        identity: str,
        location: str,
        name: str,
        dispatcher: Dispatcher,
        options: Options,
        *,
        service: Service,
        track: bool = False,
    ) -> None:
        self._track = track
        self.id, self.name, self._location = identity, name, location
        self._dispatcher, self._options, self._service = dispatcher, options, service
        self._state: State = "starting"
        self._error: str | None = None
        self._opened: Source | None = None
        self.frames = 0
        self._size_hw: tuple[int, int] | None = None
        self._meter = Meter()
        self._is_forgotten = False
        self._stop = threading.Event()
        self.broadcast = Broadcast(name, service)
        self.thread = threading.Thread(target=self._run, name=f"maskjet-source-{identity}", daemon=True)

    def stop(self) -> None:
        """Request the thread to stop, and end the broadcast; called in the event loop."""
        self._stop.set()
        self.broadcast.finish()

    def forget(self) -> None:
        """Stop the source, and remove its counters from the metrics."""
        self._is_forgotten = True
        self.stop()
        self._remove_counters()

    def _remove_counters(self) -> None:
        for counter in (self._service.metrics.frames, self._service.metrics.dropped):
            with suppress(KeyError):
                counter.remove(self.id)

    def as_dict(self) -> dict[str, Any]:
        """State of the source as JSON types."""
        reading, state, error = self.reading, self._state, self._error
        if state == "running" and reading.error is not None:
            state, error = "waiting", redact(reading.error, self._location)
        return {
            "id": self.id,
            "name": self.name,
            "model": self._dispatcher.name,
            "state": state,
            "error": error,
            "fps": round(self._meter.fps, 2) if state == "running" else 0.0,
            "lag_s": None if reading.lag_s is None else round(reading.lag_s, 3),
            "frames": self.frames,
            "dropped": reading.drops,
            "reconnects": reading.reconnects,
            "bad_frames": reading.bad_frames,
            "size": None if self._size_hw is None else list(self._size_hw),
        }

    @property
    def reading(self) -> SourceState:
        """State of the source's reader; the default before it is opened."""
        return SourceState() if self._opened is None else self._opened.state

    # Below: called in the thread of the source.

    def _run(self) -> None:
        while not self._service.is_warm and self._service.failure is None:
            if self._stop.wait(0.1):
                return
        try:
            if stream_named(self._location) is None:
                self._watch()
            else:
                Retries(self._stop).run(self._watch, self._wait)
            self._state = "ended"
        except Exception as error:
            self._error, self._state = self._explain(error), "failed"
            _log.warning("source %s failed: %s", self.name, self._error)
        if self._stop.is_set():
            self._state = "ended"
        if self._is_forgotten:
            self._remove_counters()
        self.broadcast.call(self.broadcast.finish)

    def _wait(self, error: Exception) -> None:
        """Record and log the error before a retry."""
        before, self._error, self._state = self._error, self._explain(error), "waiting"
        if self._error != before:
            _log.warning("source %s can't be watched yet: %s", self.name, self._error)

    def _watch(self) -> None:
        """Open the source, and detect on its frames until it ends."""
        stream = stream_named(self._location)
        decoder = self._dispatcher.model.decoding()
        with closing(
            open_source(self._location, decoder=decoder)
            if stream is None
            else open_stream(stream, Opening(decoding=decoder))
        ) as opened:
            self._opened, self._state, self._error = opened, "running", None
            self._play(opened)

    def _play(self, opened: Source) -> None:
        """Detect on all frames of an opened source; videos are limited to real time."""
        before, start, start_s = 0, 0.0, None
        detect = self._service.settings.detecting
        if detect == "realtime" and not opened.is_live:
            detect = 1  # a file is shown at the rate at which its frames are found
        results = self._dispatcher.model.stream(
            opened,
            depth=1,  # fewest GPU slots, as they are held as long as the source lives
            drop_late=opened.is_live and opened.kind == "video" and detect != "realtime",
            detect=detect,
            stop=self._stop,
            track=self._track,
            **self._options.arguments(),
        )
        with closing(results):
            for frame, found in results:
                if frame.time_s is not None and not opened.is_live:
                    late_s = 0.0 if start_s is None else time.monotonic() - start - (frame.time_s - start_s)
                    if start_s is None or late_s > _BEHIND_S:
                        start, start_s = time.monotonic(), frame.time_s
                    elif late_s < 0 and self._stop.wait(-late_s):
                        return
                self._publish(frame, found)
                drops = opened.frames_dropped
                self._service.metrics.dropped.labels(self.id).inc(drops - before)
                before = drops

    def _publish(self, frame: Frame, found: Detections) -> None:
        self.frames += 1
        self._size_hw = frame.size_hw
        self._meter.add(frame.time_s)
        self._service.metrics.frames.labels(self.id).inc()
        text = None
        if self.broadcast.has_subscribers:
            event = {"frame": frame.index, "time_s": frame.time_s, "result": v1.to_dict(found, "rle")}
            text = f"data: {compact_json(event)}\n\n"
        self.broadcast.publish(frame, found, text)

    def _explain(self, error: Exception) -> str:
        """An error's message for clients, without passwords and paths."""
        if isinstance(error, DeviceError):
            self._service.failed(error)
        if isinstance(error, MaskjetError | problems.ProblemError):
            return redact(str(error), self._location)
        return problems.to_problem(error).detail


class Sources:
    """All watched sources of a service, by id; used in the event loop only."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._by_id: dict[str, WatchedSource] = {}
        self._removed: list[WatchedSource] = []  # threads may still be blocked on the network
        service.metrics.source_states = lambda: {each.id: each.reading for each in self._by_id.values()}

    def start(self) -> None:
        """Watch the sources of the settings."""
        self._ending = asyncio.create_task(self._end())
        for text in self._service.settings.source:
            name, location = split_name(text)
            self.add(location, name=name)

    async def _end(self) -> None:
        await self._service.ending.wait()
        for source in self._by_id.values():
            source.stop()

    async def aclose(self) -> None:
        """Stop all sources, and wait a bounded time for their threads."""
        self._service.ending.set()
        await self._ending
        deadline = time.monotonic() + _JOIN_S
        for source in (*self._by_id.values(), *self._removed):
            await asyncio.to_thread(source.thread.join, max(0.0, deadline - time.monotonic()))

    def all(self) -> list[WatchedSource]:
        """The sources in the order they were added."""
        return list(self._by_id.values())

    def get(self, identity: str) -> WatchedSource:
        """A source by its id; raises ProblemError 404 if there is none."""
        if identity not in self._by_id:
            raise problems.ProblemError(404, "no-such-source", f"source must be one that is watched, got {identity!r}.")
        return self._by_id[identity]

    def add(
        self,
        location: str,
        *,
        name: str | None = None,
        model: str | None = None,
        options: Options | None = None,
        track: bool = False,
    ) -> WatchedSource:
        """Watch a source; raises ProblemError 403 (no sources), 404 (no model) or 429 (too many), or InputError."""
        if not self._service.settings.sources:
            raise problems.ProblemError(403, "no-sources", "This service watches no sources: its setting sources is 0.")
        self._removed = [each for each in self._removed if each.thread.is_alive()]
        if len(self._by_id) + len(self._removed) >= self._service.settings.sources:
            closing = f", and {len(self._removed)} removed ones are not closed yet" if self._removed else ""
            raise problems.busy(f"The service watches {len(self._by_id)} sources already{closing}.", retry_s=60)
        dispatcher = self._service.dispatcher(model)
        options = replace(options or Options(), tiling=self._service.settings.tiling)
        dispatcher.check(options)
        name = name or shown_name(location)
        source = WatchedSource(
            self._free_id(name), location, name, dispatcher, options, service=self._service, track=track
        )
        self._by_id[source.id] = source
        source.thread.start()
        return source

    def remove(self, identity: str) -> None:
        """Stop and remove a source; its slot is free once its thread has ended. Raises as `get`."""
        self.get(identity).forget()
        self._removed.append(self._by_id.pop(identity))

    def _free_id(self, name: str) -> str:
        slug = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40] or "source"
        number, identity = 1, slug
        while identity in self._by_id:
            number += 1
            identity = f"{slug}-{number}"
        return identity
