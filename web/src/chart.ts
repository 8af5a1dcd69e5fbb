/* One panel: its lines, axes, marks and legend as SVG, drawn for the view that its board shows.
   Text goes in as text only. */
import { colourOf } from "./colours";
import { html, svg } from "./dom";
import { digits, logTicks, nearest, place, position, steps, ticks, type Axis } from "./scale";

export interface LineData { label: string; kind: string; dx: number[]; y: (number | null)[]; colour?: number }
export interface EventMark { first: number; last: number; step: number; kind: string; tone: string; label: string }
export interface PanelData { id: string; title: string; height: number; lines: LineData[]; broken: [number, string][] }
export interface View { from: number; to: number }
export interface Scene {
  view: View;
  axis: Axis;
  log: boolean;
  events: EventMark[];
  hidden: Set<string>;
  numColours: number;
  /* Where the pointer is, on the axis; null if it is nowhere. */
  at: number | null;
}
interface Line { label: string; kind: string; x: number[]; y: (number | null)[]; colour?: number }
export interface Near { label: string; value: number; path: Element | null }

export const LEFT = 56, RIGHT = 12;
const TOP = 8, BOTTOM = 8, AXIS = 22, MAX_LEGEND = 6, MAX_LABEL = 34;
/* More lines than these would hide the curve; the marks above it are enough then. */
const MAX_EVENT_LINES = 60;
let numCharts = 0;

const summed = (dx: number[]): number[] => {
  let x = 0;
  return dx.map((step) => (x += step));
};
const isDots = (kind: string) => kind === "dots" || kind === "peaks";

/* A long name without its middle: runs are named alike at one end. */
export const middle = (text: string, most = MAX_LABEL): string => {
  if (text.length <= most) return text;
  const front = Math.floor(most / 2);
  return text.slice(0, front) + "…" + text.slice(text.length - (most - front - 1));
};

export class Chart {
  readonly element: HTMLElement;
  readonly picture: SVGElement;
  readonly links: HTMLElement;
  lines: Line[] = [];
  broken: [number, string][] = [];
  height = 150;
  width = 600;
  isLoaded = false;
  isSeen = true;
  /* The lines are of another view than the one that is shown, or older than what was recorded. */
  isStale = false;
  private shape = "";
  private values: { line: Line; value: HTMLElement }[] = [];
  private readonly legend: HTMLElement;
  private readonly title: HTMLElement;
  private readonly clip = `clip${numCharts++}`;

  constructor(readonly id: string, parent: Element, public hasAxis: boolean, public hasMarks: boolean) {
    this.element = html("div", "panel", parent);
    const head = html("div", "panel-head", this.element);
    this.title = html("span", "panel-title", head, middle(id, 60));
    this.title.title = id;
    this.legend = html("span", "panel-legend", head);
    this.links = html("span", "panel-links", head);
    this.picture = svg("svg", { height: this.height, role: "img", "aria-label": id }, this.element);
  }

  take(data: PanelData): void {
    this.isLoaded = true;
    this.isStale = false;
    this.height = data.height;
    this.title.textContent = middle(data.title, 60);
    this.broken = data.broken;
    const shape = JSON.stringify(data.lines.map((line) => [line.label, line.kind, line.colour]));
    const lines = data.lines.map((line) => ({ label: line.label, kind: line.kind, colour: line.colour, x: summed(line.dx), y: line.y }));
    if (shape === this.shape) lines.forEach((line, number) => Object.assign(this.lines[number], line));
    else { this.shape = shape; this.lines = lines; }
  }

  /* What came after the points that are here. False if it is of another shape. */
  append(data: PanelData): boolean {
    if (data.lines.length !== this.lines.length) return false;
    const fits = data.lines.every((line, number) => line.kind === this.lines[number].kind && line.label === this.lines[number].label);
    if (!fits) return false;
    data.lines.forEach((line, number) => {
      const old = this.lines[number], x = summed(line.dx);
      if (!x.length) return;
      const keep = position(old.x, x[0]);
      old.x = old.x.slice(0, keep).concat(x);
      old.y = old.y.slice(0, keep).concat(line.y);
    });
    const known = new Set(this.broken.map(([step]) => step));
    this.broken.push(...data.broken.filter(([step]) => !known.has(step)));
    return true;
  }

