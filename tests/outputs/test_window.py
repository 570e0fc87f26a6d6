"""The window: what it shows, how it ends a stream, and what is said where there is none. Tk is played by a fake."""

import sys
import threading
import types
from dataclasses import replace

import numpy as np
import pytest

from maskjet.drawing import draw
from maskjet.errors import InputError, MissingDependencyError, UnsupportedError
from maskjet.outputs import window as window_module
from maskjet.outputs.sink import Sinks
from maskjet.outputs.window import Window
from tests.detections.test_detections import some_detections
from tests.outputs.outputs import frames


class FakeTk:
    """As much of tkinter as is used; one window, whose keys a test presses."""

    class TclError(Exception):
        pass

    def __init__(self, screen_hw=(1080, 1920)):
        self.screen_hw, self.shown, self.keys, self.updates, self.is_gone = screen_hw, [], {}, 0, False
        self.on_update = self.resizable = lambda **_: None
        self.bind = self.keys.__setitem__
        self.winfo_screenheight, self.winfo_screenwidth = (lambda: self.screen_hw[0]), (lambda: self.screen_hw[1])

    def Tk(self):  # noqa: N802
        return self

    def Label(self, root, **_):  # noqa: N802
        assert root is self
        return types.SimpleNamespace(pack=lambda: None, configure=lambda image: self.shown.append(image))

    def PhotoImage(self, *, master, data, format):  # noqa: A002, N802
        self._check()
        head, width, height, depth = data.split(b" ", 4)[:4]
        assert (master, format, head, depth) == (self, "PPM", b"P6", b"255")
        pixels = data[len(b" ".join([head, width, height, depth])) + 1 :]
        return np.frombuffer(pixels, np.uint8).reshape(int(height), int(width), 3)

    def _check(self):
        if self.is_gone:
            raise self.TclError("application has been destroyed")

    def protocol(self, name, act):
        self.keys[name] = lambda _: act()

    def update(self):
        self._check()
        self.updates += 1
        self.on_update()

    def destroy(self):
        self._check()
        self.is_gone = True

    def title(self, text):
        self.text = text


@pytest.fixture
def tk(monkeypatch):
    fake = FakeTk()
    monkeypatch.setattr(window_module, "_import_tk", lambda: fake)
    monkeypatch.setattr(window_module, "_SHORTEST_S", 0.0)
    monkeypatch.setattr(window_module, "_REST", 0.0)
    return fake


def test_every_frame_is_shown_as_it_is_drawn(tk):
    with Window("cam") as window:
        for frame in frames(3):
            window.write(frame, some_detections(2))
    assert (len(tk.shown), tk.updates, tk.text, tk.is_gone, list(window.paths)) == (3, 3, "cam", True, [])
    for shown, frame in zip(tk.shown, frames(3), strict=True):
        np.testing.assert_array_equal(shown, draw(frame.image, some_detections(2)))
    window.close()
    with pytest.raises(InputError, match="The window is closed; open another"):
        window.write(next(frames(1)), some_detections(1))


def test_the_title_says_how_many_frames_are_detected_on(tk):
    found = some_detections(2)
    with Window("cam") as window:
        for number, frame in enumerate(frames(12)):
            window.write(frame, found.with_moved(np.full(2, number % 4)) if number != 5 else found[:0])
    assert tk.text == "cam - detected on 1 frame in 3.7"


@pytest.mark.parametrize("key", ["q", "Q", "<Escape>", "WM_DELETE_WINDOW"])
def test_the_user_ends_the_stream(tk, key):
    stop = threading.Event()
    with Sinks([window := Window(closed=stop)]) as sinks:
        for index, frame in enumerate(frames(5)):
            if index == 2:
                tk.on_update = lambda: tk.keys[key](None)
            sinks.write(frame, some_detections(1))
    assert window.closed is stop
    assert stop.is_set()
    assert len(tk.shown) == 3


def test_a_large_frame_fits_the_screen_and_a_window_that_is_gone_counts_as_closed(tk):
    tk.screen_hw = (100, 200)
    with Window() as window:
        window.write(next(frames(1, size=(300, 400))), some_detections(1, size=(300, 400)))
        assert tk.shown[0].shape == (90, 120, 3)
        tk.is_gone = True
        window.write(next(frames(1)), some_detections(1))
        assert window.closed.is_set()
        window.write(next(frames(1)), some_detections(1))


def test_fast_frames_are_left_out_but_images_are_not(tk, monkeypatch):
    monkeypatch.setattr(window_module, "_SHORTEST_S", 3600.0)
    with Window() as window:
        for frame in frames(4):
            window.write(frame, some_detections(1))
        assert (len(tk.shown), tk.updates) == (1, 4)
        for frame in frames(4, clock=False):
            window.write(frame, some_detections(1))  # of raw video, which has no times
        assert len(tk.shown) == 1
        for frame in frames(4, clock=False):
            window.write(replace(frame, name="a.png"), some_detections(1))
        assert len(tk.shown) == 5


def test_a_window_is_held_until_the_user_closes_it(tk):
    window = Window(holds=True)
    window.write(next(frames(1)), some_detections(1))
    tk.on_update = lambda: tk.updates == 4 and tk.keys["q"](None)
    window.close()
    assert (tk.updates, tk.is_gone) == (4, True)
    empty = Window(holds=True)
    tk.is_gone = False
    empty.close()  # nothing to look at


def test_no_tk_and_no_screen_are_said(tk, monkeypatch):
    def no_screen():
        raise tk.TclError("no display name and no $DISPLAY environment variable")

    tk.Tk = no_screen
    no_display = r"a window needs a screen, there is none \(no display name .*\): write a"
    with pytest.raises(UnsupportedError, match=no_display):
        Window()
    monkeypatch.undo()
    monkeypatch.setitem(sys.modules, "tkinter", None)
    with pytest.raises(MissingDependencyError, match=r"a window needs Tk, which this Python lacks: .*, or write a v"):
        Window()
