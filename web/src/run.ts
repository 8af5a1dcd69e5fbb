/* The curves of one run: the usual ones, every other metric in sections that fold, and what comes while it goes on. */
import { Board, type CurveData, type Options } from "./board";
import { html } from "./dom";
import { address, fetchData, find, follow, leave, refresh, remember, type Slot } from "./page";

const MAX_APPENDED = 600, SECTIONS_OPEN = 6, METRICS_OPEN = 12;

interface Section { name: string; metrics: string[] }

export const pointsFor = (width: number) => String(Math.round(Math.min(Math.max(width * 1.6, 400), 1800)));
export const number = (text: string | null | undefined) => (text === null || text === undefined || text === "" || !isFinite(Number(text)) ? undefined : Number(text));
export const viewOptions = (): Pick<Options, "from" | "to" | "log" | "moved"> => {
  const query = address().searchParams;
  return {
    from: number(query.get("from")), to: number(query.get("to")), log: query.get("log") === "1",
    moved: ({ from, to, whole, log }) => remember({ from: whole ? null : String(+from.toPrecision(10)), to: whole ? null : String(+to.toPrecision(10)), log: log ? "1" : null }),
  };
};
export const sayMissing = (text: string | null) => {
  const place = find("missing");
  if (place && place.textContent !== (text ?? "")) place.textContent = text ?? "";
};

/* What a filter finds: a regular expression if it is one, else a part of the name. */
const matcher = (text: string): ((name: string) => boolean) => {
  if (!text) return () => true;
  try {
    const pattern = new RegExp(text, "i");
    return (name) => pattern.test(name);
  } catch {
    return (name) => name.toLowerCase().includes(text.toLowerCase());
  }
};

/* All other metrics, in sections by prefix; nothing that is drawn is touched when more of them come. */
class Sections {
  private readonly parts = new Map<string, { element: HTMLDetailsElement; grid: HTMLElement; count: HTMLElement; panels: Map<string, HTMLElement> }>();

  constructor(private readonly root: HTMLElement, private readonly board: Board, private readonly main: HTMLElement) {}

  take(sections: Section[]): void {
    sections.forEach(({ name, metrics }, index) => {
      const part = this.parts.get(name) ?? this.build(name, index < SECTIONS_OPEN && metrics.length <= METRICS_OPEN);
      for (const metric of metrics) {
        if (!part.panels.has(metric)) part.panels.set(metric, this.board.addLazy(metric, part.grid).element);
      }
    });
    this.filter();
  }

  private build(name: string, isOpen: boolean) {
    const element = html("details", "metrics", this.root);
    const query = address().searchParams;
    element.open = isOpen !== query.getAll("turned").includes(name);
    element.dataset.section = name;
    const summary = html("summary", "", element);
    html("b", "", summary, name || "other metrics");
    const count = html("span", "note", summary);
    const grid = html("div", "metric-grid", element);
    summary.addEventListener("click", () => {
      const others = address().searchParams.getAll("turned").filter((other) => other !== name);
      remember({ turned: !element.open === isOpen ? others : [...others, name] });
    });
    const part = { element, grid, count, panels: new Map<string, HTMLElement>() };
    this.parts.set(name, part);
    return part;
  }

  filter(): void {
    const text = address().searchParams.get("filter") ?? "", matches = matcher(text);
    let found = 0;
    for (const { element, count, panels } of this.parts.values()) {
      let num = 0;
      for (const [metric, panel] of panels) {
        const fits = matches(metric);
        panel.hidden = !fits;
        num += Number(fits);
      }
      element.hidden = !num;
      if (text && num) element.open = true;
      count.textContent = ` ${num === panels.size ? num : `${num} of ${panels.size}`}`;
      found += num;
    }
    let shown = 0;
    this.main.querySelectorAll<HTMLElement>(".panels > .panel").forEach((panel) => {
      panel.hidden = !matches(panel.querySelector<HTMLElement>(".panel-title")!.title);
      shown += Number(!panel.hidden);
    });
    this.main.classList.toggle("filtered", !shown);
    sayMissing(text && !found && !shown ? `No metric matches “${text}”.` : null);
  }
}

