// COCO's compressed run lengths, as `maskjet.coco_rle` reads them: column by column, outside and inside in turn.

/**
 * Read the run lengths of a string.
 * @param {string} string
 * @param {number} pixels Height × width; the run lengths must sum to it.
 * @returns {Int32Array}
 */
export function readCounts(string, pixels) {
  const counts = new Int32Array(string.length);
  let found = 0, total = 0, position = 0;
  while (position < string.length) {
    let value = 0, shift = 0, group;
    do {
      group = string.charCodeAt(position++) - 48;
      if (!(group >= 0 && group < 64) || shift > 30) throw new RangeError("The server sent a broken mask.");
      value |= (group & 0x1f) << shift;
      shift += 5;
    } while (group & 0x20);
    if (group & 0x10 && shift < 32) value |= -1 << shift; // the sign
    if (found > 2) value += counts[found - 2];
    if (value < 0) throw new RangeError("The server sent a broken mask.");
    counts[found++] = value;
    total += value;
  }
  if (total !== pixels) throw new RangeError("The server sent a broken mask.");
  return counts.subarray(0, found);
}

/**
 * Decode the part of a mask within its tight box.
 * @param {{size: [number, number], counts: string}} rle
 * @param {number} step Only every step-th row and column is kept, for images larger than a screen.
 * @param {number[]} within Left, top, right, bottom in pixels: what is outside, rounded outwards, is left out.
 * @returns {{left: number, top: number, width: number, height: number, data: Uint8Array}} In kept pixels; data is
 *     row by row, 1 inside.
 */
export function decodeCrop(rle, step = 1, within = [0, 0, Infinity, Infinity]) {
  const [height, width] = rle.size;
  const counts = readCounts(rle.counts, height * width);
  const box = boundingBox(counts, height);
  const left = Math.ceil(Math.max(box.left, Math.floor(within[0])) / step), right = Math.ceil(Math.min(box.right, Math.ceil(within[2])) / step);
  const top = Math.ceil(Math.max(box.top, Math.floor(within[1])) / step), bottom = Math.ceil(Math.min(box.bottom, Math.ceil(within[3])) / step);
  const cropWidth = Math.max(right - left, 0), cropHeight = Math.max(bottom - top, 0);
  const data = new Uint8Array(cropWidth * cropHeight);
  let start = 0;
  for (let i = 0; i < counts.length; i++) {
    const end = start + counts[i];
    if (i & 1) {
      while (start < end) { // one column at a time
        const x = Math.floor(start / height), below = Math.min(end, (x + 1) * height);
        if (x % step === 0 && x >= left * step && x < right * step) {
          const first = Math.max(Math.ceil((start - x * height) / step), top);
          const last = Math.min(Math.ceil((below - x * height) / step), bottom);
          let at = (first - top) * cropWidth + x / step - left;
          for (let y = first; y < last; y++, at += cropWidth) data[at] = 1;
        }
        start = below;
      }
    }
    start = end;
  }
  return { left, top, width: cropWidth, height: cropHeight, data };
}

/** The tight box of the inside runs in pixels, right and bottom exclusive; zeros if there are none. */
function boundingBox(counts, height) {
  let left = -1, top = height, right = 0, bottom = 0, start = 0;
  for (let i = 0; i < counts.length; i++) {
    const end = start + counts[i];
    if (i & 1 && end > start) {
      const first = Math.floor(start / height), last = Math.floor((end - 1) / height);
      if (left < 0) left = first;
      right = last + 1;
      if (first === last) {
        top = Math.min(top, start - first * height);
        bottom = Math.max(bottom, end - first * height);
      } else { // the run goes on from the bottom of one column to the top of the next
        top = 0;
        bottom = height;
      }
    }
    start = end;
  }
  return left < 0 ? { left: 0, top: 0, right: 0, bottom: 0 } : { left, top, right, bottom };
}
