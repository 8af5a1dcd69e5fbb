/* The script of the dashboard: swaps pages instead of loading them, draws their curves, follows a run that goes on. The address is the state. */
import { Curves, type CurveData } from "./curve";
import { html } from "./dom";

const MAX_APPENDED = 600, POLL_MS = 4000, SPARKS_AT_ONCE = 12, LATE_MS = 5000;

let leave: (() => void)[] = []; /* what ends when the page is swapped */
let curves: Curves | null = null;

const find = <T extends HTMLElement>(id: string) => document.getElementById(id) as T | null;
const address = () => new URL(location.href);

/* Put a value into the address without a new entry in the history. */
const remember = (changes: Record<string, string | string[] | null>) => {
  const url = address();
  for (const [name, value] of Object.entries(changes)) {
    url.searchParams.delete(name);
    for (const one of Array.isArray(value) ? value : value ? [value] : []) url.searchParams.append(name, one);
  }
  history.replaceState(history.state, "", url);
};

const fetchPage = async (url: string, signal?: AbortSignal): Promise<Document | null> => {
  try {
    const answer = await fetch(url, { signal, headers: { accept: "text/html" } });
    return new DOMParser().parseFromString(await answer.text(), "text/html");
  } catch { return null; }
};

/* ---- pages ---- */
let going: AbortController | null = null;
const visit = async (url: string, push = true, top = true) => {
  going?.abort();
  going = new AbortController();
  const { signal } = going;
  document.documentElement.classList.add("waiting");
  const page = await fetchPage(url, signal);
  if (signal.aborted) return;
  document.documentElement.classList.remove("waiting");
  const main = page?.getElementById("main");
  if (!page || !main) { location.href = url; return; }
  if (push) history.pushState(null, "", url);
  document.title = page.title;
  find("main")!.replaceWith(document.adoptNode(main));
  if (top) { scrollTo(0, 0); find("main")!.focus({ preventScroll: true }); }
  start();
};

document.addEventListener("click", (event) => {
  const target = event.target as Element;
  const copied = target.closest<HTMLElement>("[data-copy]");
  if (copied) return void copy(copied);
  const job = target.closest<HTMLElement>("[data-job]");
  if (job) return void startJob(job);
  const link = target.closest("a");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  if (link.origin !== location.origin || link.getAttribute("href")!.startsWith("#")) return;
  event.preventDefault();
  void visit(link.href);
});
addEventListener("popstate", () => void visit(location.href, false, false));
document.addEventListener("submit", (event) => {
  const form = event.target as HTMLFormElement;
  event.preventDefault();
  const url = new URL(form.action);
  for (const [name, value] of new FormData(form)) if (value) url.searchParams.append(name, String(value));
  if (form.id === "compare-form") for (const run of selected()) url.searchParams.append("run", run);
  void visit(url.href);
});
document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || (event.target as Element).closest("input, select, textarea")) return;
  const click = (query: string) => document.querySelector<HTMLElement>(query)?.click();
  if (event.key === "/") { const search = document.querySelector<HTMLInputElement>("input[type=search]"); if (search) { event.preventDefault(); search.focus(); } }
  else if (event.key === "n") click("a[rel=next]");
  else if (event.key === "p") click("a[rel=prev]");
  else if (event.key === "u") click(".crumbs a:last-of-type");
});

/* ---- small things ---- */
const copy = async (button: HTMLElement) => {
  const before = button.textContent;
  try { await navigator.clipboard.writeText(button.dataset.copy!); button.textContent = "copied"; }
  catch { button.textContent = "select it"; getSelection()?.selectAllChildren(button.previousElementSibling!); }
  setTimeout(() => { button.textContent = before; }, 1500);
};