  private toX(at: number, view: View): number {
    return LEFT + (at - view.from) / (view.to - view.from) * (this.width - LEFT - RIGHT);
  }

  private span(line: Line, view: View): [number, number] {
    return [Math.max(position(line.x, view.from) - 1, 0), Math.min(position(line.x, view.to) + 1, line.x.length)];
  }

  private shown(scene: Scene): Line[] { return this.lines.filter((line) => !scene.hidden.has(line.label)); }

  private extent(scene: Scene): [number, number] {
    let low = Infinity, high = -Infinity;
    for (const line of this.shown(scene)) {
      const [start, end] = this.span(line, scene.view);
      for (let i = start; i < end; i++) {
        const y = line.y[i];
        if (y === null || line.x[i] < scene.view.from || line.x[i] > scene.view.to) continue;
        if (y < low) low = y;
        if (y > high) high = y;
      }
    }
    if (low > high) return [0, 1];
    if (low === high) {
      const room = Math.abs(low) * 0.1 || 1;
      return [low - room, high + room];
    }
    return [low, high];
  }

  private isLog(scene: Scene, low: number): boolean { return scene.log && low > 0; }

  draw(scene: Scene): number {
    const { picture, height } = this;
    this.width = Math.max(this.element.clientWidth, 160);
    picture.textContent = "";
    const whole = height + (this.hasAxis ? AXIS : 0);
    picture.setAttribute("height", String(whole));
    picture.setAttribute("width", String(this.width));
    picture.setAttribute("viewBox", `0 0 ${this.width} ${whole}`);
    picture.setAttribute("aria-label", `${this.id} over ${scene.axis === "step" ? "steps" : scene.axis}`);
    this.buildLegend(scene);
    const [low, high] = this.extent(scene);
    const log = this.isLog(scene, low);
    const scale = log ? Math.log : (value: number) => value;
    const room = (scale(high) - scale(low)) * 0.04;
    const bottom = scale(low) - room, top = scale(high) + room;
    const toY = (value: number) => height - BOTTOM - (scale(value) - bottom) / (top - bottom) * (height - TOP - BOTTOM);
    for (const tick of log ? logTicks(low, high) : ticks(low, high, Math.max(height / 46, 3.5))) {
      const y = toY(tick).toFixed(1);
      svg("line", { class: "grid", x1: LEFT, x2: this.width - RIGHT, y1: y, y2: y }, picture);
      svg("text", { class: "tick", x: LEFT - 8, y, dy: "0.32em", "text-anchor": "end" }, picture, digits(tick));
    }
    svg("line", { class: "axis", x1: LEFT, x2: this.width - RIGHT, y1: height - 0.5, y2: height - 0.5 }, picture);
    const clip = svg("clipPath", { id: this.clip }, picture);
    svg("rect", { x: LEFT - 3, y: 0, width: this.width - LEFT - RIGHT + 6, height }, clip);
    const inside = svg("g", { "clip-path": `url(#${this.clip})` }, picture);
    this.drawEvents(scene, inside);
    let drawn = 0;
    for (const line of this.shown(scene)) drawn += this.drawLine(line, scene, inside, toY);
    this.drawBroken(scene, inside);
    if (this.hasAxis) this.drawAxis(scene);
    return drawn;
  }

  private buildLegend(scene: Scene): void {
    const named = this.shown(scene).filter((line) => line.kind !== "ghost" && line.kind !== "raw");
    const key = JSON.stringify([named.map((line) => [line.label, line.kind, line.colour]), this.lines.some((line) => line.kind === "ghost"), scene.numColours]);
    if (this.legend.dataset.key === key && this.values.every(({ line }, number) => line === named[number])) return;
    this.legend.dataset.key = key;
    this.legend.textContent = "";
    this.values = [];
    if (named.length <= MAX_LEGEND) {
      for (const line of named) {
        const entry = html("span", "entry " + line.kind, this.legend);
        if (line.label) {
          const swatch = html("span", "swatch", entry);
          if (line.colour !== undefined) swatch.style.setProperty("background", colourOf(line.colour, scene.numColours));
          html("span", "entry-label", entry, middle(line.label)).title = line.label;
        }
        this.values.push({ line, value: html("b", "", entry) });
      }
    }
    if (this.lines.some((line) => line.kind === "ghost")) {
      const entry = html("span", "entry ghost", this.legend);
      html("span", "swatch", entry);
      html("span", "entry-label", entry, "before a restart");
    }
  }

