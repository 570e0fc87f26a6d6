// A playing video or camera, whose frames go to the server while it plays.

import { Problem } from "./server.js";
import { Stream } from "./stream.js";

const CAMERA = { video: { width: { ideal: 1280 }, height: { ideal: 720 }, facingMode: "environment" }, audio: false };

const CAMERA_PROBLEMS = {
  NotAllowedError: "The browser was not allowed to use the camera. Allow it in the address bar, then try again.",
  NotFoundError: "No camera was found.",
  NotReadableError: "The camera is in use by another program.",
};

/** Open the camera; raises a Problem that says why it can't be had. */
export async function openCamera() {
  if (!navigator.mediaDevices) throw new Problem("Browsers give the camera only to pages from localhost or over HTTPS.");
  try {
    return await navigator.mediaDevices.getUserMedia(CAMERA);
  } catch (error) {
    throw new Problem(CAMERA_PROBLEMS[error.name] ?? `The camera can't be opened: ${error.message}`);
  }
}

export class Feed {
  #stream = null;
  #url = null;
  #params;

  /**
   * @param {HTMLVideoElement} video
   * @param {(answer: object) => void} onAnswer As of `Stream`.
   * @param {(problem: Problem) => void} onProblem
   */
  constructor(video, onAnswer, onProblem) {
    this.video = video;
    this.onAnswer = onAnswer;
    this.onProblem = onProblem;
    video.addEventListener("seeked", () => this.#stream?.offer(video, true));
    video.addEventListener("pause", () => { this.#stream?.pause(); this.#stream?.offer(video, true); });
    this.#watch();
  }

  /** Load a file or a camera's stream; resolves when its first frame is there. */
  async load(source) {
    this.stop();
    const { video } = this;
    const loaded = new Promise((resolve, reject) => {
      video.onloadeddata = resolve;
      video.onerror = () => reject(new Problem(`This browser can't play “${source.name}”. MP4 with H.264 and WebM work nearly everywhere.`));
    });
    if (source instanceof MediaStream) {
      video.srcObject = source;
      video.play().catch(() => {}); // a camera has no first frame before it plays
    } else {
      this.#url = URL.createObjectURL(source);
      video.src = this.#url;
    }
    await loaded;
    video.onerror = () => this.onProblem(new Problem("The video can't be played any further."));
  }

  /** Connect to the server, again if need be, and send the present frame. */
  async connect(params = this.#params) {
    this.#params = params;
    this.#stream?.close();
    const stream = new Stream({ ...params, track: true }, (answer) => this.onAnswer(answer), (problem) => {
      if (this.#stream !== stream) return;
      this.#stream = null;
      this.video.pause();
      this.onProblem(problem);
    });
    this.#stream = stream;
    await stream.opened;
    if (this.#stream === stream) stream.offer(this.video, true);
  }

  async play() {
    if (!this.#stream) await this.connect();
    await this.video.play().catch((error) => {
      if (error.name !== "AbortError") this.onProblem(new Problem(`The video can't be played: ${error.message}`));
    });
  }

  release(canvas) {
    this.#stream?.release(canvas);
  }

  stop() {
    const { video } = this;
    this.#stream?.close();
    this.#stream = null;
    video.onerror = video.onloadeddata = null;
    video.pause();
    for (const track of video.srcObject?.getTracks() ?? []) track.stop();
    video.srcObject = null;
    video.removeAttribute("src");
    video.load();
    if (this.#url) URL.revokeObjectURL(this.#url);
    this.#url = null;
  }

  /** Offer each new frame of the video, for as long as the page lives. */
  #watch() {
    const { video } = this;
    const next = video.requestVideoFrameCallback
      ? () => video.requestVideoFrameCallback(tick)
      : () => requestAnimationFrame(tick);
    const tick = () => {
      if (!video.paused) this.#stream?.offer(video);
      next();
    };
    next();
  }
}
