// The page of `maskjet serve`: an image, a video, a camera or a server's source, and what the model finds in it.

import { Feed, openCamera } from "./feed.js";
import { Found } from "./instances.js";
import { Panel } from "./panel.js";
import { followSource } from "./remote.js";
import { hasToken, Problem, rememberToken, request, serverMilliseconds } from "./server.js";
import { Stage } from "./stage.js";
import { clock, element, Meter, milliseconds } from "./text.js";

const SENT_AS_IS = new Set(["image/jpeg", "image/png", "image/webp"]);
const VIDEO_NAME = /\.(avi|m4v|mkv|mov|mp4|ogv|webm)$/i; // browsers do not know the type of each
const ANNOUNCE_AFTER = 700; // ms of rest before a result is read out

const $ = (id) => document.getElementById(id);
const stage = new Stage($("picture"), (instance) => mark(instance));
const feed = new Feed($("video"), showAnswer, (problem) => showProblem(problem));
const meter = new Meter();
const panel = new Panel({
  threshold: $("threshold"), thresholdValue: $("threshold-value"), histogram: $("histogram"), chips: $("chips"),
  others: $("others"), othersTitle: $("others-title"), all: $("all"), none: $("none"), list: $("list"), empty: $("empty"),
}, { onFilter: refilter, onMark: mark });

let models = [];
let media = { kind: "none" }; // kind: none, image, video, camera or source
let found = null;
let opening = new AbortController(); // aborted when something else is opened
let announcing = 0;
let started; // resolves when the models are known, or can't be had

// --- Start ---------------------------------------------------------------------------------------------------------

async function start() {
  try {
    ({ models } = await (await request("v1/models")).json());
  } catch (error) {
    showProblem(error);
    return;
  }
  $("token-form").hidden = true;
  document.body.dataset.state = "ready";
  $("model").replaceChildren(...models.map(({ name }) => element("option", { value: name, textContent: name })));
  $("model-field").hidden = !models.length;
  if (models.length) panel.setModel(model());
  panel.update(false);
  showSources();
}

async function showSources() {
  let sources = [];
  try {
    ({ sources } = await (await request("v1/sources")).json());
  } catch {
    // This server has none.
  }
  $("sources").hidden = !sources?.length;
  const list = $("source-list"), focused = [...list.children].indexOf(document.activeElement);
  list.replaceChildren(...(sources ?? []).map((source) => {
    const state = element("span", { className: "state", textContent: source.state ?? "" });
    const button = element("button", { type: "button", className: "tool" }, element("span", { textContent: source.name ?? source.id }), state);
    button.addEventListener("click", () => open((signal) => openSource(source, signal)));
    return button;
  }));
  list.children[focused]?.focus();
}

const model = () => models.find(({ name }) => name === $("model").value) ?? models[0];

// --- Opening -------------------------------------------------------------------------------------------------------

/** Close what is shown, then open something else; its problems are shown. */
async function open(action) {
  close();
  const { signal } = opening;
  document.body.dataset.busy = "";
  try {
    await started;
    if (!models.length) throw new Problem("The server has no model that it could ask.");
    await action(signal);
  } catch (error) {
    if (!signal.aborted) showProblem(error);
  } finally {
    if (!signal.aborted && !isPlayed()) delete document.body.dataset.busy; // or once the first frame is answered
  }
}

function close() {
  opening.abort();
  opening = new AbortController();
  delete document.body.dataset.busy;
  hideProblem();
  feed.stop();
  meter.reset();
  stage.show(null, null);
  setMedia({ kind: "none" });
  takeFound(null);
  showMeasures({});
}

function setMedia(opened) {
  media = opened;
  document.body.dataset.media = media.kind;
  $("stage").hidden = media.kind === "none";
  $("drop").hidden = media.kind !== "none";
  $("transport").hidden = media.kind === "none";
  $("play").hidden = !isPlayed();
  $("seek-field").hidden = media.kind !== "video" || !Number.isFinite(feed.video.duration); // of some recordings
  if (isPlayed()) stage.reserve(feed.video.videoWidth / feed.video.videoHeight);
  $("remote-note").hidden = media.kind !== "source";
  $("media-name").textContent = media.name ?? "";
  $("result").textContent = "";
}

const isPlayed = () => media.kind === "video" || media.kind === "camera";

async function openFile(file, signal) {
  if (file.type.startsWith("video/") || VIDEO_NAME.test(file.name)) await openVideo(file, signal);
  else await openImage(file, signal);
}