  private drawLine(line: Line, scene: Scene, inside: SVGElement, toY: (value: number) => number): number {
    const [start, end] = this.span(line, scene.view);
    const own = line.colour === undefined ? null : colourOf(line.colour, scene.numColours);
    const dot = (i: number, radius: number) => {
      const made = svg("circle", { class: "dot " + line.kind, cx: this.toX(line.x[i], scene.view).toFixed(1), cy: toY(line.y[i]!).toFixed(1), r: radius }, inside);
      if (own) made.style.setProperty("fill", own);
    };
    if (isDots(line.kind)) {
      for (let i = start; i < end; i++) if (line.y[i] !== null) dot(i, 2.6);
      return end - start;
    }
    let path = "";
    for (let i = start; i < end; i++) {
      if (line.y[i] === null) continue;
      const begins = i === start || line.y[i - 1] === null, ends = i === end - 1 || line.y[i + 1] === null;
      /* A value between two interruptions is a line without length. */
      if (begins && ends) { dot(i, 1.8); continue; }
      path += (begins ? "M" : "L") + this.toX(line.x[i], scene.view).toFixed(1) + " " + toY(line.y[i]!).toFixed(1);
    }
    const made = svg("path", { class: "curve " + line.kind, d: path }, inside);
    if (own) made.style.setProperty("stroke", own);
    return end - start;
  }

  private drawBroken(scene: Scene, inside: SVGElement): void {
    let free = -Infinity;
    for (const [step, value] of this.broken) {
      if (step < scene.view.from || step > scene.view.to) continue;
      const x = this.toX(step, scene.view);
      svg("line", { class: "not-a-number", x1: x.toFixed(1), x2: x.toFixed(1), y1: TOP + 12, y2: this.height }, inside);
      if (x < free) continue;
      free = x + 9;
      const mark = svg("text", { class: "broken", x: x.toFixed(1), y: TOP + 8, "text-anchor": "middle" }, inside, "✕");
      svg("title", {}, mark, `${place(step, scene.axis)}: ${value}`);
    }
  }

  private drawAxis(scene: Scene): void {
    const { view } = scene;
    for (const tick of ticks(view.from, view.to, Math.min(this.width / 110, 10))) {
      if (scene.axis === "step" && tick % 1 && view.to - view.from > 2) continue;
      const text = place(tick, scene.axis), x = this.toX(tick, view), atEdge = x + text.length * 3.6 > this.width;
      svg("text", { class: "tick", x: atEdge ? this.width : x.toFixed(1), y: this.height + 16, "text-anchor": atEdge ? "end" : "middle" }, this.picture, text);
    }
  }

