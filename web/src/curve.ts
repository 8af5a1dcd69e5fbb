/* Draws curves as SVG: panels one below the other that share their axis. Wheel or drag zooms, shift and drag moves, double click shows all,
   arrows and + - 0 do the same from the keyboard; the legend of a panel shows the values under the pointer. Text goes in as text only.
   With `load`, a closer look asks for the points of the stretch that is seen; what is there already is drawn meanwhile. */
import { html, svg } from "./dom";
import { digits, logTicks, nearest, place, position, steps, ticks, type Axis } from "./scale";

export interface LineData { label: string; kind: string; dx: number[]; y: number[] }
export interface EventMark { first: number; last: number; label: string }
export interface PanelData { title: string; height: number; lines: LineData[]; broken: [number, string][] }
export interface CurveData { panels: PanelData[]; events: EventMark[]; axis?: Axis; whole?: [number, number] }
export interface Options {
  /* The points between two places, for a picture so wide; null when the answer is not wanted any more. */
  load?: (from: number, to: number, width: number) => Promise<CurveData | null>;
  /* What a click on the mark of an event does; without it, a closer look. */
  open?: (event: EventMark) => void;
  /* The view has changed. */
  moved?: (view: { from: number; to: number; whole: boolean; log: boolean }) => void;
  from?: number;
  to?: number;
  log?: boolean;
}
interface Line { label: string; kind: string; x: number[]; y: number[] }
interface Panel { title: string; height: number; lines: Line[]; broken: [number, string][]; index: number; last: boolean; picture: SVGElement; values: { line: Line; value: HTMLElement }[] }

const LEFT = 56, RIGHT = 12, TOP = 8, BOTTOM = 8, AXIS = 22, MAX_LEGEND = 6, WAIT_MS = 70;

const summed = (dx: number[]): number[] => { let x = 0; return dx.map((one) => (x += one)); };
const kindOf = (line: Line) => line.kind.split(" ")[0];

export class Curves {
  private all = { from: 0, to: 1 };
  private view = { from: 0, to: 1 };
  private panels: Panel[] = [];
  private events: EventMark[] = [];
  private axis: Axis = "step";
  private shape = "";
  private pointer: { x: number; y: number; panel: number } | null = null;
  private drag: { x: number; from: number; to: number; moves: boolean } | null = null;
  private width = 600;
  private timer = 0;
  private readonly range: HTMLElement;
  private readonly buttons: Record<"back" | "on" | "log" | "reset", HTMLButtonElement>;
  private readonly box: HTMLElement;

  constructor(private readonly root: HTMLElement, data: CurveData, private readonly options: Options = {}) {
    root.textContent = "";
    root.tabIndex = 0;
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", "curves: + and - zoom, arrows move, 0 shows all");
    const tools = html("div", "tools", root);
    this.range = html("span", "range", tools);
    const button = (text: string, label: string, act: () => void) => {
      const made = html("button", "", tools, text);
      made.type = "button";
      made.setAttribute("aria-label", label);
      made.addEventListener("click", act);
      return made;
    };
    this.buttons = {
      back: button("‹", "earlier", () => this.move(-0.5)),
      on: button("›", "later", () => this.move(0.5)),
      log: button("log scale", "log scale", () => this.setLog(!this.log)),
      reset: button("show all", "show all", () => this.showAll()),
    };
    this.box = html("div", "panels", root);
    this.setLog(options.log ?? false, false);
    this.take(data);
    this.view = { from: options.from ?? this.all.from, to: options.to ?? this.all.to };
    this.zoom(this.view.from, this.view.to, false);
    root.addEventListener("keydown", (event) => this.key(event));
    const redraw = () => {
      if (root.isConnected) this.draw();
      else { removeEventListener("resize", redraw); removeEventListener("beforeprint", redraw); }
    };
    addEventListener("resize", redraw);
    addEventListener("beforeprint", redraw);
  }

  get log(): boolean { return this.buttons.log.getAttribute("aria-pressed") === "true"; }
  get seen(): { from: number; to: number } { return { ...this.view }; }
  get isWhole(): boolean { return this.view.from <= this.all.from && this.view.to >= this.all.to; }
  get end(): number { return this.all.to; }

