// The colours of `maskjet.drawing`: a hue per class, and shades of it that keep neighbours apart. The reasons for
// these numbers are there, in shades.py.

const PHASES = 64;
const LIGHTNESS = 0.74, LIGHTNESS_SWING = 0.11;
const MOST_CHROMA = 0.16, CHROMA_SHARE = 0.84, SHARE_SWING = 0.16, CHROMA_STEPS = 64;
const HUE_SWING = 14, FIRST_HUE = 225, GOLDEN_ANGLE = 137.508;
const APART = 0.25, ROUNDS = 40;
const MIDDLE_LUMINANCE = 0.2;

const tables = new Map();

/** The colour of a class, [red, green, blue]; instances have shades of it. */
export function classColour(classId) {
  return classShades(classId)[PHASES / 4];
}

/**
 * Choose the colours of an image's instances.
 * @param {{classId: number, xyxy: number[]}[]} instances
 * @param {[number, number]} sizeHw
 * @returns {number[][]} [red, green, blue] each.
 */
export function colourInstances(instances, sizeHw) {
  const phases = spreadPhases(instances, sizeHw);
  return instances.map(({ classId }, i) => classShades(classId)[Math.floor(phases[i] * PHASES) % PHASES]);
}

/** Whether letters on a colour are to be dark. */
export function needsDarkLetters(colour) {
  const [red, green, blue] = colour.map((value) => value <= 10 ? value / 255 / 12.92 : ((value / 255 + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue > MIDDLE_LUMINANCE;
}

export const css = ([red, green, blue], alpha = 1) => `rgb(${red} ${green} ${blue} / ${alpha})`;

function classShades(classId) {
  if (!tables.has(classId)) {
    tables.set(classId, Array.from({ length: PHASES }, (_, i) => {
      const turn = 2 * Math.PI * i / PHASES;
      const hue = (FIRST_HUE + GOLDEN_ANGLE * classId) % 360 + HUE_SWING * Math.sin(turn);
      return toRgb(LIGHTNESS + LIGHTNESS_SWING * Math.cos(turn), CHROMA_SHARE + SHARE_SWING * Math.sin(turn), hue);
    }));
  }
  return tables.get(classId);
}

/** Convert OKLCH to sRGB; the chroma is a share of the most that sRGB shows, up to MOST_CHROMA. */
function toRgb(lightness, share, hue) {
  let most = 0;
  for (let i = 0; i <= CHROMA_STEPS; i++) {
    const chroma = MOST_CHROMA * i / CHROMA_STEPS;
    if (toLinear(lightness, chroma, hue).every((value) => value > -1e-4 && value < 1 + 1e-4)) most = chroma;
  }
  return toLinear(lightness, share * most, hue).map((value) => {
    const linear = Math.min(Math.max(value, 0), 1);
    return Math.round(255 * (linear <= 0.0031308 ? 12.92 * linear : 1.055 * linear ** (1 / 2.4) - 0.055));
  });
}

/** Convert OKLCH, hue in degrees, to linear sRGB; see https://bottosson.github.io/posts/oklab/. */
function toLinear(lightness, chroma, hue) {
  const a = chroma * Math.cos(hue * Math.PI / 180), b = chroma * Math.sin(hue * Math.PI / 180);
  const long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3;
  return [
    4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
    -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
    -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
  ];
}

/** Choose phases, 0..1: by position, then pushed apart between neighbours of one class. */
function spreadPhases(instances, [height, width]) {
  const phases = instances.map(({ xyxy: [left, top, right, bottom] }) => (left + right) / width + (top + bottom) / (2 * height));
  const pairs = neighbours(instances);
  const push = new Float64Array(instances.length);
  for (let round = 0; round < ROUNDS; round++) {
    push.fill(0);
    for (const [i, j, wanted] of pairs) {
      let difference = phases[i] - phases[j];
      difference -= Math.floor(difference + 0.5);
      const lacking = 0.25 * Math.max(wanted - Math.abs(difference), 0);
      push[i] += difference >= 0 ? lacking : -lacking;
      push[j] -= difference >= 0 ? lacking : -lacking;
    }
    for (let i = 0; i < phases.length; i++) phases[i] += push[i];
  }
  return phases.map((phase) => phase - Math.floor(phase));
}

/** Pairs of one class whose boxes are close, [i, j, the distance of phases they should have]. */
function neighbours(instances) {
  const pairs = [], most = 16 * instances.length;
  const sides = instances.map(({ xyxy: [left, top, right, bottom] }) => Math.sqrt(Math.abs((right - left) * (bottom - top))));
  for (let i = 0; i < instances.length; i++) {
    const [left, top, right, bottom] = instances[i].xyxy;
    for (let j = 0; j < i; j++) {
      if (instances[i].classId !== instances[j].classId || pairs.length === most) continue;
      const other = instances[j].xyxy;
      const gap = Math.max(left - other[2], other[0] - right, top - other[3], other[1] - bottom, 0);
      const closeness = 1 - gap / Math.max(sides[i] + sides[j], 1);
      if (closeness > 0) pairs.push([i, j, APART * Math.min(2 * closeness, 1)]);
    }
  }
  return pairs;
}
