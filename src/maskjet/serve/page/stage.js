// The picture with its instances, drawn at the screen's own resolution.

import { Overlay } from "./overlay.js";

export class Stage {
  #frame = null;
  #found = null;
  #shown = [];
  #marked = null;
  #overlay = new Overlay();
  #isDue = false;
  style = { masks: true, boxes: true, labels: true };

  /**
   * @param {HTMLCanvasElement} canvas
   * @param {(instance: import("./instances.js").Instance | null) => void} onPoint Called with the instance that is
   *     pointed at.
   */
  constructor(canvas, onPoint) {
    this.canvas = canvas;
    new ResizeObserver(() => this.redraw()).observe(canvas);
    canvas.addEventListener("pointermove", (event) => onPoint(this.#hit(event)));
    canvas.addEventListener("pointerleave", () => onPoint(null));
  }

  /** Show a frame (an ImageBitmap or canvas) and its detections; returns the frame shown before, to be used again. */
  show(frame, found) {
    const before = this.#frame;
    this.#frame = frame;
    this.#found = found;
    this.#shown = [];
    this.#marked = null;
    if (frame) this.reserve(frame.width / frame.height);
    else this.canvas.width = 0; // clears it
    this.redraw();
    return before;
  }

  /** Make room for a picture of this width / height. */
  reserve(ratio) {
    this.canvas.style.setProperty("--ratio", ratio);
  }

  /** Choose which of the detections are drawn. */
  setShown(instances) {
    this.#shown = instances;
    this.redraw();
  }

  /** Point at an instance, or at none. */
  mark(instance) {
    if (this.#marked === instance) return;
    this.#marked = instance;
    this.redraw();
  }

  /** The picture in its own size, with the instances that are drawn. */
  toBlob() {
    const { width, height } = this.#frame, canvas = Object.assign(document.createElement("canvas"), { width, height });
    const context = canvas.getContext("2d"), style = { ...this.style, marked: null };
    context.drawImage(this.#frame, 0, 0);
    if (this.#found) this.#overlay.draw(context, { width, height }, this.#found, this.#shown, style);
    return new Promise((resolve) => canvas.toBlob(resolve, "image/png"));
  }

  /** Whether there is a picture to save. */
  get hasFrame() {
    return this.#frame !== null;
  }

  redraw() {
    if (this.#isDue) return;
    this.#isDue = true;
    requestAnimationFrame(() => {
      this.#isDue = false;
      this.#draw();
    });
  }

  #draw() {
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!this.#frame || !width || !height) return;
    const ratio = window.devicePixelRatio || 1;
    const pixels = { width: Math.round(width * ratio), height: Math.round(height * ratio) };
    if (this.canvas.width !== pixels.width || this.canvas.height !== pixels.height) Object.assign(this.canvas, pixels);
    const context = this.canvas.getContext("2d");
    context.setTransform(pixels.width / width, 0, 0, pixels.height / height, 0, 0);
    context.imageSmoothingQuality = "high";
    context.drawImage(this.#frame, 0, 0, width, height);
    const marked = this.#shown.includes(this.#marked) ? this.#marked : null;
    if (this.#found) this.#overlay.draw(context, { width, height }, this.#found, this.#shown, { ...this.style, marked });
  }

  #hit(event) {
    if (!this.#found) return null;
    const [height, width] = this.#found.sizeHw;
    const x = event.offsetX / this.canvas.clientWidth * width, y = event.offsetY / this.canvas.clientHeight * height;
    return this.#shown.find((one) => one.contains(x, y)) ?? null;
  }
}