  /* Other data for the same picture; who sees all of it goes on seeing all. */
  replace(data: CurveData): void {
    const whole = this.isWhole;
    this.take(data);
    if (whole) this.view = { ...this.all };
    this.draw();
  }

  /* What came after the points that are here: `data` begins at or before the last of them. False when it is of another shape. */
  append(data: CurveData): boolean {
    if (this.shapeOf(data) !== this.shape) return false;
    const whole = this.isWhole;
    data.panels.forEach((panel, index) => panel.lines.forEach((line, number) => {
      const old = this.panels[index].lines[number], x = summed(line.dx);
      if (!x.length) return;
      const keep = position(old.x, x[0]);
      old.x = old.x.slice(0, keep).concat(x);
      old.y = old.y.slice(0, keep).concat(line.y);
    }));
    data.panels.forEach((panel, index) => { this.panels[index].broken.push(...panel.broken.filter(([step]) => !this.panels[index].broken.some(([one]) => one === step))); });
    this.events = data.events;
    if (data.whole) this.all.to = data.whole[1];
    if (whole) this.view = { ...this.all };
    this.draw();
    return true;
  }

  setLog(log: boolean, redraw = true): void {
    this.buttons.log.setAttribute("aria-pressed", String(log));
    if (redraw) { this.draw(); this.tell(); }
  }

  private shapeOf(data: CurveData): string {
    return JSON.stringify(data.panels.map((panel) => [panel.title, panel.lines.map((line) => [line.label, line.kind])]));
  }

  private take(data: CurveData): void {
    const shape = this.shapeOf(data);
    this.events = data.events;
    this.axis = data.axis ?? "step";
    if (shape === this.shape) {
      data.panels.forEach((panel, index) => {
        panel.lines.forEach((line, number) => Object.assign(this.panels[index].lines[number], { x: summed(line.dx), y: line.y }));
        this.panels[index].broken = panel.broken;
      });
    } else {
      this.shape = shape;
      this.box.textContent = "";
      this.panels = data.panels.map((panel, index) => this.build(panel, index, index === data.panels.length - 1));
    }
    let from = Infinity, to = -Infinity;
    for (const panel of this.panels) {
      for (const line of panel.lines) {
        from = Math.min(from, line.x[0] ?? from);
        to = Math.max(to, line.x[line.x.length - 1] ?? to);
      }
      for (const [step] of panel.broken) { from = Math.min(from, step); to = Math.max(to, step); }
    }
    if (data.whole) [from, to] = data.whole;
    if (!(to > from)) { const middle = isFinite(from) ? from : 0; from = middle - 0.5; to = middle + 0.5; }
    this.all = { from, to };
  }

  private build(data: PanelData, index: number, last: boolean): Panel {
    const box = html("div", "panel", this.box);
    const head = html("div", "panel-head", box);
    html("span", "panel-title", head, data.title);
    const legend = html("span", "panel-legend", head);
    const lines = data.lines.map((line) => ({ label: line.label, kind: line.kind, x: summed(line.dx), y: line.y }));
    const named = lines.filter((line) => kindOf(line) !== "ghost" && kindOf(line) !== "raw");
    const values = named.length > MAX_LEGEND ? [] : named.map((line) => {
      const entry = html("span", "entry " + line.kind, legend);
      if (line.label) { html("span", "swatch", entry); html("span", "entry-label", entry, line.label); }
      return { line, value: html("b", "", entry) };
    });
    if (lines.some((line) => kindOf(line) === "ghost")) {
      const entry = html("span", "entry ghost", legend);
      html("span", "swatch", entry);
      html("span", "entry-label", entry, "before a restart");
    }
    const height = data.height + (last ? AXIS : 0);
    const picture = svg("svg", { height, role: "img", "aria-label": `${data.title} over ${this.axis === "step" ? "steps" : this.axis}` }, box);
    this.listen(picture, index);
    return { title: data.title, height: data.height, lines, broken: data.broken, index, last, picture, values };
  }

