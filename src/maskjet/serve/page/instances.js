// The detections of one image, ready to be listed and drawn.

import { colourInstances } from "./colours.js";
import { traceOutline } from "./outline.js";
import { decodeCrop } from "./rle.js";

const LONGEST_SIDE = 2560; // of masks in pixels; larger ones are thinned out

/** One detection; its mask is decoded when it is first drawn, so that hidden ones cost nothing. */
export class Instance {
  #rle;
  #step;
  #crop;
  #outline;

  constructor(given, step) {
    const { class_id, class_name, confidence, xyxy, rle, track_id } = given;
    this.given = given; // as the server sent it
    this.classId = class_id;
    this.className = class_name;
    this.trackId = track_id ?? -1;
    this.confidence = confidence;
    this.xyxy = xyxy;
    this.#rle = rle;
    this.#step = step;
  }

  /** The mask within its detection's box, as drawings have it, in every step-th pixel; null without masks. */
  get crop() {
    if (this.#crop === undefined) this.#crop = this.#rle ? decodeCrop(this.#rle, this.#step, this.xyxy) : null;
    return this.#crop;
  }

  /** The mask's outline in the image's pixels; null without masks. */
  get outline() {
    if (this.#outline === undefined) this.#outline = this.crop && traceOutline(this.crop, this.#step);
    return this.#outline;
  }

  /** Whether a point of the image is inside the mask, or without masks inside the box. */
  contains(x, y) {
    const crop = this.crop;
    if (!crop) return x >= this.xyxy[0] && x < this.xyxy[2] && y >= this.xyxy[1] && y < this.xyxy[3];
    const column = Math.floor(x / this.#step) - crop.left, row = Math.floor(y / this.#step) - crop.top;
    return column >= 0 && row >= 0 && column < crop.width && row < crop.height && crop.data[row * crop.width + column] === 1;
  }
}

/** The detections of one image, most confident first. */
export class Found {
  /** @param {{size: [number, number], has_masks: boolean, detections: object[]}} result The server's answer. */
  constructor(result) {
    this.sizeHw = result.size;
    this.hasMasks = result.has_masks;
    this.step = Math.max(Math.ceil(Math.max(...result.size) / LONGEST_SIDE), 1);
    this.instances = result.detections.map((one) => new Instance(one, this.step));
    this.instances.sort((one, other) => other.confidence - one.confidence);
    // Shades are chosen among all, so that no colour changes while the threshold is moved.
    colourInstances(this.instances, this.sizeHw).forEach((colour, i) => { this.instances[i].colour = colour; });
  }
}