/* The loss of a token under the pointer or the finger, at once. */
const label = html("div", "hover-label");
label.setAttribute("aria-hidden", "true");
document.addEventListener("pointerover", (event) => {
  const token = (event.target as Element).closest?.<HTMLElement>("pre.sample span[title], pre.sample span[data-title]");
  if (!token) return label.remove();
  if (token.title) { token.dataset.title = token.title; token.removeAttribute("title"); }
  label.textContent = token.dataset.title!;
  document.body.append(label);
  const box = token.getBoundingClientRect();
  label.style.setProperty("left", `${Math.max(4, Math.min(box.left, innerWidth - label.offsetWidth - 8))}px`);
  label.style.setProperty("top", `${box.top < 40 ? box.bottom + 6 : box.top - label.offsetHeight - 6}px`);
});
addEventListener("scroll", () => label.remove(), { passive: true });

const startJob = async (button: HTMLElement) => {
  const { job, run, step } = button.dataset;
  const output = find("job-output")!;
  output.hidden = false;
  output.textContent = `sonde ${job} … --step ${step}\n`;
  const query = new URLSearchParams({ kind: job!, run: run!, step: step! });
  const answer = await fetch(`/jobs?${query}`, { method: "POST", headers: { "x-sonde": "1" } });
  if (!answer.ok) { output.textContent += new DOMParser().parseFromString(await answer.text(), "text/html").querySelector("main p")?.textContent ?? "refused"; return; }
  const reader = answer.body!.pipeThrough(new TextDecoderStream()).getReader();
  leave.push(() => void reader.cancel());
  for (let said = ""; ;) {
    const { done, value } = await reader.read();
    if (done) { if (job === "diagnose" && said.endsWith("ended with 0\n")) setTimeout(() => void visit(location.href, false, false), 1200); return; }
    said = (said + value).slice(-100);
    output.append(value);
    output.scrollTop = output.scrollHeight;
  }
};

/* ---- the list of runs ---- */
const selected = (): string[] => JSON.parse(sessionStorage.getItem("selected") ?? "[]");
const showSelected = () => {
  const chosen = selected(), button = find<HTMLButtonElement>("compare"), told = find("selected");
  document.querySelectorAll<HTMLInputElement>("input[name=run]").forEach((box) => { box.checked = chosen.includes(box.value); });
  if (button && told) { button.disabled = chosen.length < 2; told.textContent = chosen.length ? `${chosen.length} selected` : ""; }
};
const startList = () => {
  if (!find("runs")) return;
  showSelected();
  find("runs")!.addEventListener("change", (event) => {
    const box = event.target as HTMLInputElement;
    const others = selected().filter((one) => one !== box.value);
    sessionStorage.setItem("selected", JSON.stringify(box.checked ? [...others, box.value] : others));
    showSelected();
  });
  const search = document.querySelector<HTMLInputElement>("input[type=search]")!;
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { remember({ q: search.value, page: null }); void refresh(["runs"]); }, 150);
  });
  const again = setInterval(() => { if (!document.hidden) void refresh(["runs"]); }, POLL_MS);
  leave.push(() => clearInterval(again));
  void fillSparks();
};
const known = new Map<string, { spark: string; events: string; state: string }>();
const fillSparks = async () => {
  const places = [...document.querySelectorAll<HTMLElement>("[data-spark]")];
  const put = () => places.forEach((place) => {
    const found = known.get(place.dataset.spark!);
    if (!found) return;
    place.replaceChildren(...new DOMParser().parseFromString(found.spark, "text/html").body.childNodes);
    document.querySelector(`[data-events="${CSS.escape(place.dataset.spark!)}"]`)?.replaceChildren(found.events);
  });
  put();
  const states = new Map(places.map((place) => [place.dataset.spark!, place.dataset.state!]));
  const wanted = [...states.keys()].filter((name) => known.get(name)?.state !== states.get(name));
  for (let start = 0; start < wanted.length; start += SPARKS_AT_ONCE) {
    const query = new URLSearchParams(wanted.slice(start, start + SPARKS_AT_ONCE).map((name) => ["run", name]));
    try {
      const found = await (await fetch(`/api/sparks?${query}`)).json();
      for (const name in found) known.set(name, { ...found[name], state: states.get(name) });
    } catch { return; }
    put();
  }
};