  private drawEvents(scene: Scene, inside: SVGElement): void {
    const { view } = scene;
    const seen = scene.events.filter((event) => event.last >= view.from && event.first <= view.to);
    /* What happened at the same step has one mark. */
    const visible = seen.filter((event, index) => !index || event.first !== seen[index - 1].first);
    let free = -Infinity;
    visible.forEach((event, index) => {
      const x = this.toX(event.first, view), end = this.toX(event.last, view);
      if (end - x > 1) svg("rect", { class: `span ${event.tone}`, x, y: 0, width: end - x, height: this.height }, inside);
      const labels = seen.filter((other) => other.first === event.first).map((other) => other.label);
      const label = `step ${steps(event.step)}: ${labels.join("\n")}`;
      if (visible.length <= MAX_EVENT_LINES) {
        const line = svg("line", { class: `event ${event.tone}`, x1: x, x2: x, y1: this.hasMarks ? 14 : 0, y2: this.height }, inside);
        svg("title", {}, line, label);
      }
      if (!this.hasMarks) return;
      /* The step is written where it has room: after the mark, before it at the right edge, else not at all. */
      const sign = event.tone === "happened" ? "◇" : "▼";
      const size = (steps(event.step).length + 2) * 7;
      const next = index + 1 < visible.length ? this.toX(visible[index + 1].first, view) - 6 : Infinity;
      const after = x + size < Math.min(next, this.width - RIGHT), before = !after && next === Infinity && x - size > free;
      let text = sign;
      if (after) text = `${sign} ${steps(event.step)}`;
      else if (before) text = `${steps(event.step)} ${sign}`;
      const mark = svg("text", { class: `mark ${event.tone}`, x: before ? x + 5 : x - 5, y: 11, "text-anchor": before ? "end" : "start", "data-step": event.step, "data-event": scene.events.indexOf(event) }, inside, text);
      free = after ? x + size : x + 6;
      svg("title", {}, mark, label);
    });
  }

  /* The legend's values and the hair line, for where the pointer is. */
  point(scene: Scene): void {
    this.picture.querySelectorAll(".hair").forEach((hair) => hair.remove());
    for (const { line, value } of this.values) value.textContent = this.valueAt(line, scene);
    if (scene.at === null) return;
    const x = this.toX(scene.at, scene.view);
    svg("line", { class: "hair", x1: x, x2: x, y1: 0, y2: this.height }, this.picture);
  }

  private valueAt(line: Line, scene: Scene): string {
    if (!line.x.length) return "";
    const index = scene.at === null ? line.x.length - 1 : nearest(line.x, scene.at);
    const y = line.y[index];
    if (line.kind === "line" && scene.at !== null) {
      const bad = this.broken.find(([step]) => Math.abs(step - scene.at!) < Math.abs(line.x[index] - scene.at!) || step === line.x[index]);
      if (bad) return bad[1];
    }
    if (y === null) return "–";
    return digits(y) + (isDots(line.kind) && scene.at !== null ? ` at ${place(line.x[index], scene.axis)}` : "");
  }

  /* The value of every line at a place, by label. */
  valuesAt(at: number): Map<string, number> {
    const found = new Map<string, number>();
    for (const line of this.lines) {
      if (line.kind !== "line" || !line.x.length || at > line.x[line.x.length - 1]) continue;
      const y = line.y[nearest(line.x, at)];
      if (y !== null) found.set(line.label, y);
    }
    return found;
  }

  /* The step of the value that is nearest to a place. */
  stepAt(at: number): number {
    const line = this.lines.find((one) => one.kind === "line" && one.x.length);
    return line ? line.x[nearest(line.x, at)] : at;
  }

  /* The line nearest to a point of the picture. */
  near(scene: Scene, at: number, y: number): Near | null {
    const [low, high] = this.extent(scene);
    const scale = this.isLog(scene, low) ? Math.log : (value: number) => value;
    const wanted = scale(low) + (1 - (y - TOP) / (this.height - TOP - BOTTOM)) * (scale(high) - scale(low));
    const paths = [...this.picture.querySelectorAll<SVGElement>("path.curve")];
    const drawn = this.shown(scene).filter((line) => !isDots(line.kind));
    let best = Infinity, found: Near | null = null;
    drawn.forEach((line, number) => {
      if (line.kind !== "line" || !line.x.length || at > line.x[line.x.length - 1]) return;
      const value = line.y[nearest(line.x, at)];
      if (value === null) return;
      const distance = Math.abs(scale(value) - wanted);
      if (distance < best) { best = distance; found = { label: line.label, value, path: paths[number] ?? null }; }
    });
    return found;
  }

  /* All points as they are here, as a table. */
  table(axis: Axis): string {
    const quoted = (text: string) => `"${text.replace(/"/g, '""')}"`;
    const rows = this.lines.flatMap((line) => line.x.map((x, i) => `${quoted(line.label || this.id)},${line.kind},${x},${line.y[i] ?? ""}`));
    return [`line,kind,${axis},value`, ...rows].join("\n") + "\n";
  }
}
