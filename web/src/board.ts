/* Charts that share what they show: the stretch of the axis, its scale, the events and the pointer.

   Drag zooms, shift and drag moves, Ctrl and the wheel zooms, double click shows all; arrows and + - 0 do the same from the keyboard.
   A chart may be added before its points are there: they are asked for when it comes into view. With `load`, a closer look asks for the
   points of the stretch that is seen; what is there already is drawn meanwhile. */
import { Chart, LEFT, RIGHT, middle, type EventMark, type PanelData, type Scene, type View } from "./chart";
import { fileName, pictureOf, save } from "./download";
import { html, svg } from "./dom";
import { digits, place, steps, type Axis } from "./scale";

export interface CurveData {
  panels: PanelData[];
  events: EventMark[];
  axis?: Axis;
  whole?: [number, number] | null;
  missing?: string[];
  num_colours?: number;
  legend?: Record<string, number>;
}
export interface Options {
  /* The points of these panels (none: the usual ones) between two places, or all of them; null when the answer is not wanted any more. */
  load?: (ids: string[], stretch: View | null, width: number) => Promise<CurveData | null>;
  /* What a click on the mark of an event does; without it, a closer look. */
  open?: (event: EventMark) => void;
  /* The view has changed. */
  moved?: (view: View & { whole: boolean; log: boolean }) => void;
  /* The pointer has moved over a chart: the values there by label. */
  pointed?: (values: Map<string, number> | null) => void;
  /* The address of all values of a panel. */
  csv?: (id: string) => string;
  from?: number;
  to?: number;
  log?: boolean;
}

const WAIT_MS = 70, LAZY_MS = 30, AT_ONCE = 12, NEARBY = "300px";

export class Board {
  readonly charts = new Map<string, Chart>();
  readonly hidden = new Set<string>();
  private readonly box: HTMLElement;
  private readonly range: HTMLElement;
  private readonly buttons: Record<"back" | "on" | "log" | "reset", HTMLButtonElement>;
  private readonly label = html("div", "hover-label");
  private readonly watch: IntersectionObserver;
  private readonly resized: ResizeObserver;
  private main: Chart[] = [];
  private lazy = new Set<Chart>();
  private all: View = { from: 0, to: 1 };
  private scene: Scene;
  private hasData = false;
  private drag: { x: number; view: View; moves: boolean; chart: Chart } | null = null;
  private timer = 0;
  private lazyTimer = 0;
  private isAsking = false;
  private numOutdated = 0;
  private width = 0;