/* ---- what goes on ---- */
/* Take these parts of the page as they are now; all that are marked, unless named. */
const refresh = async (ids?: string[]) => {
  const here = location.href, page = await fetchPage(here);
  if (!page || here !== location.href) return;
  for (const now of page.querySelectorAll<HTMLElement>("[data-live]")) {
    const old = find(now.id);
    if (!old || (ids && !ids.includes(now.id)) || old.contains(document.activeElement) && old.id !== "runs") continue;
    const focused = old.contains(document.activeElement) ? (document.activeElement as HTMLInputElement).value : null;
    const html = now.innerHTML;
    if (old.dataset.html === html) continue;
    old.dataset.html = html;
    const end = old.scrollTop + old.clientHeight >= old.scrollHeight - 4;
    old.replaceChildren(...now.childNodes);
    if (end && old.id === "log-lines") old.scrollTop = old.scrollHeight;
    if (old.id === "runs") {
      showSelected();
      void fillSparks();
      if (focused) old.querySelector<HTMLInputElement>(`input[value="${CSS.escape(focused)}"]`)?.focus();
    }
  }
};

/* Hear of changes while the page is seen: a browser has six connections to a server, and pages in the background would hold them all. */
const follow = (run: string, changed: (parts: string[]) => void) => {
  let polling = 0, source: EventSource | null = null;
  const end = () => { source?.close(); source = null; clearInterval(polling); polling = 0; };
  const begin = () => {
    source = new EventSource(`/live?run=${encodeURIComponent(run)}`);
    source.onmessage = (message) => changed(JSON.parse(message.data));
    source.onerror = () => {
      if (source?.readyState === EventSource.CLOSED && !polling) polling = setInterval(() => changed(["poll"]), LATE_MS);
    };
  };
  const seen = () => {
    if (document.hidden) end();
    else if (!source && !polling) { begin(); changed(["poll"]); }
  };
  document.addEventListener("visibilitychange", seen);
  leave.push(() => { end(); document.removeEventListener("visibilitychange", seen); });
  if (!document.hidden) begin();
};

/* ---- curves ---- */
const ask = async (path: string, query: URLSearchParams, controller: { now: AbortController | null }): Promise<(CurveData & { missing?: string[] }) | null> => {
  controller.now?.abort();
  const mine = controller.now = new AbortController();
  try {
    const answer = await fetch(`${path}?${query}`, { signal: mine.signal });
    return answer.ok ? await answer.json() : null;
  } catch { return null; }
};
const pointsFor = (width: number, panels: number) => String(Math.round(Math.min(Math.max(width * 1.6, 400), panels > 4 ? 1000 : 1800)));
const number = (text: string | null) => (text === null || text === "" || !isFinite(Number(text)) ? undefined : Number(text));
const draw = (root: HTMLElement, data: CurveData, options: ConstructorParameters<typeof Curves>[2]) => {
  const query = address().searchParams;
  const made = new Curves(root, data, {
    ...options, from: number(query.get("from")), to: number(query.get("to")), log: query.get("log") === "1",
    moved: ({ from, to, whole, log }) => remember({ from: whole ? null : String(+from.toPrecision(10)), to: whole ? null : String(+to.toPrecision(10)), log: log ? "1" : null }),
  });
  if (!made.isWhole) made.ask(0);
  performance.mark("curve-drawn");
  return made;
};

