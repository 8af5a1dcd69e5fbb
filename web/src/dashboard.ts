/* The script of the dashboard: swaps pages instead of loading them, draws their curves, follows a run that goes on. The address is the state. */
import { startCompare } from "./compare";
import { html } from "./dom";
import { morph } from "./morph";
import { fetchPage, find, follow, leave, refresh, trouble } from "./page";
import { startRun } from "./run";
import { afterRefresh, selected, startList } from "./runs";
import { localise } from "./times";

const AGO_MS = 5000;

/* ---- pages ---- */
let going: AbortController | null = null;
const load = async (url: string): Promise<Document | null> => {
  going?.abort();
  going = new AbortController();
  const { signal } = going;
  document.documentElement.classList.add("waiting");
  const got = await fetchPage(url, signal);
  if (signal.aborted) return null;
  document.documentElement.classList.remove("waiting");
  return got?.page ?? null;
};
const visit = async (url: string, push = true, top = true) => {
  const page = await load(url), main = page?.getElementById("main");
  if (!page || !main) return;
  if (push) history.pushState(null, "", url);
  document.title = page.title;
  trouble("run", null);
  find("main")!.replaceWith(document.adoptNode(main));
  if (top) { scrollTo(0, 0); find("main")!.focus({ preventScroll: true }); }
  start();
};
/* The same page in another state: what is unfolded, scrolled and focused stays. */
const stay = async (url: string) => {
  const page = await load(url), main = page?.getElementById("main");
  if (!page || !main) return;
  history.pushState(null, "", url);
  morph(find("main")!, main);
  afterRefresh();
};

document.addEventListener("click", (event) => {
  const target = event.target as Element;
  const copied = target.closest<HTMLElement>("[data-copy]");
  if (copied) return void copy(copied);
  const job = target.closest<HTMLElement>("[data-job]");
  if (job) return void startJob(job);
  const link = target.closest("a");
  if (!link || event.defaultPrevented || event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
  if (link.origin !== location.origin || link.hasAttribute("download") || link.getAttribute("href")!.startsWith("#")) return;
  event.preventDefault();
  void (link.dataset.stay === undefined ? visit(link.href) : stay(link.href));
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
  if (event.key === "/") {
    const search = document.querySelector<HTMLInputElement>("input[type=search]");
    if (search) { event.preventDefault(); search.focus(); }
  } else if (event.key === "n") click("a[rel=next]");
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
setInterval(() => localise(document), AGO_MS);

const startJob = async (button: HTMLElement) => {
  const { job, run, step, script } = button.dataset;
  if (script && !confirm(`This runs the command that the run recorded, on this machine:\n\n${script}\n\nRun it?`)) return;
  const output = find("job-output")!;
  output.hidden = false;
  output.setAttribute("data-own", "");
  output.textContent = `sonde ${job} … --step ${step}\n`;
  const query = new URLSearchParams({ kind: job!, run: run!, step: step!, ...(script ? { again: "1" } : {}) });
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

const start = () => {
  for (const end of leave.splice(0)) end();
  localise(document);
  const root = find("curves"), main = find("main")!, lines = find("log-lines");
  if (lines) lines.scrollTop = lines.scrollHeight;
  startList((url) => void stay(url));
  if (root?.dataset.run) void startRun(root, (url) => void visit(url));
  else if (root?.dataset.compare !== undefined) void startCompare(root);
  else if (main.dataset.liveRun) {
    let late = 0;
    follow([main.dataset.liveRun], () => { late ||= setTimeout(() => { late = 0; void refresh(); }, 700); });
    leave.push(() => clearTimeout(late));
  }
};
start();
