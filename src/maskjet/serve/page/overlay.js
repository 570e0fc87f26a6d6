// Drawing masks, outlines, boxes and labels over a picture, in the order and the colours of `maskjet.drawing`.

import { css, needsDarkLetters } from "./colours.js";
import { placeLabels } from "./labels.js";

const FILL = 108; // opacity of a mask's inside, in 256ths
const FILL_MARKED = 170, FILL_FADED = 40; // while one instance is pointed at
const NARROW = 600; // pixels of a picture on the screen below which letters are smaller

/** Draws the instances of one image after the other, with one buffer for their masks. */
export class Overlay {
  #layer = document.createElement("canvas");
  #pixels = null;

  /**
   * Draw instances, the most confident on top, labels above all.
   * @param {CanvasRenderingContext2D} context Its unit is a pixel of the screen.
   * @param {{width: number, height: number}} view Size of the picture on the screen.
   * @param {import("./instances.js").Found} found
   * @param {import("./instances.js").Instance[]} shown Those to be drawn, most confident first.
   * @param {{masks: boolean, boxes: boolean, labels: boolean, marked: import("./instances.js").Instance | null}} style
   */
  draw(context, view, found, shown, style) {
    const [height, width] = found.sizeHw;
    if (!shown.length || !height || !width) return;
    const scale = { x: view.width / width, y: view.height / height };
    const reversed = shown.toReversed ? shown.toReversed() : [...shown].reverse();
    if (style.masks) {
      this.#drawMasks(context, view, found, reversed, style.marked);
      for (const one of reversed) strokeOutline(context, one, scale, style.marked);
    }
    if (style.boxes || shown.some((one) => !one.crop)) {
      for (const one of reversed) strokeBox(context, one, scale, style.marked);
    }
    if (style.labels) drawLabels(context, view, shown, scale, style.marked);
  }

  #drawMasks(context, view, found, instances, marked) {
    const [height, width] = found.sizeHw.map((side) => Math.ceil(side / found.step));
    if (this.#layer.width !== width || this.#layer.height !== height || !this.#pixels) {
      Object.assign(this.#layer, { width, height });
      this.#pixels = new ImageData(width, height);
    }
    const { data } = this.#pixels;
    data.fill(0);
    for (const one of instances) {
      if (one.crop) tint(data, width, one.crop, one.colour, marked ? (one === marked ? FILL_MARKED : FILL_FADED) : FILL);
    }
    this.#layer.getContext("2d").putImageData(this.#pixels, 0, 0);
    context.drawImage(this.#layer, 0, 0, view.width, view.height);
  }
}

/** Blend a colour over the RGBA pixels where a mask's crop is 1. */
function tint(data, stride, crop, [red, green, blue], opacity) {
  for (let y = 0, from = 0; y < crop.height; y++) {
    let to = 4 * ((crop.top + y) * stride + crop.left);
    for (let x = 0; x < crop.width; x++, from++, to += 4) {
      if (!crop.data[from]) continue;
      const below = data[to + 3] * (256 - opacity) / 256, alpha = opacity + below;
      data[to] = (red * opacity + data[to] * below) / alpha;
      data[to + 1] = (green * opacity + data[to + 1] * below) / alpha;
      data[to + 2] = (blue * opacity + data[to + 2] * below) / alpha;
      data[to + 3] = alpha;
    }
  }
}

const strength = (one, marked) => (!marked || one === marked ? 1 : 0.35);

function strokeOutline(context, one, scale, marked) {
  if (!one.outline) return;
  context.save();
  context.scale(scale.x, scale.y);
  context.lineWidth = (one === marked ? 3 : 1.75) / Math.sqrt(scale.x * scale.y);
  context.lineJoin = "round";
  context.strokeStyle = css(one.colour, strength(one, marked));
  context.stroke(one.outline);
  context.restore();
}

function strokeBox(context, one, scale, marked) {
  const [left, top, right, bottom] = scaled(one.xyxy, scale);
  context.lineWidth = 1.5;
  context.strokeStyle = css(one.colour, strength(one, marked));
  context.strokeRect(left, top, right - left, bottom - top);
}

function drawLabels(context, view, shown, scale, marked) {
  const letters = view.width < NARROW ? 10 : 12, high = letters + 6, pad = letters / 2;
  context.font = `600 ${letters}px system-ui, "Segoe UI", sans-serif`;
  context.textBaseline = "middle";
  const texts = shown.map((one) => `${shorten(one.className)} ${one.trackId < 0 ? "" : `#${one.trackId} `}${one.confidence.toFixed(2)}`);
  const widths = texts.map((text) => Math.ceil(context.measureText(text).width) + 2 * pad);
  const most = view.width < NARROW ? 0.25 : Infinity; // on a phone a label is larger than small things
  const places = placeLabels(shown.map((one) => scaled(one.xyxy, scale)), widths, { high, ...view, gap: 2, most });
  places.forEach((place, i) => {
    const one = shown[i];
    if (!place || (marked && one !== marked)) return;
    context.fillStyle = css(one.colour);
    context.beginPath();
    context.roundRect(place[0], place[1], widths[i], high, 4);
    context.fill();
    context.fillStyle = needsDarkLetters(one.colour) ? "rgb(20 24 28)" : "#fff";
    context.fillText(texts[i], place[0] + pad, place[1] + high / 2 + 1);
  });
}

const scaled = ([left, top, right, bottom], { x, y }) => [left * x, top * y, right * x, bottom * y];
const shorten = (name) => (name.length > 24 ? `${name.slice(0, 23)}…` : name);
