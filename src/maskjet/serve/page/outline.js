// Outlines of masks, as smooth paths that stay sharp at any size of the screen.

const STEPS = [[1, 0], [0, 1], [-1, 0], [0, -1]]; // right, down, left, up

/**
 * Follow the borders of a mask's parts and holes.
 * @param {{left: number, top: number, width: number, height: number, data: Uint8Array}} crop From `decodeCrop`.
 * @param {number} step The crop's step, so that the path is in the image's pixels.
 * @returns {Path2D} Closed curves through the middles of the pixels' edges, which hides the steps of a slanted border.
 */
export function traceOutline(crop, step = 1) {
  const { width, height, data } = crop;
  const path = new Path2D();
  const isSeen = new Uint8Array(data.length); // pixels whose upper edge is part of a border already followed
  for (let y = 0, at = 0; y < height; y++) {
    for (let x = 0; x < width; x++, at++) {
      if (data[at] && !isSeen[at] && (y === 0 || !data[at - width])) {
        addCurve(path, follow(crop, x, y, isSeen), crop, step);
      }
    }
  }
  return path;
}

/** Follow the border that begins at the upper edge of (x, y), the inside at the right hand; returns [x, y, x, y, …]. */
function follow({ width, height, data }, startX, startY, isSeen) {
  const isInside = (x, y) => x >= 0 && y >= 0 && x < width && y < height && data[y * width + x] === 1;
  const points = [];
  let x = startX, y = startY, direction = 0, before = -1;
  do {
    const [dx, dy] = STEPS[direction];
    if (direction === 0) isSeen[y * width + x] = 1;
    const middleX = x + dx / 2, middleY = y + dy / 2;
    x += dx;
    y += dy;
    // The two pixels ahead: at the left hand (-dy, dx rotated), and at the right.
    const aheadX = x + (dx - 1) / 2, aheadY = y + (dy - 1) / 2;
    const leftX = Math.round(aheadX + dy / 2), leftY = Math.round(aheadY - dx / 2);
    const rightX = Math.round(aheadX - dy / 2), rightY = Math.round(aheadY + dx / 2);
    const next = isInside(leftX, leftY) ? direction + 3 : isInside(rightX, rightY) ? direction : direction + 1;
    if (next % 4 !== direction || before !== direction) points.push(middleX, middleY); // the ends of a straight line
    before = direction;
    direction = next % 4;
  } while (x !== startX || y !== startY || direction !== 0);
  return points;
}

function addCurve(path, points, { left, top }, step) {
  const count = points.length;
  const at = (i) => [(left + points[i % count]) * step, (top + points[(i + 1) % count]) * step];
  const between = ([x, y], [otherX, otherY]) => [(x + otherX) / 2, (y + otherY) / 2];
  path.moveTo(...between(at(count - 2), at(0)));
  for (let i = 0; i < count; i += 2) path.quadraticCurveTo(...at(i), ...between(at(i), at(i + 2)));
  path.closePath();
}