async function openImage(file, signal) {
  const bitmap = await createImageBitmap(file).catch(() => null);
  if (signal.aborted) return;
  if (!bitmap) throw new Problem(`“${file.name}” is neither an image nor a video that this browser can show.`);
  setMedia({ kind: "image", name: file.name, bitmap, file });
  stage.show(bitmap, null);
  await predict(signal);
}

/** Ask the server about the image that is shown. */
async function predict(signal) {
  const { bitmap, file } = media;
  const body = SENT_AS_IS.has(file.type) ? file : await toPng(bitmap);
  const params = { ...askedFor(), masks: "rle" };
  const sentAt = performance.now();
  const response = await request("v1/predict", { method: "POST", body, params, headers: { Accept: "application/json", "Content-Type": body.type }, signal });
  const result = await response.json();
  if (signal.aborted) return;
  const latency = performance.now() - sentAt;
  found = new Found(result);
  stage.show(bitmap, found);
  takeFound(found);
  showMeasures({ latency, server: serverMilliseconds(response) });
}

async function toPng(bitmap) {
  const canvas = element("canvas", { width: bitmap.width, height: bitmap.height });
  canvas.getContext("2d").drawImage(bitmap, 0, 0);
  return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
}

async function openVideo(file, signal) {
  await feed.load(file);
  if (signal.aborted) return;
  setMedia({ kind: "video", name: file.name });
  $("seek").max = feed.video.duration;
  await feed.connect(askedFor());
  const isCalm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  if (!isCalm && !signal.aborted) await feed.play();
}

async function openCameraFeed(signal) {
  const camera = await openCamera();
  if (signal.aborted) {
    camera.getTracks().forEach((track) => track.stop());
    return;
  }
  camera.getVideoTracks()[0].addEventListener("ended", () => showProblem(new Problem("The camera was disconnected.")));
  await feed.load(camera);
  setMedia({ kind: "camera", name: "Camera" });
  await feed.connect(askedFor());
}

const askedFor = () => ({ model: model().name, threshold: panel.lowest });

async function openSource(source, signal) {
  setMedia({ kind: "source", name: source.name ?? source.id });
  const onEvent = ({ result }) => {
    if (signal.aborted) return;
    meter.add(0);
    takeFound(new Found(result), false);
    showMeasures({ rate: meter.read()?.rate, dropped: null });
  };
  const onPicture = (picture) => {
    if (signal.aborted) return;
    delete document.body.dataset.busy;
    stage.show(picture, null)?.close();
  };
  await followSource(source.id, { onEvent, onPicture, signal });
  if (signal.aborted) return;
  $("result").textContent = "The source has ended.";
  await showSources();
}

// --- Results -------------------------------------------------------------------------------------------------------

/** Show a frame of a video or camera together with the result that is of this frame. */
function showAnswer({ canvas, result, latency, dropped }) {
  delete document.body.dataset.busy;
  found = new Found(result);
  const before = stage.show(canvas, found);
  if (before instanceof HTMLCanvasElement) feed.release(before);
  takeFound(found);
  meter.add(latency);
  const { rate, latency: median } = meter.read() ?? { latency };
  showMeasures({ rate, latency: median, dropped });
}

function takeFound(taken) {
  found = taken;
  const shown = panel.filter(found);
  if (media.kind !== "source") stage.setShown(shown);
  const isStreaming = !feed.video.paused || media.kind === "source";
  panel.update(isStreaming);
  if (!found) return;
  $("count").textContent = shown.length;
  $("picture").setAttribute("aria-label", `${media.name}: ${panel.summary}`);
  if (!isStreaming) announce();
}

function refilter() {
  takeFound(found);
}

function mark(instance) {
  stage.mark(instance);
  panel.mark(instance);
}

/** Say what was found, once it no longer changes. */
function announce() {
  clearTimeout(announcing);
  announcing = setTimeout(() => { $("result").textContent = found ? `${panel.summary}.` : ""; }, ANNOUNCE_AFTER);
}

/** Show what was measured; a measure that is not given is hidden, one that is null is not known. */
function showMeasures({ rate, latency, server, dropped }) {
  const measures = { rate: rate?.toFixed(rate < 10 ? 1 : 0), latency: latency && milliseconds(latency), server: server && milliseconds(server), dropped };
  for (const [id, value] of Object.entries(measures)) {
    $(id).closest(".measure").hidden = value === undefined || value === null;
    $(id).textContent = value ?? "";
  }
  $("count").closest(".measure").hidden = !found;
}

function showProblem(error) {
  delete document.body.dataset.busy;
  const isUnknown = !(error instanceof Problem);
  if (isUnknown) console.error(error);
  if (error.status === 401) {
    askForToken(error);
    return;
  }
  $("problem").hidden = false;
  $("problem-text").textContent = error instanceof RangeError || !isUnknown ? error.message : `The page failed: ${error.message}`;
}

