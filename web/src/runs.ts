/* The list of runs: selection, search, columns, small curves. */
import { address, fetchData, find, leave, refresh, remember, type Slot } from "./page";

const POLL_MS = 4000, SPARKS_AT_ONCE = 12;

interface Details { spark: string; events: string; cause: string; damage: string }
const known = new Map<string, Details & { state: string }>();

export const selected = (): string[] => JSON.parse(sessionStorage.getItem("selected") ?? "[]");
export const showSelected = (): void => {
  const chosen = selected(), button = find<HTMLButtonElement>("compare"), told = find("selected"), clear = find("clear");
  document.querySelectorAll<HTMLInputElement>("#runs input[name=run]").forEach((box) => { box.checked = chosen.includes(box.value); });
  if (!button || !told || !clear) return;
  button.disabled = chosen.length < 2;
  clear.hidden = !chosen.length;
  told.textContent = chosen.length ? `${chosen.length} selected` : "";
};
const select = (chosen: string[]) => {
  sessionStorage.setItem("selected", JSON.stringify(chosen));
  showSelected();
};

const fill = (place: Element | null, ...content: (Node | string)[]) => {
  if (!place) return;
  place.setAttribute("data-filled", "");
  place.replaceChildren(...content);
};
const put = (name: string) => {
  const found = known.get(name), quoted = CSS.escape(name);
  if (!found) return;
  const row = document.querySelector(`tr[data-key="${quoted}"]`);
  const picture = new DOMParser().parseFromString(found.spark, "text/html").body.childNodes;
  fill(row?.querySelector("[data-spark]") ?? null, ...picture);
  fill(row?.querySelector("[data-events]") ?? null, found.events);
  fill(row?.querySelector("[data-cause]") ?? null, found.cause);
  fill(row?.querySelector("[data-damage]") ?? null, found.damage);
  if (found.damage) row?.querySelector(".status")?.classList.replace("good", "bad");
};
const slot: Slot = { now: null };
export const fillSparks = async (): Promise<void> => {
  const rows = [...document.querySelectorAll<HTMLElement>("#runs tr[data-key]")];
  const states = new Map<string, string>();
  for (const row of rows) {
    const box = row.querySelector<HTMLInputElement>("input[name=run]");
    if (box) states.set(box.value, row.querySelector<HTMLElement>("[data-state]")?.dataset.state ?? "");
  }
  const needed = document.querySelector("#runs [data-spark], #runs [data-events], #runs [data-cause], #runs [data-damage]");
  if (!needed) return;
  states.forEach((_, name) => put(name));
  const wanted = [...states.keys()].filter((name) => known.get(name)?.state !== states.get(name));
  for (let start = 0; start < wanted.length; start += SPARKS_AT_ONCE) {
    const part = wanted.slice(start, start + SPARKS_AT_ONCE);
    const found = await fetchData<Record<string, Details>>("/api/sparks", new URLSearchParams(part.map((name) => ["run", name])), slot);
    if (!found) return;
    for (const name in found) { known.set(name, { ...found[name], state: states.get(name)! }); put(name); }
  }
};

export const afterRefresh = (): void => { showSelected(); void fillSparks(); };

/* The columns that are ticked, in the address; the usual ones need not stand there. */
const columnsAddress = (extra?: string): string => {
  const boxes = [...document.querySelectorAll<HTMLInputElement>("#columns input[name=col]")];
  const chosen = boxes.filter((box) => box.checked).map((box) => box.value);
  if (extra && !chosen.includes(extra)) chosen.push(extra);
  const url = address();
  url.searchParams.delete("col");
  for (const column of chosen) url.searchParams.append("col", column);
  return url.href;
};

export const startList = (stay: (url: string) => void): void => {
  const runs = find("runs");
  if (!runs) return;
  showSelected();
  runs.addEventListener("change", (event) => {
    const box = event.target as HTMLInputElement;
    if (box.name !== "run") return;
    const others = selected().filter((name) => name !== box.value);
    select(box.checked ? [...others, box.value] : others);
  });
  find("clear")?.addEventListener("click", () => select([]));
  const search = document.querySelector<HTMLInputElement>("form[role=search] input[type=search]")!;
  let typing = 0;
  search.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => { remember({ q: search.value, page: null }); void refresh(afterRefresh); }, 150);
  });
  find("columns")?.addEventListener("change", (event) => {
    if ((event.target as HTMLInputElement).name === "col") stay(columnsAddress());
  });
  find("column-add")?.addEventListener("click", () => {
    const metric = find<HTMLInputElement>("column-metric")!, kind = find<HTMLSelectElement>("column-kind")!;
    if (!metric.value) return;
    stay(columnsAddress(`${kind.value}:${metric.value}`));
    metric.value = "";
  });
  find<HTMLSelectElement>("group")?.addEventListener("change", (event) => {
    const url = address(), { value } = event.target as HTMLSelectElement;
    for (const name of ["group", "fold", "page"]) url.searchParams.delete(name);
    if (value) url.searchParams.set("group", value);
    stay(url.href);
  });
  const again = setInterval(() => { if (!document.hidden) void refresh(afterRefresh); }, POLL_MS);
  leave.push(() => clearInterval(again));
  void fillSparks();
};