  constructor(private readonly root: HTMLElement, private readonly options: Options = {}) {
    root.textContent = "";
    root.tabIndex = 0;
    root.setAttribute("data-own", "");
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
      log: button("log scale", "log scale", () => this.setLog(!this.scene.log)),
      reset: button("show all", "show all", () => this.showAll()),
    };
    this.box = html("div", "panels", root);
    this.scene = { view: { from: 0, to: 1 }, axis: "step", log: options.log ?? false, events: [], hidden: this.hidden, numColours: 0, at: null };
    this.buttons.log.setAttribute("aria-pressed", String(this.scene.log));
    this.label.setAttribute("aria-hidden", "true");
    root.addEventListener("keydown", (event) => this.key(event));
    this.watch = new IntersectionObserver((seen) => this.seen(seen), { rootMargin: NEARBY });
    /* A notebook shows a frame before it has a width: whatever the width becomes, it is drawn for it. */
    this.resized = new ResizeObserver(() => { if (root.clientWidth !== this.width) this.draw(); });
    this.resized.observe(root);
    addEventListener("beforeprint", () => this.draw());
  }

  end(): void { this.watch.disconnect(); this.resized.disconnect(); clearTimeout(this.timer); clearTimeout(this.lazyTimer); this.label.remove(); }

  get log(): boolean { return this.scene.log; }
  get isWhole(): boolean { return this.scene.view.from <= this.all.from && this.scene.view.to >= this.all.to; }
  get last(): number { return this.all.to; }

  /* The panels of `data` are those of the board itself, one below the other. */
  show(data: CurveData): void {
    const first = !this.hasData, whole = this.isWhole;
    this.common(data);
    const ids = data.panels.map((panel) => panel.id);
    if (ids.join("\n") !== this.main.map((chart) => chart.id).join("\n")) {
      this.main.forEach((chart) => { this.charts.delete(chart.id); chart.element.remove(); });
      this.main = ids.map((id, number) => this.add(id, this.box, number === ids.length - 1, number === 0));
    }
    data.panels.forEach((panel, number) => this.main[number].take(panel));
    if (first) {
      this.scene.view = { from: this.options.from ?? this.all.from, to: this.options.to ?? this.all.to };
      this.clamp(this.scene.view.from, this.scene.view.to);
    } else if (whole) this.scene.view = { ...this.all };
    this.hasData = true;
    this.draw();
  }

  /* What came after the points that are here. False if it does not fit them. */
  append(data: CurveData): boolean {
    if (data.panels.map((panel) => panel.id).join("\n") !== this.main.map((chart) => chart.id).join("\n")) return false;
    if (!data.panels.every((panel, number) => this.main[number].append(panel))) return false;
    const whole = this.isWhole;
    this.scene.events = data.events;
    if (data.whole) this.all.to = Math.max(this.all.to, data.whole[1]);
    if (whole) this.scene.view = { ...this.all };
    this.draw();
    return true;
  }

  /* A chart elsewhere on the page, whose points are asked for when it is seen. */
  addLazy(id: string, parent: Element): Chart {
    const chart = this.add(id, parent, true, false);
    chart.isSeen = false;
    chart.isStale = true;
    this.lazy.add(chart);
    this.watch.observe(chart.element);
    return chart;
  }

  /* More may have been recorded of the charts elsewhere. */
  outdate(): void {
    this.markStale();
    this.askLazy();
  }

  setLog(log: boolean): void {
    this.scene.log = log;
    this.buttons.log.setAttribute("aria-pressed", String(log));
    this.draw();
    this.tell();
  }

  hide(labels: Iterable<string>): void {
    this.hidden.clear();
    for (const label of labels) this.hidden.add(label);
    this.draw();
  }

  private add(id: string, parent: Element, hasAxis: boolean, hasMarks: boolean): Chart {
    const chart = new Chart(id, parent, hasAxis, hasMarks);
    this.charts.set(id, chart);
    this.listen(chart);
    if (this.options.csv) {
      const link = html("a", "", chart.links, "CSV");
      link.href = this.options.csv(id);
      link.setAttribute("download", "");
      link.setAttribute("aria-label", `${id} as CSV`);
      link.dataset.csv = id;
    } else {
      const points = html("button", "link", chart.links, "CSV");
      points.type = "button";
      points.setAttribute("aria-label", `${id} as CSV`);
      points.addEventListener("click", () => save(fileName(id, "csv"), "text/csv", chart.table(this.scene.axis)));
    }
    const picture = html("button", "link", chart.links, "SVG");
    picture.type = "button";
    picture.setAttribute("aria-label", `${id} as SVG`);
    picture.addEventListener("click", () => save(fileName(id, "svg"), "image/svg+xml", pictureOf(chart.picture, id)));
    return chart;
  }

  private common(data: CurveData): void {
    this.scene.events = data.events;
    if ((data.axis ?? "step") !== this.scene.axis) { this.scene.axis = data.axis ?? "step"; this.hasData = false; }
    this.scene.numColours = data.num_colours ?? this.scene.numColours;
    let [from, to] = data.whole ?? [Infinity, -Infinity];
    if (!(to > from)) { const middleOf = isFinite(from) ? from : 0; from = middleOf - 0.5; to = middleOf + 0.5; }
    if (data.whole || !this.hasData) this.all = { from, to };
  }

  /* ---- points that are asked for ---- */
  private stretch(): View | null { return this.isWhole ? null : { ...this.scene.view }; }

  /* Ask for the points of what is seen, once the hand rests. */
  ask(wait = WAIT_MS): void {
    const load = this.options.load;
    if (!load) return;
    this.markStale();
    clearTimeout(this.timer);
    this.timer = setTimeout(async () => {
      if (this.main.length) {
        const data = await load([], this.stretch(), this.root.clientWidth);
        if (data) this.show(data);
      }
      this.askLazy();
    }, wait);
  }

  private markStale(): void {
    this.numOutdated += 1;
    for (const chart of this.lazy) chart.isStale = true;
  }

  private seen(entries: IntersectionObserverEntry[]): void {
    for (const entry of entries) {
      const chart = [...this.lazy].find((one) => one.element === entry.target);
      if (!chart) continue;
      chart.isSeen = entry.isIntersecting;
      if (chart.isSeen && chart.isLoaded) { chart.draw(this.scene); chart.point(this.scene); }
    }
    this.askLazy();
  }

  private askLazy(): void {
    clearTimeout(this.lazyTimer);
    this.lazyTimer = setTimeout(() => void this.loadLazy(), LAZY_MS);
  }

  /* One request at a time: what comes into view meanwhile is asked for after it. */
  private async loadLazy(): Promise<void> {
    if (this.isAsking) return;
    this.isAsking = true;
    for (let wanted = this.wanted(); wanted.length; wanted = this.wanted()) {
      const asked = this.numOutdated;
      const data = await this.options.load?.(wanted.map((chart) => chart.id), this.stretch(), wanted[0].element.clientWidth);
      if (!data) break;
      this.takeLazy(data, wanted);
      /* The view moved, or more was recorded, since they were asked for. */
      wanted.forEach((chart) => { chart.isStale = asked !== this.numOutdated; });
    }
    this.isAsking = false;
  }

  private wanted(): Chart[] {
    return [...this.lazy].filter((chart) => chart.isSeen && chart.isStale && chart.element.isConnected).slice(0, AT_ONCE);
  }

  private takeLazy(data: CurveData, wanted: Chart[]): void {
    const whole = this.isWhole;
    if (!this.hasData && data.whole) { this.common(data); this.hasData = true; this.scene.view = { ...this.all }; }
    else if (data.whole && !this.main.length) {
      this.all = { from: Math.min(this.all.from, data.whole[0]), to: Math.max(this.all.to, data.whole[1]) };
      if (whole) this.scene.view = { ...this.all };
    }
    const found = new Map(data.panels.map((panel) => [panel.id, panel]));
    wanted.forEach((chart) => {
      const panel = found.get(chart.id);
      if (panel) chart.take(panel);
      chart.draw(this.scene);
      chart.point(this.scene);
      chart.element.dataset.drawn = "true";
    });
    if (!this.main.length) this.draw();
  }

  /* ---- drawing ---- */
  draw(): void {
    if (!this.root.isConnected) return this.end();
    this.width = this.root.clientWidth;
    let drawn = 0;
    for (const chart of this.main) drawn += chart.draw(this.scene);
    for (const chart of this.lazy) if (chart.isSeen && chart.isLoaded) drawn += chart.draw(this.scene);
    this.buttons.reset.hidden = this.buttons.back.hidden = this.buttons.on.hidden = this.isWhole;
    Object.assign(this.root.dataset, { drawn: "true", points: drawn, from: this.scene.view.from, to: this.scene.view.to });
    this.drawPointer();
  }

  private *visible(): Iterable<Chart> {
    yield* this.main;
    for (const chart of this.lazy) if (chart.isSeen && chart.isLoaded) yield chart;
  }

  private drawPointer(over?: { chart: Chart; event: PointerEvent }): void {
    const { scene } = this;
    for (const chart of this.visible()) chart.point(scene);
    const view = `${scene.axis === "step" ? "steps " : ""}${place(scene.view.from, scene.axis)} to ${place(scene.view.to, scene.axis)}`;
    if (scene.at === null || !over) {
      this.range.textContent = view;
      this.label.remove();
      this.options.pointed?.(null);
      return;
    }
    const at = scene.axis === "step" ? over.chart.stepAt(scene.at) : scene.at;
    this.range.textContent = scene.axis === "step" ? `step ${steps(at)}` : place(at, scene.axis);
    this.options.pointed?.(over.chart.valuesAt(scene.at));
    this.name(over.chart, over.event);
  }

  /* The name of the line nearest to the pointer, if there are several. */
  private name(chart: Chart, event: PointerEvent): void {
    chart.picture.querySelectorAll(".near").forEach((path) => path.classList.remove("near"));
    const labels = new Set(chart.lines.filter((line) => line.kind === "line").map((line) => line.label));
    const y = event.clientY - chart.picture.getBoundingClientRect().top;
    const near = labels.size > 1 ? chart.near(this.scene, this.scene.at!, y) : null;
    if (!near) return this.label.remove();
    near.path?.classList.add("near");
    this.label.textContent = `${middle(near.label, 60)}  ${digits(near.value)}`;
    document.body.append(this.label);
    this.label.style.setProperty("left", `${Math.max(4, Math.min(event.clientX + 14, innerWidth - this.label.offsetWidth - 8))}px`);
    this.label.style.setProperty("top", `${Math.max(4, event.clientY - this.label.offsetHeight - 10)}px`);
  }

  /* ---- moving about ---- */
  private clamp(from: number, to: number): void {
    const { all } = this;
    const least = Math.min(this.scene.axis === "step" ? 4 : (all.to - all.from) / 1e6, all.to - all.from);
    if (to - from < least) { const centre = (from + to) / 2; from = centre - least / 2; to = centre + least / 2; }
    const span = Math.min(to - from, all.to - all.from);
    const start = Math.min(Math.max(from, all.from), all.to - span);
    this.scene.view = { from: start, to: start + span };
  }

  zoom(from: number, to: number): void {
    this.clamp(from, to);
    this.draw();
    this.tell();
    this.ask();
  }

  showAll(): void { this.zoom(this.all.from, this.all.to); }
  move(share: number): void {
    const { from, to } = this.scene.view, by = (to - from) * share;
    this.zoom(from + by, to + by);
  }
  private zoomAround(at: number, factor: number): void {
    const { from, to } = this.scene.view;
    this.zoom(at - (at - from) * factor, at + (to - at) * factor);
  }
  private tell(): void { this.options.moved?.({ ...this.scene.view, whole: this.isWhole, log: this.scene.log }); }

  private within(event: MouseEvent, chart: Chart): number {
    return Math.min(Math.max(event.clientX - chart.picture.getBoundingClientRect().left, LEFT), chart.width - RIGHT);
  }
  private toPlace(x: number, chart: Chart): number {
    const { from, to } = this.scene.view;
    return from + (x - LEFT) / (chart.width - LEFT - RIGHT) * (to - from);
  }

  private listen(chart: Chart): void {
    const { picture } = chart;
    picture.addEventListener("wheel", (event) => {
      /* The plain wheel scrolls the page, always. */
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoomAround(this.toPlace(this.within(event, chart), chart), Math.exp(Math.max(Math.min(event.deltaY, 120), -120) * 0.004));
    }, { passive: false });
    picture.addEventListener("pointerdown", (event) => {
      if (event.button || (event.target as Element).classList.contains("mark")) return;
      this.drag = { x: this.within(event, chart), view: { ...this.scene.view }, moves: event.shiftKey, chart };
      try { picture.setPointerCapture(event.pointerId); } catch { /* a pointer that is not there cannot be held */ }
    });
    picture.addEventListener("pointermove", (event) => {
      const x = this.within(event, chart), { drag } = this;
      this.scene.at = this.toPlace(x, chart);
      if (drag?.moves) {
        const by = (drag.x - x) / (chart.width - LEFT - RIGHT) * (drag.view.to - drag.view.from);
        return this.zoom(drag.view.from + by, drag.view.to + by);
      }
      this.drawPointer({ chart, event });
      this.drawBrush(x);
    });
    picture.addEventListener("pointerup", (event) => {
      const start = this.drag, end = this.within(event, chart);
      this.drag = null;
      this.drawBrush(end);
      if (start && !start.moves && Math.abs(end - start.x) > 6) {
        this.zoom(this.toPlace(Math.min(start.x, end), chart), this.toPlace(Math.max(start.x, end), chart));
      }
    });
    const left = () => { this.scene.at = null; this.drawPointer(); };
    picture.addEventListener("pointercancel", () => { this.drag = null; this.drawBrush(0); left(); });
    picture.addEventListener("pointerleave", () => { if (this.drag === null) left(); });
    picture.addEventListener("dblclick", () => this.showAll());
    picture.addEventListener("click", (event) => {
      const number = (event.target as SVGElement).dataset?.event;
      const clicked = number === undefined ? null : this.scene.events[Number(number)];
      if (!clicked) return;
      if (this.options.open) return this.options.open(clicked);
      const half = Math.max(clicked.last - clicked.first, 20) * 1.5;
      this.zoom(clicked.first - half, clicked.last + half);
    });
  }

  private drawBrush(x: number): void {
    const { drag } = this;
    this.root.ownerDocument.querySelectorAll(".brush").forEach((brush) => brush.remove());
    if (!drag || drag.moves || Math.abs(drag.x - x) <= 3) return;
    /* Charts below one another are as wide, and are zoomed together. */
    const charts = this.main.includes(drag.chart) ? this.main : [drag.chart];
    for (const chart of charts) {
      svg("rect", { class: "brush", x: Math.min(drag.x, x), y: 0, width: Math.abs(x - drag.x), height: chart.height }, chart.picture);
    }
  }

  private key(event: KeyboardEvent): void {
    const { from, to } = this.scene.view, centre = (from + to) / 2;
    const actions: Record<string, () => void> = {
      "+": () => this.zoomAround(centre, 0.6), "-": () => this.zoomAround(centre, 1.7), "0": () => this.showAll(),
      ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2),
    };
    if (event.target !== this.root || !actions[event.key] || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    actions[event.key]();
  }
}