function hideProblem() {
  $("problem").hidden = true;
  $("problem-text").textContent = "";
}

function askForToken(error) {
  document.body.dataset.state = "locked";
  $("token-form").hidden = false;
  $("token-problem").textContent = hasToken() ? error.message : "";
  $("token").focus();
}

addEventListener("error", ({ error }) => { if (error) showProblem(error); });
addEventListener("unhandledrejection", ({ reason }) => showProblem(reason));

// --- Controls ------------------------------------------------------------------------------------------------------

$("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  rememberToken($("token").value.trim());
  $("token").value = "";
  started = start();
  started.then(() => { if (document.body.dataset.state === "ready") $("open").focus(); });
});

$("open").addEventListener("click", () => $("file").click());
$("drop").addEventListener("click", () => $("file").click());
$("file").addEventListener("change", () => {
  const [file] = $("file").files;
  $("file").value = "";
  if (file) open((signal) => openFile(file, signal));
});
$("camera").addEventListener("click", () => open(openCameraFeed));
$("sample").addEventListener("click", () => open(async (signal) => {
  const blob = await (await request("page/sample.webp", { signal })).blob();
  await openImage(new File([blob], "Sample picture", { type: "image/webp" }), signal);
}));
$("close").addEventListener("click", () => { close(); $("open").focus(); });
$("save-picture").addEventListener("click", async () => { if (stage.hasFrame) save(await stage.toBlob(), ".png"); });
$("save-json").addEventListener("click", () => {
  if (!found) return;
  const result = { size: found.sizeHw, has_masks: found.hasMasks, detections: panel.filter(found).map(({ given }) => given) };
  save(new Blob([JSON.stringify(result)], { type: "application/json" }), ".json");
});

/** Save a file under the name of what is shown. */
function save(blob, suffix) {
  const name = media.name.replace(/\.[^.]*$/, "") || "maskjet";
  const link = element("a", { href: URL.createObjectURL(blob), download: name + suffix });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}
$("dismiss").addEventListener("click", () => { hideProblem(); $("open").focus(); });

$("model").addEventListener("change", () => {
  panel.setModel(model());
  const { signal } = opening;
  hideProblem();
  const again = { image: () => predict(signal), video: () => feed.connect(askedFor()), camera: () => feed.connect(askedFor()) };
  again[media.kind]?.().catch((error) => { if (!signal.aborted) showProblem(error); });
});

for (const name of ["masks", "boxes", "labels"]) {
  stage.style[name] = $(`show-${name}`).checked; // a browser may remember the switches of the last visit
  $(`show-${name}`).addEventListener("change", () => {
    stage.style[name] = $(`show-${name}`).checked;
    stage.redraw();
  });
}

$("play").addEventListener("click", () => {
  if (!feed.video.paused) {
    feed.video.pause();
    return;
  }
  hideProblem();
  meter.reset();
  feed.play();
});
for (const name of ["play", "pause"]) {
  feed.video.addEventListener(name, () => {
    const isPlaying = !feed.video.paused;
    document.body.toggleAttribute("data-playing", isPlaying);
    $("play-text").textContent = isPlaying ? "Pause" : "Play";
    if (!isPlaying) announce();
  });
}
feed.video.addEventListener("timeupdate", () => {
  const { currentTime, duration } = feed.video;
  if (document.activeElement !== $("seek") || !feed.video.paused) $("seek").value = currentTime;
  $("time").textContent = `${clock(currentTime)} / ${clock(duration)}`;
  $("seek").setAttribute("aria-valuetext", clock(currentTime));
});
$("seek").addEventListener("input", () => { feed.video.currentTime = $("seek").valueAsNumber; });

// --- Dropping and pasting ------------------------------------------------------------------------------------------

let depth = 0; // of elements that the pointer has entered with a file
const drag = (change) => {
  depth = Math.max(depth + change, 0);
  document.body.toggleAttribute("data-dragging", depth > 0);
};
addEventListener("dragenter", (event) => { if (event.dataTransfer?.types.includes("Files")) drag(1); });
addEventListener("dragleave", () => drag(-1));
addEventListener("dragover", (event) => event.preventDefault());
addEventListener("drop", (event) => {
  event.preventDefault();
  drag(-depth);
  const [file] = event.dataTransfer.files;
  if (file && document.body.dataset.state !== "locked") open((signal) => openFile(file, signal));
});
addEventListener("paste", (event) => {
  const [file] = event.clipboardData?.files ?? [];
  if (file && document.body.dataset.state !== "locked") open((signal) => openFile(file, signal));
});

started = start();
