// Places of labels, as `maskjet.drawing.labels` chooses them: no label covers another, large boxes choose first.

/**
 * Place labels greedily, each at the cheapest of twelve places about its box; one that finds none is left out.
 * @param {number[][]} boxes Left, top, right, bottom.
 * @param {number[]} widths Of the labels.
 * @param {{high: number, width: number, height: number, gap: number, most: number}} room Height of all labels, sizes of
 *     the picture, the least distance of two labels, and the most of a box that a label hides, as a share.
 * @returns {([number, number] | null)[]} Left and top of each label.
 */
export function placeLabels(boxes, widths, room) {
  const areas = boxes.map(([left, top, right, bottom]) => Math.max((right - left) * (bottom - top), 1));
  const order = boxes.map((_, i) => i).sort((i, j) => areas[j] - areas[i]);
  const placed = boxes.map(() => null);
  const taken = [];
  for (const i of order) {
    const wide = widths[i];
    if (wide > room.width || room.high > room.height) continue;
    let least = Infinity;
    for (const [place, [x, y]] of places(boxes[i], wide, room).entries()) {
      const cost = 0.08 * place + coverage(x, y, wide, room, taken, boxes, areas);
      if (cost < least) {
        least = cost;
        placed[i] = [x, y];
      }
    }
    if (placed[i]) taken.push([...placed[i], placed[i][0] + wide, placed[i][1] + room.high]);
  }
  return placed;
}

function places([left, top, right, bottom], wide, { high, width, height }) {
  const flush = right - wide, beside = left - wide, above = top - high, low = bottom - high;
  const xs = [left, flush, left, left, flush, right, beside, flush, left, right, beside, flush];
  const ys = [above, above, bottom, top, bottom, top, top, top, low, low, low, low];
  return xs.map((x, i) => [
    Math.min(Math.max(x, 0), width - wide), Math.min(Math.max(ys[i], 0), height - high),
  ]);
}

/** Cost of a place: infinite on another label, and higher the more of boxes it hides. */
function coverage(x, y, wide, { high, gap, most }, taken, boxes, areas) {
  for (const [left, top, right, bottom] of taken) {
    if (overlap(x, x + wide, left, right) > -gap && overlap(y, y + high, top, bottom) > -gap) return Infinity;
  }
  let cost = 0;
  for (let j = 0; j < boxes.length; j++) {
    const across = overlap(x, x + wide, boxes[j][0], boxes[j][2]), down = overlap(y, y + high, boxes[j][1], boxes[j][3]);
    if (across > 0 && down > 0 && across * down > most * areas[j]) return Infinity;
    if (across > 0 && down > 0) cost += 0.1 * across * down / (wide * high) + 1.2 * (across * down / areas[j]) ** 2;
  }
  return cost;
}

const overlap = (start, end, otherStart, otherEnd) => Math.min(end, otherEnd) - Math.max(start, otherStart);