  private toX(at: number): number { return LEFT + (at - this.view.from) / (this.view.to - this.view.from) * (this.width - LEFT - RIGHT); }
  private toPlace(x: number): number { return this.view.from + (x - LEFT) / (this.width - LEFT - RIGHT) * (this.view.to - this.view.from); }
  private span(line: Line): [number, number] {
    return [Math.max(position(line.x, this.view.from) - 1, 0), Math.min(position(line.x, this.view.to) + 1, line.x.length)];
  }

  private extent(panel: Panel): [number, number] {
    let low = Infinity, high = -Infinity;
    for (const line of panel.lines) {
      const [start, end] = this.span(line);
      for (let i = start; i < end; i++) {
        if (line.x[i] < this.view.from || line.x[i] > this.view.to) continue;
        low = Math.min(low, line.y[i]);
        high = Math.max(high, line.y[i]);
      }
    }
    if (low > high) return [0, 1];
    if (low === high) { const room = Math.abs(low) * 0.1 || 1; return [low - room, high + room]; }
    return [low, high];
  }

  private drawPanel(panel: Panel): number {
    const { picture, height } = panel;
    picture.textContent = "";
    picture.setAttribute("width", String(this.width));
    picture.setAttribute("viewBox", `0 0 ${this.width} ${height + (panel.last ? AXIS : 0)}`);
    const [low, high] = this.extent(panel);
    const log = this.log && low > 0;
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
    const clip = svg("clipPath", { id: "clip" + panel.index }, picture);
    svg("rect", { x: LEFT - 3, y: 0, width: this.width - LEFT - RIGHT + 6, height }, clip);
    const inside = svg("g", { "clip-path": `url(#clip${panel.index})` }, picture);
    this.drawEvents(panel, inside, height);
    let drawn = 0;
    for (const line of panel.lines) drawn += this.drawLine(line, inside, toY);
    for (const [step, value] of panel.broken) {
      if (step < this.view.from || step > this.view.to) continue;
      const mark = svg("text", { class: "broken", x: this.toX(step).toFixed(1), y: TOP + 8, "text-anchor": "middle" }, inside, "✕");
      svg("title", {}, mark, `step ${steps(step)}: ${value}`);
    }
    if (panel.last) {
      for (const tick of ticks(this.view.from, this.view.to, Math.min(this.width / 110, 10))) {
        if (this.axis === "step" && tick % 1 && this.view.to - this.view.from > 2) continue;
        const text = place(tick, this.axis), x = this.toX(tick), atEdge = x + text.length * 3.6 > this.width;
        svg("text", { class: "tick", x: atEdge ? this.width : x.toFixed(1), y: height + 16, "text-anchor": atEdge ? "end" : "middle" }, picture, text);
      }
    }
    return drawn;
  }

  private drawLine(line: Line, inside: SVGElement, toY: (value: number) => number): number {
    const [start, end] = this.span(line);
    if (kindOf(line) === "dots" || end - start === 1) {
      for (let i = start; i < end; i++) {
        svg("circle", { class: "dot " + line.kind, cx: this.toX(line.x[i]).toFixed(1), cy: toY(line.y[i]).toFixed(1), r: 2.6 }, inside);
      }
      return end - start;
    }
    let path = "";
    for (let i = start; i < end; i++) path += (i > start ? "L" : "M") + this.toX(line.x[i]).toFixed(1) + " " + toY(line.y[i]).toFixed(1);
    svg("path", { class: "curve " + line.kind, d: path }, inside);
    return end - start;
  }

