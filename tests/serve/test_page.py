"""The service's page, in a real Chromium; what is found is given by a function, but for one test."""

import dataclasses
import itertools
import json
import math
import re
import shutil
import threading
from pathlib import Path

import cv2
import numpy as np
import pytest

import maskjet
from maskjet import Detections
from maskjet.drawing import class_colour
from maskjet.drawing.shades import colour_instances
from maskjet.masks import coco_rle
from tests.serve.client import serving
from tests.sources.clips import encode, write_image
from tests.waiting import until

playwright = pytest.importorskip("playwright.sync_api", reason="the page's tests need playwright")
expect = playwright.expect
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="the page's tests need Chromium"),
]

FLAGS = ["--no-sandbox", "--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream"]
CLASS_NAMES = {0: "car", 1: "truck", 2: "bus", 3: "motorcycle", 4: "person"}


def detections_of(masks, confidence, class_id):
    boxes = [cv2.boundingRect(mask) for mask in masks]
    return Detections(
        image_size=masks.shape[1:],
        xyxy=np.array([(x, y, x + w, y + h) for x, y, w, h in boxes], np.float32),
        confidence=np.array(confidence, np.float32),
        class_id=np.array(class_id, np.int32),
        rle=coco_rle.encode(masks),
        class_names=CLASS_NAMES,
    )