export const startRun = async (root: HTMLElement, visit: (url: string) => void): Promise<void> => {
  const run = root.dataset.run!, { from, to } = root.dataset;
  const isAround = from !== undefined;
  const slots: Slot[] = [{ now: null }, { now: null }, { now: null }, { now: null }];
  const [slot, tail, lazy, names] = slots;
  const here = location.pathname.replace(/\/step\/\d+$/, "");
  const query = (more: Record<string, string>, metrics: string[] = []) => {
    const made = new URLSearchParams({ run, ...more });
    for (const metric of metrics) made.append("metric", metric);
    for (const name of isAround ? [] : ["rank", "x", "smooth"]) {
      const value = address().searchParams.get(name);
      if (value && value !== "0") made.set(name, value);
    }
    return made;
  };
  const around = isAround ? ["loss", "gradient norm"] : [];
  const load: Options["load"] = (ids, stretch, width) => {
    const span: Record<string, string> = stretch ? { from: String(stretch.from), to: String(stretch.to) } : {};
    return fetchData<CurveData>("/api/curves", query({ points: pointsFor(width), ...span }, ids.length ? ids : around), ids.length ? lazy : slot, sayMissing);
  };
  /* An address of an earlier version named its metrics; now the filter does. */
  const named = address().searchParams.getAll("metric");
  if (named.length && !isAround) remember({ metric: null, filter: named.map((name) => `^${name.replace(/[.*+?^${}()|[\]\\]/g, "\\$&")}$`).join("|") });
  let board: Board | null = null, sections: Sections | null = null;
  const start = () => {
    board?.end();
    const view = isAround ? { from: number(from), to: number(to) } : viewOptions();
    board = new Board(root, {
      ...view, load, open: (event) => visit(`${here}/step/${event.step}`),
      csv: (id) => `/csv?${query({}, [id])}`,
    });
    leave.push(() => board?.end());
    const place = find("sections");
    if (place) { place.textContent = ""; sections = new Sections(place, board, root); }
  };
  const first = async () => {
    const span: Record<string, string> = isAround ? { from: from!, to: to! } : {};
    const data = await fetchData<CurveData>("/api/curves", query({ points: pointsFor(root.clientWidth), ...span }, around), slot, sayMissing);
    if (!data) { if (root.querySelector(":scope > .none")) root.replaceChildren(html("p", "none", undefined, "The curves could not be read.")); return; }
    start();
    if (!find("figures")?.childNodes.length) void refresh(); /* the page came before the run was read */
    const size = data.panels.length, missing = (data.missing ?? []).join("; ");
    /* Around an event, what is there is drawn: not every run has a gradient norm. */
    if (missing && !(isAround && size)) { sayMissing(missing); root.replaceChildren(html("p", "none", undefined, "There is nothing to draw.")); board = null; return; }
    if (size) { board!.show(data); if (!board!.isWhole && !isAround) board!.ask(0); }
    else root.classList.add("without");
    performance.mark("curve-drawn");
    await listMetrics(size);
  };
  const listMetrics = async (numUsual: number) => {
    if (!sections) { if (!numUsual) root.replaceChildren(html("p", "none", undefined, "No loss was recorded here.")); return; }
    const found = await fetchData<Section[]>("/api/metrics", new URLSearchParams({ run }), names);
    if (!found) return;
    if (!numUsual && !found.length) { root.replaceChildren(html("p", "none", undefined, "No numbers were recorded yet.")); board = null; return; }
    sections.take(found);
    root.dataset.listed = "true";
  };
  for (const name of ["rank", "x", "smooth"]) {
    const control = find<HTMLSelectElement>(name);
    if (!control) continue;
    control.value = address().searchParams.get(name) ?? control.options[0].value;
    control.addEventListener("change", () => {
      remember({ [name]: control.selectedIndex ? control.value : null, ...(name === "x" ? { from: null, to: null } : {}) });
      void first();
    });
  }
  const filter = find<HTMLInputElement>("filter");
  filter?.addEventListener("input", () => { remember({ filter: filter.value || null }); sections?.filter(); });
  if (filter) filter.value = address().searchParams.get("filter") ?? "";

  let appended = 0, busy = false, again = false, late = 0;
  const more = async () => {
    if (busy) { again = true; return; }
    busy = true;
    if (!board || !root.querySelector(".panel")) await first();
    else if (board.isWhole && appended < MAX_APPENDED) {
      const data = await fetchData<CurveData>("/api/curves", query({ points: "400", from: String(board.last) }, around), tail);
      if (data?.whole && data.whole[1] >= board.last && board.append(data)) appended += 10;
      else { appended = 0; board.ask(0); }
    } else { appended = 0; board.ask(0); }
    root.dataset.updated = String(Date.now());
    busy = false;
    if (again) { again = false; setTimeout(() => void more(), 300); }
  };
  follow([run], (parts) => {
    if (parts.some((part) => /^(log|steps|spikes|events|index|poll)/.test(part))) void more();
    /* Not put off by what comes meanwhile: a run that goes on changes all the time. */
    const later = () => {
      late = 0;
      void refresh();
      board?.outdate();
      if (sections) void listMetrics(1);
    };
    late ||= setTimeout(later, parts.every((part) => /^(log|steps)/.test(part)) ? 3000 : 250);
  });
  leave.push(() => { clearTimeout(late); slots.forEach((one) => one.now?.abort()); });
  await first();
};
