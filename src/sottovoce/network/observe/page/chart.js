// What is drawn of a run: points in bounded memory, and a small chart of one series.

const SVG = "http://www.w3.org/2000/svg";
const LEFT = 46, RIGHT = 6, TOP = 8, BOTTOM = 18;

/** A point is [round, ...middle, ...low, ...high], with `size` series in each part. */
export class Points {
  constructor(size, most) {
    this.size = size;
    this.most = most;
    this.list = [];
  }

  /** As the cloud does: when there are too many, two neighbours become one, extremes kept. */
  add(point) {
    this.list.push(point);
    if (this.list.length < this.most) return;
    const kept = [];
    for (let i = 0; i + 1 < this.list.length; i += 2) kept.push(this.#merge(this.list[i], this.list[i + 1]));
    if (this.list.length % 2) kept.push(this.list.at(-1));
    this.list = kept;
  }

  #merge(earlier, later) {
    const merged = later.slice();
    for (let s = 0; s < this.size; s++) {
      const low = 1 + this.size + s, high = low + this.size;
      merged[low] = least(earlier[low], later[low]);
      merged[high] = -least(negative(earlier[high]), negative(later[high]));
    }
    return merged;
  }

  /** One series as {round, middle, low, high}, of the whole run or of its latest quarter. */
  series(s, span) {
    const from = span === "late" ? Math.floor(this.list.length * 0.75) : 0;
    return this.list.slice(from).map((p) => ({
      round: p[0], middle: p[1 + s], low: p[1 + this.size + s], high: p[1 + 2 * this.size + s],
    }));
  }

  get last() {
    return this.list.at(-1);
  }
}

function least(a, b) {
  if (a === null) return b;
  if (b === null) return a;
  return Math.min(a, b);
}

function negative(a) {
  return a === null ? null : -a;
}

/** A number for people: four digits. */
export function written(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "none";
  const size = Math.abs(value);
  if (size !== 0 && (size >= 1e6 || size < 1e-4)) return value.toExponential(2);
  return value.toLocaleString("en", { maximumSignificantDigits: 4 });
}

/** A line with its band and limits; elements are made once, and changed ever after. */
export class Chart {
  constructor(svg, limits, aims) {
    this.svg = svg;
    this.limits = [...limits, ...aims];
    svg.classList.add("chart");
    svg.setAttribute("role", "img");
    this.grid = [0, 1, 2, 3, 4].map(() => [this.#make("line", "grid"), this.#make("text", "")]);
    this.grid.forEach(([, label]) => label.setAttribute("text-anchor", "end"));
    this.band = this.#make("path", "band");
    this.line = this.#make("path", "line");
    this.marks = this.limits.map((_, i) => this.#make("line", i < limits.length ? "limit" : "aim"));
    this.first = this.#make("text", "");
    this.final = this.#make("text", "");
    this.final.setAttribute("text-anchor", "end");
  }

  #make(tag, name) {
    const made = document.createElementNS(SVG, tag);
    if (name) made.setAttribute("class", name);
    this.svg.append(made);
    return made;
  }

  draw(series) {
    const width = this.svg.clientWidth || 300, height = this.svg.clientHeight || 136;
    this.svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const ticks = round(...extent(series, this.limits));
    const bottom = ticks[0], top = ticks.at(-1);
    const from = series.length ? series[0].round : 0, to = series.length ? series.at(-1).round : 1;
    const x = (k) => LEFT + ((k - from) / Math.max(1, to - from)) * (width - LEFT - RIGHT);
    const y = (v) => TOP + ((top - v) / (top - bottom)) * (height - TOP - BOTTOM);
    this.grid.forEach(([line, label], i) => {
      const at = i < ticks.length ? y(ticks[i]) : y(bottom);
      place(line, { x1: LEFT, x2: width - RIGHT, y1: at, y2: at });
      place(label, { x: LEFT - 5, y: at + 4 });
      label.textContent = i < ticks.length ? written(ticks[i]) : "";
    });
    this.marks.forEach((mark, i) => {
      const at = y(this.limits[i]);
      place(mark, { x1: LEFT, x2: width - RIGHT, y1: at, y2: at });
    });
    const drawn = series.filter((p) => p.middle !== null);
    this.line.setAttribute("d", path(drawn.map((p) => [x(p.round), y(p.middle)])));
    const banded = series.filter((p) => p.low !== null && p.high !== null);
    const around = [...banded.map((p) => [x(p.round), y(p.high)]), ...banded.reverse().map((p) => [x(p.round), y(p.low)])];
    this.band.setAttribute("d", path(around) + (around.length ? "Z" : ""));
    place(this.first, { x: LEFT, y: height - 3 });
    place(this.final, { x: width - RIGHT, y: height - 3 });
    this.first.textContent = series.length ? `round ${from.toLocaleString("en")}` : "no round yet";
    this.final.textContent = series.length > 1 ? to.toLocaleString("en") : "";
  }
}

/** Two to four steps of 1, 2 or 5 times a power of ten that cover what is shown. */
function round(low, high) {
  const size = 10 ** Math.floor(Math.log10((high - low) / 2));
  const step = [1, 2, 5, 10].map((m) => m * size).find((s) => Math.ceil(high / s) - Math.floor(low / s) <= 4) ?? 20 * size;
  const ticks = [];
  for (let n = Math.floor(low / step); n <= Math.ceil(high / step); n++) ticks.push(n * step);
  return ticks;
}

/** The least and the largest value to show, limits included; never the same. */
function extent(series, limits) {
  let low = Infinity, high = -Infinity;
  const take = (value) => {
    if (value === null) return;
    low = Math.min(low, value);
    high = Math.max(high, value);
  };
  limits.forEach(take);
  for (const p of series) [p.middle, p.low, p.high].forEach(take);
  if (low > high) return [0, 1];
  return high > low ? [low, high] : [low - Math.abs(low) * 0.1, high + (Math.abs(high) * 0.1 || 1)];
}

function place(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value.toFixed(1));
}

function path(corners) {
  return corners.map(([x, y], i) => `${i ? "L" : "M"}${x.toFixed(1)} ${y.toFixed(1)}`).join("");
}