def find(image):
    """Three detections of any image: masks of an ellipse, of a ring and of all of a corner."""
    height, width = image.shape[:2]
    masks = np.zeros((3, height, width), np.uint8)
    cv2.ellipse(masks[0], (width // 3, height // 2), (width // 8, height // 5), 20, 0, 360, 1, -1)
    cv2.circle(masks[1], (2 * width // 3, height // 2), height // 5, 1, max(height // 20, 1))
    masks[2, : height // 4, : width // 4] = 1
    return detections_of(masks, [0.9, 0.7, 0.2], [0, 4, 0])


class Finder:
    """The demo model, but for what it finds."""

    def __init__(self, model, threshold=0.5):
        self._model, self.find = model, find
        self.thresholds = dict.fromkeys(model.thresholds, threshold)

    def __getattr__(self, name):
        return getattr(self._model, name)

    def predict(self, images, **_):
        return [self.find(image) for image in images]

    def stream(self, source, **_):
        yield from ((frame, self.find(frame.image)) for frame in source)


@pytest.fixture(scope="module")
def finder(model):
    return Finder(model)


@pytest.fixture(scope="module")
def address(finder, model):
    with serving({"demo": finder, "other": Finder(model, threshold=0.3)}) as address:
        yield f"http://{address}/"


@pytest.fixture(scope="module")
def browser():
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def page(browser, address):
    """The page, opened; a test fails if it logs an error of its own, or breaks its Content-Security-Policy."""
    context = browser.new_context(viewport={"width": 1280, "height": 900}, permissions=["camera"])
    page = context.new_page()
    page.set_default_timeout(20_000)
    troubles = []
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("console", lambda line: troubles.append(line.text) if "Content Security Policy" in line.text else None)
    page.goto(address)
    yield page
    context.close()
    assert troubles == []


@pytest.fixture(scope="module")
def picture(tmp_path_factory, street):
    return write_image(tmp_path_factory.mktemp("page") / "street.png", street)


@pytest.fixture(scope="module")
def video(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "street.mp4"
    maskjet.traffic.write_video(path, size_hw=(96, 160), frames=60)
    return path


def pixel(page, x, y):
    """The drawn colour at a place of the picture, x and y as shares of its sides."""
    return page.eval_on_selector(
        "#picture",
        "(canvas, [x, y]) => [...canvas.getContext('2d').getImageData(x * canvas.width, y * canvas.height, 1, 1).data]",
        [x, y],
    )[:3]


def slide(page, value):
    """Move the threshold as a hand does."""
    page.locator("#threshold").evaluate(
        "(slider, value) => { slider.value = value; slider.dispatchEvent(new Event('input', { bubbles: true })); }",
        value,
    )


def scores(page):
    return page.locator("#list li:visible .score").all_text_contents()


def test_files_are_served_strictly_and_cached(page, address):
    answer = page.request.get(address)
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    script = page.request.get(address + "page/app.js")
    assert script.headers["content-type"] == "text/javascript; charset=utf-8"
    again = page.request.get(address + "page/app.js", headers={"If-None-Match": f'"x", W/{script.headers["etag"]}'})
    assert (again.status, again.body()) == (304, b"")
    assert again.headers["etag"] == script.headers["etag"]
    assert page.request.head(address + "page/style.css").status == 200
    for name in ("nothing.js", "../page.py", "%2e%2e/page.py", "..%2fpage.py"):
        assert page.request.get(f"{address}page/{name}").status == 404


def test_nothing_is_fetched_from_elsewhere_and_nothing_is_inline():
    folder = Path(maskjet.__file__).parent / "serve" / "page"
    for path in folder.iterdir():
        if path.suffix in (".html", ".css", ".js", ".svg"):
            text = re.sub(r"https://bottosson\S+|http://www\.w3\.org/2000/svg", "", path.read_text())
            assert not re.search(r"https?://|@import|innerHTML|\bstyle=|\bon\w+=\"|<style", text), path.name
        assert path.stat().st_size < 100_000


def test_masks_decode_as_in_python_and_large_ones_are_thinned_out(page):
    random = np.random.default_rng(0)
    sizes = ((1, 1), (7, 5), (64, 48), (33, 129))
    masks = [(random.random(size) < share, 1) for size in sizes for share in (0, 0.02, 0.5, 1)]
    masks += [(cv2.GaussianBlur(random.random((300, 401)), (0, 0), 9) > 0.5, step) for step in (1, 2, 3, 7)]
    for mask, step in masks:
        rle = coco_rle.to_json(coco_rle.encode(mask)[0])
        crop = page.evaluate(
            """async ([rle, step]) => {
                const { decodeCrop } = await import("./page/rle.js");
                const { left, top, width, height, data } = decodeCrop(rle, step);
                return { left, top, size: [height, width], data: [...data] };
            }""",
            [rle, step],
        )
        found, expected = np.zeros_like(mask[::step, ::step], np.uint8), mask[::step, ::step]
        height, width = crop["size"]
        inside = found[crop["top"] :, crop["left"] :][:height, :width]
        inside[:] = np.reshape(crop["data"], crop["size"])[: inside.shape[0], : inside.shape[1]]
        assert np.array_equal(found, expected)
        if step == 1:
            left, top, cropped = coco_rle.decode_crop(rle)
            assert (crop["left"], crop["top"], *crop["size"]) == (left, top, *cropped.shape)


@pytest.mark.parametrize("box", [(10.6, 4.2, 30.1, 20.5), (-5, -5, 12, 9), (40, 0, 90, 90), (0, 60, 5, 70)])
def test_pixels_outside_the_box_are_left_out_as_in_drawings(page, box):
    mask = np.random.default_rng(1).random((48, 64)) < 0.4
    box_only = np.zeros_like(mask)
    left, top = (max(math.floor(side), 0) for side in box[:2])
    right, bottom = (math.ceil(side) for side in box[2:])
    box_only[top:bottom, left:right] = mask[top:bottom, left:right]
    crop = page.evaluate(
        """async ([rle, box]) => {
            const { decodeCrop } = await import("./page/rle.js");
            const { left, top, width, height, data } = decodeCrop(rle, 1, box);
            return { left, top, size: [height, width], data: [...data] };
        }""",
        [coco_rle.to_json(coco_rle.encode(mask)[0]), box],
    )
    found = np.zeros_like(mask, np.uint8)
    height, width = crop["size"]
    found[crop["top"] :, crop["left"] :][:height, :width] = np.reshape(crop["data"], crop["size"])
    assert np.array_equal(found, box_only)


def test_broken_masks_are_refused(page):
    for counts in ("", "1", "~~", "o", "0\x00", "é", "PPPPPPPPPPPPPP0", "j0O"):
        message = page.evaluate(
            """async (counts) => {
                const { decodeCrop } = await import("./page/rle.js");
                try { decodeCrop({ size: [3, 3], counts }); } catch (error) { return String(error); }
            }""",
            counts,
        )
        assert message == "RangeError: The server sent a broken mask.", counts


def test_outlines_enclose_their_masks(page):
    mask = (cv2.GaussianBlur(np.random.default_rng(4).random((120, 150)), (0, 0), 5) > 0.5).astype(np.uint8)
    filled = page.evaluate(
        """async (rle) => {
            const { decodeCrop } = await import("./page/rle.js"), { traceOutline } = await import("./page/outline.js");
            const canvas = new OffscreenCanvas(rle.size[1], rle.size[0]), context = canvas.getContext("2d");
            context.fill(traceOutline(decodeCrop(rle)), "evenodd");
            return [...context.getImageData(0, 0, canvas.width, canvas.height).data].filter((_, i) => i % 4 === 3);
        }""",
        coco_rle.to_json(coco_rle.encode(mask)[0]),
    )
    inside = np.reshape(filled, mask.shape) > 127
    differs = np.argwhere(inside != mask.astype(bool))
    assert len(differs) < 0.02 * mask.size  # corners, which the curves round
    for y, x in differs:  # all of them at a border
        assert len(np.unique(mask[max(y - 1, 0) : y + 2, max(x - 1, 0) : x + 2])) == 2


def test_colours_are_those_of_the_drawing(page):
    random = np.random.default_rng(5)
    corners = random.uniform(0, (1280, 720), (40, 2, 2))
    xyxy = np.concatenate([corners.min(axis=1), corners.max(axis=1)], axis=1)
    class_id = random.integers(0, 4, 40).astype(np.int32)
    found = page.evaluate(
        """async ([boxes, ids]) => {
            const { classColour, colourInstances } = await import("./page/colours.js");
            const instances = boxes.map((xyxy, i) => ({ xyxy, classId: ids[i] }));
            return [colourInstances(instances, [720, 1280]), [0, 1, 17, 90].map(classColour)];
        }""",
        [xyxy.tolist(), class_id.tolist()],
    )
    expected = colour_instances(xyxy, class_id, (720, 1280), is_by_class=True)
    assert np.abs(np.array(found[0]) - expected).max() <= 1
    assert [tuple(colour) for colour in found[1]] == [class_colour(i) for i in (0, 1, 17, 90)]


def test_an_image_is_shown_with_its_masks(page, picture):
    def answer(route):
        given = route.fetch()
        route.fulfill(response=given, headers={**given.headers, "server-timing": "decode;dur=1.5, predict;dur=30"})

    page.route("**/v1/predict*", answer)
    page.set_input_files("#file", picture)
    expect(page.locator("#result")).to_have_text("2 found: 1 car, 1 person.")
    assert scores(page) == ["0.90", "0.70"]
    expect(page.locator("#server")).to_have_text("32")
    assert page.locator("#picture").get_attribute("aria-label").startswith("street.png: 2 found")
    for name in ("boxes", "labels", "masks"):
        page.locator(f"#show-{name}").uncheck()
        page.wait_for_timeout(60)
    image = cv2.imread(str(picture))[..., ::-1]
    plain = pixel(page, 1 / 3, 1 / 2)
    assert np.abs(np.array(plain) - image[90, 107].astype(int)).max() < 40
    page.locator("#show-masks").check()
    page.wait_for_timeout(100)
    tinted = np.array(pixel(page, 1 / 3, 1 / 2))
    low, high = np.sort([plain, class_colour(0)], axis=0)
    assert (tinted != plain).any()
    assert ((tinted >= low - 30) & (tinted <= high + 30)).all()


def test_threshold_and_classes_act_without_asking_again_and_another_model_is_asked(page, picture):
    requests = []
    page.on("request", lambda request: requests.append(request.url))
    page.set_input_files("#file", picture)
    expect(page.locator("#count")).to_have_text("2")
    assert "threshold=0.05" in requests[-1]
    asked = len(requests)
    slide(page, 0.1)
    assert scores(page) == ["0.90", "0.70", "0.20"]
    expect(page.locator("#threshold-value")).to_have_text("0.10")
    slide(page, 0.8)
    assert scores(page) == ["0.90"]
    expect(page.locator("#result")).to_have_text("1 found: 1 car.")
    slide(page, 0.1)
    page.locator("#chips").get_by_label("car").uncheck()
    assert scores(page) == ["0.70"]
    page.get_by_role("button", name="No classes").click()
    expect(page.locator("#empty")).to_have_text("All detections are below the threshold or switched off.")
    page.get_by_role("button", name="All classes").click()
    assert scores(page) == ["0.90", "0.70", "0.20"]
    assert len(requests) == asked
    with page.expect_request("**/v1/predict?model=other&*"):
        page.get_by_label("Model").select_option("other")
    expect(page.locator("#threshold-value")).to_have_text("0.30")


def test_nothing_of_the_last_picture_stays(page, picture, video, finder, monkeypatch):
    page.set_input_files("#file", picture)
    expect(page.locator("#count")).to_have_text("2")
    answering = threading.Event()
    monkeypatch.setattr(finder, "find", lambda image: answering.wait(20) and find(image))
    page.set_input_files("#file", video)
    expect(page.locator("#media-name")).to_have_text("street.mp4")
    page.wait_for_timeout(200)
    assert page.locator("body").get_attribute("data-busy") == ""
    assert page.eval_on_selector("#picture", "(canvas) => canvas.width") == 0
    assert scores(page) == []
    shape = page.locator("#picture").bounding_box()
    assert shape["width"] / shape["height"] == pytest.approx(160 / 96, rel=0.02)
    answering.set()
    expect(page.locator("#count")).to_have_text("2")
    expect(page.locator("body")).not_to_have_attribute("data-busy", "")  # when the first frame is shown


def test_a_video_plays_with_its_results(page, video):
    streams = []
    page.on("websocket", lambda stream: streams.append(stream.url))
    page.set_input_files("#file", video)
    expect(page.locator("#rate")).not_to_be_empty()
    expect(page.locator("#latency")).not_to_be_empty()
    expect(page.locator("#dropped")).to_have_text(re.compile(r"^\d+$"))
    assert streams[0].endswith("/v1/stream?model=demo&threshold=0.05&track=true")
    expect(page.get_by_role("button", name="Play", exact=True)).to_be_visible()  # it has come to its end
    expect(page.locator("#result")).to_have_text("2 found: 1 car, 1 person.")
    page.get_by_label("Position").fill("1")
    expect(page.locator("#time")).to_have_text("0:01 / 0:02")
    slide(page, 0.1)
    expect(page.locator("#count")).to_have_text("3")
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_text("Drop an image or a video here")).to_be_visible()


def test_frames_are_drawn_with_their_own_results(page, tmp_path, finder, monkeypatch):
    """A bright square moves; its mask, found with a delay, must lie on it in each picture that is shown."""
    frames = np.zeros((40, 120, 400, 3), np.uint8)
    for i, frame in enumerate(frames):
        frame[40:80, 8 * i : 8 * i + 40] = 255
    path = encode(tmp_path / "square.webm", frames, "libvpx", {"b": "2M"}, rate=20)

    def find_square(image):
        return detections_of((image.min(axis=2) > 128)[None].astype(np.uint8), [0.9], [0])

    monkeypatch.setattr(finder, "find", find_square)
    page.set_input_files("#file", path)
    expect(page.locator("#rate")).not_to_be_empty()
    page.locator("#show-boxes").uncheck()
    page.locator("#show-labels").uncheck()
    seen = set()
    for _ in range(12):
        untinted, place = page.eval_on_selector(
            "#picture",
            """(canvas) => {
                const y = Math.round(canvas.height / 2);
                const { data } = canvas.getContext("2d").getImageData(0, y, canvas.width, 1);
                let white = 0, sum = 0, count = 0;
                for (let x = 0; x < canvas.width; x++) {
                    const [red, , blue] = data.slice(4 * x, 4 * x + 3);
                    if (blue > 160) { sum += x; count++; if (red > 230) white++; }
                }
                return [white / Math.max(count, 1), Math.round(sum / Math.max(count, 1))];
            }""",
        )
        assert untinted < 0.12
        seen.add(place)
        page.wait_for_timeout(60)
    assert len(seen) > 2


def test_the_camera_streams_until_it_is_closed(page):
    page.get_by_role("button", name="Camera").click()
    expect(page.locator("#rate")).not_to_be_empty()
    expect(page.locator("#count")).to_have_text("2")
    page.get_by_role("button", name="Pause").click()
    expect(page.locator("#result")).to_have_text("2 found: 1 car, 1 person.")
    page.get_by_role("button", name="Play", exact=True).click()
    expect(page.get_by_role("button", name="Pause")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    assert page.eval_on_selector("#video", "(video) => video.srcObject") is None


def test_a_sources_results_and_preview_are_shown(page, finder, write_video):
    door = write_video("door.mp4", frames=100, rate=5)
    with serving({"demo": finder}, source=(f"Front door={door}",)) as address:
        page.goto(f"http://{address}")
        page.get_by_role("button", name="Front door").click()
        expect(page.locator("#count")).to_have_text("2")
        expect(page.get_by_text("The server draws this picture")).to_be_visible()
        until(lambda: sum(pixel(page, 0.5, 0.5)) > 0)
        page.get_by_role("button", name="Close").click()


def test_errors_are_sentences_that_can_be_dismissed(page, picture):
    problem = {"type": "about:blank", "title": "Error", "status": 413, "detail": "The image must have fewer pixels."}
    kind = "application/problem+json"
    page.route("**/v1/predict*", lambda route: route.fulfill(status=413, content_type=kind, body=json.dumps(problem)))
    page.set_input_files("#file", picture)
    alert = page.locator("#problem")
    expect(alert).to_contain_text("The image must have fewer pixels.")
    page.get_by_role("button", name="Dismiss this message").click()
    expect(alert).to_be_hidden()
    page.unroute("**/v1/predict*")
    page.set_input_files("#file", {"name": "notes.txt", "mimeType": "text/plain", "buffer": b"no image"})
    expect(alert).to_contain_text("“notes.txt” is neither an image nor a video that this browser can show.")
    page.set_input_files("#file", {"name": "a.mp4", "mimeType": "video/mp4", "buffer": b"no video"})
    expect(alert).to_contain_text("This browser can't play “a.mp4”.")
    page.set_input_files("#file", picture)
    expect(page.locator("#count")).to_have_text("2")
    expect(alert).to_be_hidden()
    page.evaluate(
        """() => {
            navigator.mediaDevices.getUserMedia = async () => { throw new DOMException("", "NotAllowedError"); };
        }"""
    )
    page.get_by_role("button", name="Camera").click()
    expect(alert).to_contain_text("The browser was not allowed to use the camera.")
    page.route("**/v1/predict*", lambda route: route.abort())
    page.set_input_files("#file", picture)
    expect(alert).to_contain_text("The server can't be reached. Is maskjet serve still running?")


def test_hostile_names_are_shown_as_text(page, model, picture, write_video):
    hostile = "<img src=x onerror=hit=1>"
    named = Finder(model)
    named.spec = dataclasses.replace(model.spec, class_names=dict.fromkeys(CLASS_NAMES, hostile))
    named.find = lambda image: dataclasses.replace(find(image), class_names=named.spec.class_names)
    video = write_video(f"{hostile}.mp4", frames=30, rate=2)  # lasts until it is looked at
    with serving({"demo": named, hostile: named}, source=(str(video),)) as address:
        page.goto(f"http://{address}")
        expect(page.locator("#source-list")).to_contain_text(f"{hostile}.mp4")
        expect(page.locator("#model")).to_contain_text(hostile)
        page.set_input_files(
            "#file", {"name": f"{hostile}.png", "mimeType": "image/png", "buffer": picture.read_bytes()}
        )
        expect(page.locator("#list")).to_contain_text(hostile)
        expect(page.locator("#chips")).to_contain_text(hostile)
        expect(page.locator("#media-name")).to_have_text(f"{hostile}.png")
        page.route("**/v1/predict*", lambda route: route.fulfill(status=400, json={"detail": hostile}))
        for name in (f"{hostile}.png", f"{hostile}.txt"):
            page.set_input_files("#file", {"name": name, "mimeType": "", "buffer": picture.read_bytes()})
            expect(page.locator("#problem")).to_contain_text(hostile)
        page.locator("#source-list button").click()
        expect(page.locator("#result")).to_contain_text(hostile)
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("typeof hit") == "undefined"


def test_a_broken_stream_is_told_and_can_be_resumed(page, address):
    answers = itertools.count(1)

    def relay(stream):
        def answer(message):
            stream.send(message)
            if next(answers) == 3:
                stream.close(code=1011, reason="The device failed.")

        stream.connect_to_server().on_message(answer)

    page.route_web_socket("**/v1/stream*", relay)
    page.goto(address)
    page.get_by_role("button", name="Camera").click()
    expect(page.locator("#problem")).to_contain_text("The device failed.")
    page.get_by_role("button", name="Play", exact=True).click()
    expect(page.locator("#problem")).to_be_hidden()
    expect(page.locator("#rate")).not_to_be_empty()


def test_a_token_is_asked_for_and_kept(page, finder, picture):
    with serving({"demo": finder}, token="open/+sesame~") as address:
        page.goto(f"http://{address}")
        expect(page.get_by_label("Token")).to_be_focused()
        page.keyboard.type("wrong")
        page.keyboard.press("Enter")
        expect(page.get_by_role("alert").first).to_contain_text("The token is wrong.")
        page.keyboard.type("open/+sesame~")
        page.keyboard.press("Enter")
        expect(page.get_by_role("button", name="Open a file")).to_be_focused()
        page.set_input_files("#file", picture)
        expect(page.locator("#count")).to_have_text("2")
        page.reload()
        page.get_by_role("button", name="Camera").click()  # the WebSocket takes the token, too
        expect(page.locator("#rate")).not_to_be_empty()
        assert page.evaluate("[localStorage.length, document.cookie]") == [0, ""]


def test_it_works_by_keyboard(page, picture):
    page.set_input_files("#file", picture)
    expect(page.locator("#count")).to_have_text("2")
    stops = []
    for _ in range(40):
        page.keyboard.press("Tab")
        name, outline = page.evaluate(
            """() => {
                const one = document.activeElement, shown = one.closest(".chip") ?? one;
                return [one.id || shown.textContent, getComputedStyle(shown).outlineStyle];
            }"""
        )
        if name in stops or page.evaluate("document.activeElement === document.body"):
            break
        assert outline != "none", name
        stops.append(name)
        if name == "threshold":
            page.keyboard.press("End")
            expect(page.locator("#empty")).to_be_visible()
            page.keyboard.press("Home")
            assert len(scores(page)) == 3
        if name == "list":
            page.keyboard.press("ArrowDown")
            expect(page.locator("#list").get_by_role("option", selected=True)).to_contain_text("person")
    shown = ["show-masks", "show-boxes", "show-labels"]
    order = ["model", "open", "camera", "sample", *shown, "close", "threshold", "all", "none"]
    assert [stop for stop in stops if stop in order] == order
    assert stops[-1] == "list"
    with page.expect_file_chooser():
        page.locator("#open").focus()
        page.keyboard.press("Enter")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_a_phone_in_both_schemes_and_keeps_still(browser, address, picture, video, scheme):
    watched = [{"id": str(i), "name": f"rtsp://camera-{i}.example/a/long/path", "state": "running"} for i in range(3)]
    phone = {"viewport": {"width": 390, "height": 844}, "has_touch": True}
    context = browser.new_context(**phone, color_scheme=scheme, reduced_motion="reduce")
    page = context.new_page()
    page.route("**/v1/sources", lambda route: route.fulfill(json={"sources": watched}))
    page.goto(address)
    expect(page.locator("#source-list")).to_be_visible()
    for opening in (None, picture):
        if opening:
            page.set_input_files("#file", opening)
            expect(page.locator("#count")).to_have_text("2")
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
    paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", paper))) < 60) == (scheme == "dark")
    small = page.eval_on_selector_all(
        "button, select, .chip, input[type=range]",
        """(all) => {
            const isSmall = (one) => one.offsetParent && one.getBoundingClientRect().height < 24;
            return all.filter(isSmall).map((one) => one.id);
        }""",
    )
    assert small == []
    page.set_input_files("#file", video)
    expect(page.locator("#count")).to_have_text("2")  # the first frame, though nothing moves
    assert page.eval_on_selector("#video", "(video) => video.paused")
    context.close()


def test_many_classes_are_folded_away(page, address):
    classes = {str(i): f"class {i}" for i in range(80)}
    models = [{"name": "demo", "classes": classes, "threshold": 0.5, "has_masks": True, "input_size": 312}]
    page.route("**/v1/models", lambda route: route.fulfill(json={"models": models}))
    page.goto(address)
    expect(page.locator("summary")).to_have_text("80 classes")
    page.locator("#sample").click()
    expect(page.locator("summary")).to_have_text("78 more classes")
    assert page.locator("#chips .name").all_text_contents() == ["class 0", "class 4"]


def test_the_models_own_results_are_shown_and_the_api_described(page, model, picture):
    with serving({"demo": model}) as address:
        page.goto(f"http://{address}")
        page.set_input_files("#file", picture)
        expect(page.locator("#result")).to_contain_text("car", timeout=60_000)
        slide(page, 0.05)
        found = model.predict(picture, threshold=0.05)
        assert scores(page) == [f"{score:.2f}" for score in found.confidence]
        page.get_by_role("link", name="API").click()
        expect(page.get_by_text("POST /v1/predict")).to_be_visible()


def test_the_documents_page_renders_and_tries_requests_out(page, address, picture):
    page.goto(address + "docs")
    assert not re.search(r"`|\*\*", page.locator("body").inner_text())
    expect(page.locator("b").first).to_contain_text("WebSocket")

    def form(method, path):
        form = page.locator(f'details:has(form[data-method="{method}"][data-path="{path}"])')
        form.locator("summary").click()
        return form

    listing = form("GET", "/v1/models")
    listing.locator("form button").click()
    expect(listing.locator("pre")).to_contain_text('"name": "demo"')
    asking = form("POST", "/v1/predict")
    asking.locator("[name=body]").set_input_files(picture)
    asking.locator("[name=max_detections]").fill("1")
    asking.locator("form button").click()
    expect(asking.locator("pre")).to_contain_text('"class_name": "car"')
    asking.locator("select").select_option("image/png")
    asking.locator("form button").click()
    expect(asking.locator("img")).to_be_visible()
    asking.locator("[name=max_detections]").fill("0")
    asking.locator("form button").click()
    expect(asking.locator("output")).to_contain_text("400: max_detections must be")
    one = form("GET", "/v2/models/{model}")
    one.locator("[name=model]").fill("other")
    one.locator("form button").click()
    expect(one.locator("pre")).to_contain_text('"name": "other"')


def test_the_drawn_picture_and_the_detections_are_saved(page, picture, street):
    page.set_input_files("#file", picture)
    expect(page.locator("#count")).to_have_text("2")
    slide(page, 0.8)
    with page.expect_download() as saving:
        page.locator("#save-json").click()
    assert saving.value.suggested_filename == "street.json"
    result = json.loads(Path(saving.value.path()).read_text())
    found = Detections.from_dict(result)
    assert (found.class_name, result["has_masks"]) == (["car"], True)
    assert found.rle == find(street).rle[:1]
    with page.expect_download() as saving:
        page.locator("#save-picture").click()
    assert saving.value.suggested_filename == "street.png"
    drawn = cv2.imread(str(saving.value.path()))[..., ::-1]
    assert drawn.shape == street.shape
    assert (drawn[90, 107] != street[90, 107]).any()
    assert np.abs(drawn[170, 300].astype(int) - street[170, 300]).max() <= 2


def test_labels_bury_nothing_small_on_a_phone(page):
    boxes = [[10, 40, 30, 50], [200, 100, 380, 200], [260, 150, 280, 160]]
    placed = page.evaluate(
        """async (boxes) => {
            const { placeLabels } = await import("./page/labels.js");
            return placeLabels(boxes, [60, 60, 60], { high: 16, width: 390, height: 219, gap: 2, most: 0.5 });
        }""",
        boxes,
    )
    assert sum(place is not None for place in placed) >= 2
    for x, y in filter(None, placed):
        for left, top, right, bottom in boxes:
            across, down = min(x + 60, right) - max(x, left), min(y + 16, bottom) - max(y, top)
            assert max(across, 0) * max(down, 0) <= 0.5 * (right - left) * (bottom - top)


def test_a_source_that_ends_is_no_error(page):
    ending = {"id": "door", "name": "door", "state": "running"}
    page.route("**/v1/sources", lambda route: route.fulfill(json={"sources": [ending]}))
    page.route("**/events", lambda route: (ending.update(state="ended"), route.fulfill(body=": from here on\n\n")))
    page.route("**/preview.mjpeg", lambda route: route.fulfill(body=""))
    page.reload()
    source = page.locator("#source-list").get_by_role("button")
    expect(source.locator(".state")).to_have_text("running")
    source.click()
    expect(page.locator("#result")).to_have_text("The source has ended.")
    expect(source.locator(".state")).to_have_text("ended")
    expect(page.locator("#problem")).to_be_hidden()
