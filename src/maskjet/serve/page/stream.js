// Frames of a video or camera to the server's WebSocket, and its results back, each with the frame that it is of.

import { openSocket, Problem, request } from "./server.js";

const QUALITY = 0.85; // of the JPEGs
const LONGEST_SIDE = 1280; // pixels of a frame sent; networks take less
const MOST_IN_FLIGHT = 8;
const BUSY = [429, 504]; // statuses of a frame that found no room, after which others may
const EAGERNESS = 0.9; // of the time between two answers: the server always has a fresh frame, and drops few

/** When to send: a little more often than answers come, so that the server sets the pace. */
class Pace {
  #interval = 0;
  #answeredAt = null;
  #nextAt = 0;

  isDue(now) {
    return now >= this.#nextAt;
  }

  sent(now) {
    const wait = EAGERNESS * this.#interval;
    this.#nextAt = Math.max(this.#nextAt + wait, now - wait);
  }

  answered(now) {
    if (this.#answeredAt !== null) {
      const gap = Math.min(now - this.#answeredAt, 1000);
      this.#interval = this.#interval ? 0.8 * this.#interval + 0.2 * gap : gap;
    }
    this.#answeredAt = now;
  }

  pause() {
    this.#answeredAt = null;
    this.#nextAt = 0;
  }
}

export class Stream {
  #socket;
  #pace = new Pace();
  #spare = []; // canvases to be used again
  #waiting = new Map(); // index of a frame sent → {canvas, grabbedAt}
  #sent = 0;
  #isEncoding = false;
  #urgent = null; // a video whose present frame must be sent as soon as that can be
  #isClosed = false;

  /**
   * @param {{model: string, threshold: number}} params
   * @param {(answer: {canvas: HTMLCanvasElement, result: object, latency: number, dropped: number}) => void} onAnswer
   *     Called in the order of the frames; hand the canvas back with `release`.
   * @param {(problem: Problem) => void} onEnd Called if the connection breaks.
   */
  constructor(params, onAnswer, onEnd) {
    this.onAnswer = onAnswer;
    this.onEnd = onEnd;
    this.#socket = openSocket("v1/stream", params);
    this.#socket.binaryType = "arraybuffer";
    this.opened = new Promise((resolve) => { this.#socket.onopen = resolve; });
    this.#socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    this.#socket.onclose = (event) => this.#end(event);
  }

  /** Send a video's present frame if it is time for one. */
  offer(video, isUrgent = false) {
    const now = performance.now();
    if (this.#socket.readyState !== WebSocket.OPEN || !video.videoWidth) return;
    if (this.#isEncoding) {
      if (isUrgent) this.#urgent = video;
      return;
    }
    const isFree = this.#waiting.size < MOST_IN_FLIGHT && this.#socket.bufferedAmount === 0;
    if (!isUrgent && !(isFree && this.#pace.isDue(now))) return;
    this.#pace.sent(now);
    this.#send(video, now);
  }

  /** Say that no frames come for a while. */
  pause() {
    this.#pace.pause();
  }

  release(canvas) {
    this.#spare.push(canvas);
  }

  close() {
    this.#isClosed = true;
    this.#socket.close();
  }

  async #send(video, grabbedAt) {
    this.#isEncoding = true;
    const canvas = this.#grab(video);
    const blob = await new Promise((resolve) => canvas.toBlob(resolve, "image/jpeg", QUALITY));
    this.#isEncoding = false;
    if (this.#socket.readyState !== WebSocket.OPEN || !blob) return;
    this.#waiting.set(this.#sent++, { canvas, grabbedAt });
    this.#socket.send(blob);
    if (this.#urgent) {
      const urgent = this.#urgent;
      this.#urgent = null;
      this.offer(urgent, true);
    }
  }

  #grab(video) {
    const scale = Math.min(LONGEST_SIDE / Math.max(video.videoWidth, video.videoHeight), 1);
    const width = Math.round(video.videoWidth * scale), height = Math.round(video.videoHeight * scale);
    const canvas = this.#spare.pop() ?? document.createElement("canvas");
    if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
    canvas.getContext("2d").drawImage(video, 0, 0, width, height);
    return canvas;
  }

  #receive(message) {
    const problem = message.problem ?? message;
    if (!("result" in message) && !BUSY.includes(problem.status)) {
      this.#isClosed = true;
      this.#socket.close();
      this.onEnd(new Problem(problem.detail ?? problem.title ?? "The server sent an answer that this page does not know.", problem.status));
      return;
    }
    const now = performance.now();
    this.#pace.answered(now);
    const answered = this.#waiting.get(message.frame);
    for (const [index, { canvas }] of this.#waiting) {
      if (index > message.frame) break;
      this.#waiting.delete(index);
      if (index < message.frame || !("result" in message)) this.release(canvas); // dropped
    }
    if (!answered || !("result" in message)) return;
    this.onAnswer({ canvas: answered.canvas, result: message.result, latency: now - answered.grabbedAt, dropped: message.dropped });
  }

  async #end({ reason }) {
    if (this.#isClosed) return;
    this.#isClosed = true;
    let problem = new Problem(reason || "The connection to the server broke. Press Play to connect again.");
    if (!reason) await request("v1/models").catch((error) => { problem = error; }); // a browser does not say why
    this.onEnd(problem);
  }
}
