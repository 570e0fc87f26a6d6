// The panel beside the picture: threshold, class switches and the list of detections.

import { classColour, css } from "./colours.js";
import { element, summary } from "./text.js";

const LOWEST = 0.05; // of the threshold; the server is asked with it once, and the page does the rest
const BARS = 19; // of the histogram, 0.05 each
const MOST_AT_ONCE = 12; // classes; of models with more, those not found yet are folded away
const LIST_INTERVAL = 200; // ms between two updates of the list while frames stream

export class Panel {
  #classes = new Map(); // id → {label, box, count}
  #rows = [];
  #found = null;
  #shown = [];
  #listedAt = 0;
  #timer = 0;
  #active = 0; // position in the list that the arrow keys have reached

  /**
   * @param {Record<string, HTMLElement>} parts Elements by name.
   * @param {{onFilter: () => void, onMark: (instance: object | null) => void}} events
   */
  constructor(parts, { onFilter, onMark }) {
    this.parts = parts;
    this.onFilter = onFilter;
    this.onMark = onMark;
    this.bars = Array.from({ length: BARS }, () => element("i"));
    parts.histogram.append(...this.bars);
    parts.threshold.min = LOWEST;
    parts.threshold.addEventListener("input", () => { this.#showThreshold(); this.onFilter(); });
    parts.all.addEventListener("click", () => this.#switchAll(true));
    parts.none.addEventListener("click", () => this.#switchAll(false));
    parts.list.addEventListener("keydown", (event) => this.#move(event));
    parts.list.addEventListener("focus", () => this.onMark(this.#shown[this.#active] ?? null));
    parts.list.addEventListener("blur", () => this.onMark(null));
  }

  get lowest() {
    return LOWEST;
  }

  get threshold() {
    return this.parts.threshold.valueAsNumber;
  }

  /** Show the classes and the threshold of a model. */
  setModel({ classes, threshold }) {
    const { chips, others, threshold: slider } = this.parts;
    slider.value = Math.min(Math.max(typeof threshold === "number" ? threshold : 0.5, LOWEST), 1);
    this.#showThreshold();
    this.#classes.clear();
    chips.replaceChildren();
    others.replaceChildren();
    const entries = Object.entries(classes).map(([id, name]) => [Number(id), name]).sort(([id], [other]) => id - other);
    for (const [id, name] of entries) (entries.length > MOST_AT_ONCE ? others : chips).append(this.#addClass(id, name));
    this.#showOthers();
  }

  /** Take the detections of an image or frame and return those that pass the threshold and the switches. */
  filter(found) {
    this.#found = found;
    const { threshold } = this;
    this.#shown = found ? found.instances.filter((one) => one.confidence > threshold && this.#isOn(one)) : [];
    return this.#shown;
  }

  /** Show the detections that the last `filter` left; while frames stream, not at each of them. */
  update(isStreaming) {
    clearTimeout(this.#timer);
    const wait = isStreaming ? this.#listedAt + LIST_INTERVAL - performance.now() : 0;
    if (wait > 0) {
      this.#timer = setTimeout(() => this.update(false), wait);
      return;
    }
    this.#listedAt = performance.now();
    this.#showHistogram();
    this.#showCounts();
    this.#showList();
  }

  /** Show which detection is pointed at in the picture. */
  mark(instance) {
    const { list } = this.parts;
    list.removeAttribute("aria-activedescendant");
    this.#rows.forEach(({ item }, i) => {
      const isMarked = this.#shown[i] === instance && instance !== null;
      item.setAttribute("aria-selected", isMarked);
      if (!isMarked) return;
      list.setAttribute("aria-activedescendant", item.id);
      scrollInside(list, item);
    });
  }

  get summary() {
    return summary(this.#shown.map((one) => one.className));
  }

  #isOn({ classId, className }) {
    if (!this.#classes.has(classId)) this.parts.chips.append(this.#addClass(classId, className));
    return this.#classes.get(classId).box.checked;
  }

  #addClass(id, name) {
    const box = element("input", { type: "checkbox", checked: true });
    const count = element("span", { className: "count" });
    const dot = element("span", { className: "dot" });
    dot.style.setProperty("--colour", css(classColour(id)));
    const label = element("label", { className: "chip" }, box, dot, element("span", { textContent: name, className: "name" }), count);
    box.addEventListener("change", () => this.onFilter());
    this.#classes.set(id, { label, box, count, id });
    return label;
  }

  #switchAll(isOn) {
    for (const { box } of this.#classes.values()) box.checked = isOn;
    this.onFilter();
  }

  #showThreshold() {
    const { threshold, thresholdValue } = this.parts;
    thresholdValue.textContent = threshold.valueAsNumber.toFixed(2);
    const share = (threshold.valueAsNumber - LOWEST) / (threshold.max - LOWEST);
    threshold.parentElement.style.setProperty("--share", share);
  }

  /** How many detections of the switched-on classes have which confidence. */
  #showHistogram() {
    const counts = new Array(BARS).fill(0);
    for (const one of this.#found?.instances ?? []) {
      if (this.#isOn(one)) counts[Math.min(Math.max(Math.floor((one.confidence - LOWEST) / (1 - LOWEST) * BARS), 0), BARS - 1)]++;
    }
    const most = Math.max(...counts, 4);
    this.bars.forEach((bar, i) => {
      bar.style.setProperty("--height", counts[i] / most);
      bar.classList.toggle("out", LOWEST + (i + 0.5) / BARS * (1 - LOWEST) < this.threshold);
    });
  }

  #showCounts() {
    const counts = new Map();
    const passing = this.#found?.instances.filter((one) => one.confidence > this.threshold) ?? [];
    for (const { classId } of passing) counts.set(classId, (counts.get(classId) ?? 0) + 1);
    for (const [id, { label, count }] of this.#classes) {
      const found = counts.get(id) ?? 0;
      count.textContent = found || "";
      label.classList.toggle("absent", !found);
      if (found && label.parentElement === this.parts.others && !label.contains(document.activeElement)) this.#unfold(id, label);
    }
  }

  /** Move a class among those that are shown at once, in order of the ids. */
  #unfold(id, label) {
    const { chips } = this.parts;
    const after = [...this.#classes.values()].find((one) => one.id > id && one.label.parentElement === chips);
    chips.insertBefore(label, after?.label ?? null);
    this.#showOthers();
  }

  #showOthers() {
    const { others, othersTitle, chips } = this.parts;
    const count = others.childElementCount;
    others.parentElement.hidden = !count;
    othersTitle.textContent = chips.childElementCount ? `${count} more classes` : `${count} classes`;
  }

  #showList() {
    const { list, empty } = this.parts;
    while (this.#rows.length < this.#shown.length) this.#addRow();
    this.#rows.forEach((row, i) => {
      const one = this.#shown[i];
      row.item.hidden = !one;
      row.item.setAttribute("aria-selected", false);
      if (!one) return;
      row.dot.style.setProperty("--colour", css(one.colour));
      row.name.textContent = one.className;
      row.score.textContent = one.confidence.toFixed(2);
      row.bar.style.setProperty("--share", one.confidence);
    });
    list.tabIndex = this.#shown.length || list === document.activeElement ? 0 : -1;
    const hidden = this.#found?.instances.length ?? 0;
    empty.hidden = this.#shown.length > 0;
    empty.textContent = !this.#found ? "Detections will be listed here." :
      hidden ? "All detections are below the threshold or switched off." : "Nothing was found.";
  }

  #addRow() {
    const index = this.#rows.length;
    const dot = element("span", { className: "dot" }), name = element("span", { className: "name" });
    const bar = element("span", { className: "bar" }), score = element("span", { className: "score" });
    const item = element("li", { id: `detection-${index}` }, dot, name, bar, score);
    item.setAttribute("role", "option");
    item.addEventListener("pointerenter", () => this.onMark(this.#shown[index] ?? null));
    item.addEventListener("pointerleave", () => this.onMark(null));
    this.#rows.push({ item, dot, name, bar, score });
    this.parts.list.append(item);
  }

  /** Point at detections with the arrow keys. */
  #move(event) {
    const last = this.#shown.length - 1, here = Math.min(this.#active, last);
    const target = { ArrowDown: Math.min(here + 1, last), ArrowUp: Math.max(here - 1, 0), Home: 0, End: last }[event.key];
    if (target === undefined || last < 0) return;
    event.preventDefault();
    this.#active = target;
    this.onMark(this.#shown[target]);
  }
}

/** Scroll a list, and only the list, until an item of it is visible. */
function scrollInside(list, item) {
  const above = item.offsetTop - list.scrollTop, below = above + item.offsetHeight - list.clientHeight;
  if (above < 0) list.scrollTop += above;
  else if (below > 0) list.scrollTop += below;
}