  private drawEvents(panel: Panel, inside: SVGElement, height: number): void {
    const visible = this.events.filter((event) => event.last >= this.view.from && event.first <= this.view.to);
    let free = -Infinity;
    visible.forEach((event, index) => {
      const x = this.toX(event.first), end = this.toX(event.last);
      if (end - x > 1) svg("rect", { class: "span", x, y: 0, width: end - x, height }, inside);
      const line = svg("line", { class: "event", x1: x, x2: x, y1: panel.index ? 0 : 14, y2: height }, inside);
      svg("title", {}, line, `step ${steps(event.first)}: ${event.label}`);
      if (panel.index) return;
      /* The step is written where it has room: after the mark, before it at the right edge, else not at all. */
      const size = (steps(event.first).length + 2) * 7;
      const next = index + 1 < visible.length ? this.toX(visible[index + 1].first) - 6 : Infinity;
      const after = x + size < Math.min(next, this.width - RIGHT), before = !after && next === Infinity && x - size > free;
      const text = after ? `▼ ${steps(event.first)}` : before ? `${steps(event.first)} ▼` : "▼";
      const mark = svg("text", { class: "mark", x: before ? x + 5 : x - 5, y: 11, "text-anchor": before ? "end" : "start" }, inside, text);
      free = after ? x + size : x + 6;
      svg("title", {}, mark, `${event.label} at step ${steps(event.first)}: click to look closer`);
      mark.addEventListener("click", () => {
        if (this.options.open) return this.options.open(event);
        const half = Math.max(event.last - event.first, 20) * 1.5;
        this.zoom(event.first - half, event.last + half);
      });
    });
  }

  private drawPointer(): void {
    const { pointer, drag } = this;
    const at = pointer === null ? null : this.toPlace(pointer.x);
    for (const panel of this.panels) {
      panel.picture.querySelectorAll(".hair, .brush").forEach((one) => one.remove());
      if (drag && !drag.moves && pointer && Math.abs(drag.x - pointer.x) > 3) {
        svg("rect", { class: "brush", x: Math.min(drag.x, pointer.x), y: 0, width: Math.abs(pointer.x - drag.x), height: panel.height }, panel.picture);
      }
      for (const { line, value } of panel.values) {
        if (!line.x.length) { value.textContent = ""; continue; }
        const index = at === null ? line.x.length - 1 : nearest(line.x, at);
        value.textContent = digits(line.y[index]) + (kindOf(line) === "dots" && at !== null ? ` at ${steps(line.x[index])}` : "");
      }
      if (pointer) svg("line", { class: "hair", x1: pointer.x, x2: pointer.x, y1: 0, y2: panel.height }, panel.picture);
    }
    this.range.textContent = at === null
      ? `${this.axis === "step" ? "steps " : ""}${place(this.view.from, this.axis)} to ${place(this.view.to, this.axis)}`
      : this.under(at);
  }

  /* What is under the pointer: the place, and where lines are too many for a legend the one nearest to it. */
  private under(at: number): string {
    const panel = this.panels[this.pointer?.panel ?? 0];
    const first = panel?.lines.find((one) => kindOf(one) === "line" && one.x.length);
    const where = this.axis === "step" ? `step ${steps(first && this.panels.length && panel.values.length === 1 ? first.x[nearest(first.x, at)] : at)}` : place(at, this.axis);
    if (!panel || panel.values.length || !this.pointer) return where;
    const paths = [...panel.picture.querySelectorAll<SVGElement>("path.curve")];
    paths.forEach((one) => one.classList.remove("near"));
    const [low, high] = this.extent(panel);
    const scale = this.log && low > 0 ? Math.log : (value: number) => value;
    const share = 1 - (this.pointer.y - TOP) / (panel.height - TOP - BOTTOM);
    const wanted = scale(low) + share * (scale(high) - scale(low));
    let best = Infinity, text = "", number = -1;
    panel.lines.filter((line) => kindOf(line) !== "dots").forEach((line, index) => {
      if (!line.x.length || kindOf(line) === "raw" || at > line.x[line.x.length - 1]) return;
      const value = line.y[nearest(line.x, at)], distance = Math.abs(scale(value) - wanted);
      if (distance < best) { best = distance; text = ` · ${line.label} ${digits(value)}`; number = index; }
    });
    paths[number]?.classList.add("near");
    return where + text;
  }

