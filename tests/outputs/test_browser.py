"""Videos that were written play in a real Chromium's <video>, and show what was drawn."""

import shutil
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import av
import numpy as np
import pytest

from maskjet.drawing import DrawStyle, Redaction, draw
from maskjet.outputs.opening import open_sinks
from tests.outputs.test_redaction import blobs, found_in, frame

playwright = pytest.importorskip("playwright.sync_api", reason="the browser's tests need playwright")
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="the browser's tests need Chromium"),
]

SIZE, COUNT = (180, 320), 20
PLAY = """async (name) => {
    const video = document.createElement('video');
    video.muted = true;
    video.src = name;
    const ended = new Promise((resolve, reject) => {
        video.onended = resolve;
        video.onerror = () => reject(new Error(video.error.message));
    });
    const first = new Promise((resolve) => video.requestVideoFrameCallback(() => {
        const canvas = document.createElement('canvas');
        [canvas.width, canvas.height] = [video.videoWidth, video.videoHeight];
        const context = canvas.getContext('2d');
        context.drawImage(video, 0, 0);
        resolve([...context.getImageData(0, 0, canvas.width, canvas.height).data]);
    }));
    await video.play();
    const pixels = await first;
    await ended;
    const decoded = video.getVideoPlaybackQuality().totalVideoFrames;
    return { pixels, decoded, width: video.videoWidth, height: video.videoHeight, seconds: video.duration };
}"""


class QuietHandler(SimpleHTTPRequestHandler):
    def log_message(self, *_):
        pass


@pytest.fixture
def page(tmp_path):
    """A page of a server of the test's folder."""
    (tmp_path / "index.html").write_text("<!doctype html><title>videos</title>")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(QuietHandler, directory=str(tmp_path)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        with playwright.sync_playwright() as started:
            browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
            page = browser.new_page()
            page.set_default_timeout(60_000)
            page.goto(f"http://127.0.0.1:{server.server_port}/index.html")
            yield page
            browser.close()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("name", "style"),
    [("a.mp4", DrawStyle(labels=False)), ("a.webm", Redaction(replace_with="8040ff")), ("a.partial.mp4", DrawStyle())],
)
def test_a_video_plays_to_its_end_and_shows_the_drawing(name, style, page, tmp_path):
    image = np.full((*SIZE, 3), (30, 120, 60), np.uint8)
    found = found_in(blobs(SIZE, 2, 3))
    sinks = open_sinks([str(tmp_path / name.replace(".partial", ""))], style=style)
    for index in range(COUNT):
        sinks.write(frame(image, index), found)
    (sinks.abandon if "partial" in name else sinks.close)()
    with av.open(str(tmp_path / name)) as container:
        assert container.streams.video[0].pix_fmt == "yuv420p"
    played = page.evaluate(PLAY, name)
    assert (played["width"], played["height"], played["decoded"]) == (SIZE[1], SIZE[0], COUNT)
    assert played["seconds"] == pytest.approx(COUNT / 10, abs=0.11)
    shown = np.array(played["pixels"], np.uint8).reshape(*SIZE, 4)[..., :3]
    expected = draw(image, found, style)
    assert np.abs(shown.astype(int) - expected).mean() < 6
    assert np.abs(shown.astype(int) - image).mean() > 3 * np.abs(shown.astype(int) - expected).mean()
