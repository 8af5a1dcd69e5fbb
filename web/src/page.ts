/* The page as a whole: its address, the bar that says what is wrong, getting pages and points, and following a run. */
import { localise } from "./times";
import { morph } from "./morph";

const LATE_MS = 5000;
const SERVER_GONE = "The server does not answer. This page shows what it said last, and goes on when the server is back.";

/* What ends when the page is swapped. */
export const leave: (() => void)[] = [];
export const find = <T extends HTMLElement>(id: string) => document.getElementById(id) as T | null;
export const address = () => new URL(location.href);

/* Put values into the address without a new entry in the history. */
export const remember = (changes: Record<string, string | string[] | null>): void => {
  const url = address();
  for (const [name, value] of Object.entries(changes)) {
    url.searchParams.delete(name);
    for (const text of Array.isArray(value) ? value : value ? [value] : []) url.searchParams.append(name, text);
  }
  history.replaceState(history.state, "", url);
};

/* ---- what is wrong ---- */
const wrong = new Map<string, string>();
export const trouble = (what: string, text: string | null): void => {
  const bar = find("trouble");
  if (text) wrong.set(what, text); else wrong.delete(what);
  if (!bar) return;
  const shown = [...wrong.values()][0] ?? "";
  if (bar.textContent !== shown) bar.textContent = shown;
  bar.hidden = !shown;
};

const said = (page: Document): string => page.querySelector("main p")?.textContent ?? "the server refused";

/* The answer to a request; null when the server is gone, or the answer is not wanted any more. */
const get = async (url: string, signal?: AbortSignal): Promise<Response | null> => {
  try {
    const answer = await fetch(url, { signal });
    trouble("server", null);
    return answer;
  } catch {
    if (!signal?.aborted) trouble("server", SERVER_GONE);
    return null;
  }
};

export const fetchPage = async (url: string, signal?: AbortSignal): Promise<{ page: Document; status: number } | null> => {
  const answer = await get(url, signal);
  if (!answer) return null;
  const page = new DOMParser().parseFromString(await answer.text(), "text/html");
  localise(page);
  return { page, status: answer.status };
};

export interface Slot { now: AbortController | null }
/* Data for the script. A newer request in the same slot makes an older one unwanted; a refusal is said in `refused`. */
export const fetchData = async <T>(path: string, query: URLSearchParams, slot: Slot, refused?: (text: string | null) => void): Promise<T | null> => {
  slot.now?.abort();
  const mine = slot.now = new AbortController();
  const answer = await get(`${path}?${query}`, mine.signal);
  if (!answer || mine.signal.aborted) return null;
  try {
    if (answer.ok) { refused?.(null); return await answer.json() as T; }
    refused?.(said(new DOMParser().parseFromString(await answer.text(), "text/html")));
  } catch { /* it was cut off: the next one comes */ }
  return null;
};

/* ---- what goes on ---- */
/* Take the live parts of the page as they are now. */
export const refresh = async (changed?: () => void): Promise<void> => {
  const here = location.href, got = await fetchPage(here);
  if (!got || here !== location.href) return;
  const isRun = location.pathname.startsWith("/run/");
  trouble("run", got.status === 404 && isRun ? "This run is no longer there: it was moved or deleted. This page shows what it was last." : null);
  if (got.status !== 200) return;
  for (const now of got.page.querySelectorAll<HTMLElement>("[data-live]")) {
    const old = find(now.id);
    if (!old) continue;
    const end = old.scrollTop + old.clientHeight >= old.scrollHeight - 4;
    morph(old, now);
    if (end && old.id === "log-lines") old.scrollTop = old.scrollHeight;
  }
  changed?.();
};

/* Hear of changes while the page is seen: a browser has six connections to a server, and pages in the background would hold them all. */
export const follow = (runs: string[], changed: (parts: string[]) => void): void => {
  let polling = 0, source: EventSource | null = null, lost = false;
  const end = () => { source?.close(); source = null; clearInterval(polling); polling = 0; };
  const begin = () => {
    source = new EventSource(`/live?${new URLSearchParams(runs.map((run) => ["run", run]))}`);
    source.onmessage = (message) => changed(JSON.parse(message.data));
    source.onopen = () => { trouble("server", null); if (lost) { lost = false; changed(["poll"]); } };
    source.onerror = () => {
      lost = true;
      /* Refused for good: too many streams, or no such run. Asking now and then tells which. */
      if (source?.readyState === EventSource.CLOSED && !polling) polling = setInterval(() => changed(["poll"]), LATE_MS);
      else if (source?.readyState === EventSource.CONNECTING) void get("/static/dashboard.js");
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