const startRun = async (root: HTMLElement) => {
  const run = root.dataset.run!, controller = { now: null as AbortController | null }, tail = { now: null as AbortController | null };
  const metric = find<HTMLSelectElement>("metric"), rank = find<HTMLSelectElement>("rank"), chosen = find("chosen");
  const metrics = () => address().searchParams.getAll("metric");
  const query = (more: Record<string, string>) => {
    const made = new URLSearchParams({ run, ...more });
    for (const one of metrics()) made.append("metric", one);
    const wanted = address().searchParams.get("rank");
    if (wanted) made.set("rank", wanted);
    return made;
  };
  const load = (from: number, to: number, width: number) => {
    const points = pointsFor(width, metrics().length), whole = curves?.isWhole ?? false;
    return ask("/api/curves", query(whole ? { points } : { points, from: String(from), to: String(to) }), controller);
  };
  const first = async () => {
    const data = await ask("/api/curves", query({ points: pointsFor(root.clientWidth, metrics().length) }), controller);
    if (!data) return;
    if (!data.panels.length) { root.replaceChildren(html("p", "none", undefined, "No numbers were recorded yet.")); curves = null; return; }
    if (!find("figures")?.childNodes.length) void refresh(); /* the page came before the run was read */
    curves = draw(root, data, { load, open: (event) => void visit(`${location.pathname}/step/${event.first}`) });
  };
  const showChosen = () => chosen?.replaceChildren(...metrics().map((one) => {
    const button = html("button", "chip", undefined, `${one} ×`);
    button.type = "button";
    button.setAttribute("aria-label", `remove ${one}`);
    button.addEventListener("click", () => { remember({ metric: metrics().filter((other) => other !== one) }); showChosen(); void first(); });
    return button;
  }));
  metric?.addEventListener("change", () => {
    remember({ metric: metric.value ? [...new Set([...metrics(), metric.value])] : null });
    metric.value = "";
    showChosen();
    void first();
  });
  if (rank) rank.value = address().searchParams.get("rank") ?? "";
  rank?.addEventListener("change", () => { remember({ rank: rank.value || null }); void first(); });
  showChosen();
  let appended = 0, busy = false, again = false, late = 0;
  const more = async () => {
    if (busy) { again = true; return; }
    busy = true;
    if (!curves) await first();
    else if (curves.isWhole && appended < MAX_APPENDED) {
      const data = await ask("/api/curves", query({ points: "400", from: String(curves.end) }), tail);
      if (data?.whole && data.whole[1] >= curves.end && curves.append(data)) appended += 10;
      else { appended = 0; curves.ask(0); }
    } else { appended = 0; curves.ask(0); }
    root.dataset.updated = String(Date.now());
    busy = false;
    if (again) { again = false; setTimeout(() => void more(), 300); }
  };
  follow(run, (parts) => {
    if (parts.some((one) => /^(log|steps|spikes|index|poll)/.test(one))) void more();
    /* Not put off by what comes meanwhile: a run that goes on changes all the time. */
    const later = () => { late = 0; void refresh(); };
    late ||= setTimeout(later, parts.every((one) => /^(log|steps)/.test(one)) ? 3000 : 250);
  });
  leave.push(() => clearTimeout(late));
  await first();
};

const startCompare = async (root: HTMLElement) => {
  const controller = { now: null as AbortController | null };
  const query = (more: Record<string, string>) => {
    const made = new URLSearchParams(more);
    for (const name of ["run", "metric", "x", "smooth"]) for (const one of address().searchParams.getAll(name)) made.append(name, one);
    return made;
  };
  const load = (from: number, to: number) => ask("/api/compare", query(curves?.isWhole ? {} : { from: String(from), to: String(to) }), controller);
  const first = async () => {
    const data = await ask("/api/compare", query({}), controller);
    if (!data) return;
    find("missing")!.textContent = (data.missing ?? []).join("; ");
    if (!data.whole) { root.replaceChildren(html("p", "none", undefined, "There is nothing to draw.")); return; }
    curves = draw(root, data, { load });
  };
  document.querySelectorAll<HTMLSelectElement>("select[data-state]").forEach((select) => select.addEventListener("change", () => {
    remember({ [select.dataset.state!]: select.value, from: null, to: null });
    void first();
  }));
  await first();
};

const start = () => {
  for (const end of leave) end();
  leave = [];
  curves = null;
  const root = find("curves"), main = find("main")!, lines = find("log-lines");
  if (lines) lines.scrollTop = lines.scrollHeight;
  startList();
  if (root?.dataset.run) void startRun(root);
  else if (root?.dataset.compare !== undefined) void startCompare(root);
  else if (main.dataset.liveRun) {
    let late = 0;
    follow(main.dataset.liveRun, () => { late ||= setTimeout(() => { late = 0; void refresh(); }, 700); });
    leave.push(() => clearTimeout(late));
  }
};
start();