  draw(): void {
    this.width = Math.max(this.root.clientWidth, 240);
    let drawn = 0;
    for (const panel of this.panels) drawn += this.drawPanel(panel);
    this.buttons.reset.hidden = this.buttons.back.hidden = this.buttons.on.hidden = this.isWhole;
    Object.assign(this.root.dataset, { drawn: "true", points: drawn, from: this.view.from, to: this.view.to });
    this.drawPointer();
  }

  zoom(from: number, to: number, ask = true): void {
    const { all } = this;
    const least = Math.min(this.axis === "step" ? 4 : (all.to - all.from) / 1e6, all.to - all.from);
    if (to - from < least) { const middle = (from + to) / 2; from = middle - least / 2; to = middle + least / 2; }
    const span = Math.min(to - from, all.to - all.from);
    this.view.from = Math.min(Math.max(from, all.from), all.to - span);
    this.view.to = this.view.from + span;
    this.draw();
    if (ask) { this.tell(); this.ask(); }
  }

  showAll(): void { this.zoom(this.all.from, this.all.to); }
  move(share: number): void { const by = (this.view.to - this.view.from) * share; this.zoom(this.view.from + by, this.view.to + by); }
  private zoomAround(at: number, factor: number): void { this.zoom(at - (at - this.view.from) * factor, at + (this.view.to - at) * factor); }
  private tell(): void { this.options.moved?.({ ...this.view, whole: this.isWhole, log: this.log }); }

  /* Ask for the points of what is seen, once the hand rests. */
  ask(wait = WAIT_MS): void {
    const load = this.options.load;
    if (!load) return;
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      const data = await load(this.view.from, this.view.to, this.width);
      if (data) this.replace(data);
    }, wait);
  }

  private within(event: MouseEvent): number {
    return Math.min(Math.max(event.clientX - this.root.getBoundingClientRect().left, LEFT), this.width - RIGHT);
  }

  private listen(picture: SVGElement, panel: number): void {
    picture.addEventListener("wheel", (event) => {
      if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
        if (this.isWhole) return;
        event.preventDefault();
        return this.move(Math.sign(event.deltaX) * 0.08);
      }
      if (event.deltaY > 0 && this.isWhole) return; /* all is seen already: let the page scroll */
      event.preventDefault();
      this.zoomAround(this.toPlace(this.within(event)), Math.exp(Math.max(Math.min(event.deltaY, 120), -120) * 0.004));
    }, { passive: false });
    picture.addEventListener("pointerdown", (event) => {
      if (event.button || (event.target as Element).classList.contains("mark")) return;
      this.drag = { x: this.within(event), ...this.view, moves: event.shiftKey };
      try { picture.setPointerCapture(event.pointerId); } catch { /* a pointer that is not there cannot be held */ }
    });
    picture.addEventListener("pointermove", (event) => {
      this.pointer = { x: this.within(event), y: event.clientY - picture.getBoundingClientRect().top, panel };
      if (this.drag?.moves) {
        const by = (this.drag.x - this.pointer.x) / (this.width - LEFT - RIGHT) * (this.drag.to - this.drag.from);
        return this.zoom(this.drag.from + by, this.drag.to + by);
      }
      this.drawPointer();
    });
    picture.addEventListener("pointerup", (event) => {
      const start = this.drag, end = this.within(event);
      this.drag = null;
      if (start && !start.moves && Math.abs(end - start.x) > 6) this.zoom(this.toPlace(Math.min(start.x, end)), this.toPlace(Math.max(start.x, end)));
      else this.drawPointer();
    });
    picture.addEventListener("pointercancel", () => { this.drag = null; this.pointer = null; this.drawPointer(); });
    picture.addEventListener("pointerleave", () => { if (this.drag === null) { this.pointer = null; this.drawPointer(); } });
    picture.addEventListener("dblclick", () => this.showAll());
  }

  private key(event: KeyboardEvent): void {
    const middle = (this.view.from + this.view.to) / 2;
    const actions: Record<string, () => void> = {
      "+": () => this.zoomAround(middle, 0.6), "-": () => this.zoomAround(middle, 1.7), "0": () => this.showAll(),
      ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2),
    };
    if (event.target !== this.root || !actions[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  }
}
