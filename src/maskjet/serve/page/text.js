// Words, numbers and elements.

/** Make an element with properties and children; text is text, never HTML. */
export function element(name, properties = {}, ...children) {
  const made = Object.assign(document.createElement(name), properties);
  made.append(...children);
  return made;
}

/** "3 found: 2 car, 1 bus", as `Detections` prints them. */
export function summary(names) {
  if (!names.length) return "Nothing found at this threshold";
  const counts = new Map();
  for (const name of names) counts.set(name, (counts.get(name) ?? 0) + 1);
  const sorted = [...counts].sort(([, count], [, other]) => other - count);
  const told = sorted.slice(0, 6).map(([name, count]) => `${count} ${name}`);
  if (sorted.length > 6) told.push(`others of ${sorted.length - 6} classes`);
  return `${names.length} found: ${told.join(", ")}`;
}

export function clock(seconds) {
  const whole = Math.floor(Number.isFinite(seconds) ? seconds : 0);
  return `${Math.floor(whole / 60)}:${String(whole % 60).padStart(2, "0")}`;
}

export function milliseconds(value) {
  return value < 10 ? value.toFixed(1) : String(Math.round(value));
}

/** Frames per second and latency over the last two seconds. */
export class Meter {
  #answers = [];

  add(latency) {
    const now = performance.now();
    this.#answers.push({ now, latency });
    while (this.#answers[0].now < now - 2000) this.#answers.shift();
  }

  reset() {
    this.#answers = [];
  }

  /** {rate, latency}, the latter the median in ms; null before two answers. */
  read() {
    const count = this.#answers.length;
    if (count < 2) return null;
    const span = this.#answers[count - 1].now - this.#answers[0].now;
    const sorted = this.#answers.map(({ latency }) => latency).sort((one, other) => one - other);
    return { rate: 1000 * (count - 1) / span, latency: sorted[count >> 1] };
  }
}
