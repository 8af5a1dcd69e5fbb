/* Several runs compared: metrics that are added, runs that are hidden, values under the pointer; it follows those that go on. */
import { Board, type CurveData } from "./board";
import { colourOf } from "./colours";
import { html } from "./dom";
import { address, fetchData, find, follow, leave, refresh, remember, type Slot } from "./page";
import { sayMissing, viewOptions } from "./run";
import { digits } from "./scale";

const STATE = ["run", "metric", "x", "smooth", "colour"], EVERY_MS = 2000, MAX_SAID = 12;

export const startCompare = async (root: HTMLElement): Promise<void> => {
  const slot: Slot = { now: null };
  const metrics = () => { const chosen = address().searchParams.getAll("metric"); return chosen.length ? chosen : ["loss"]; };
  const runs = address().searchParams.getAll("run");
  const query = (more: Record<string, string>) => {
    const made = new URLSearchParams(more);
    for (const name of STATE) for (const value of address().searchParams.getAll(name)) made.append(name, value);
    return made;
  };
  const ask = (more: Record<string, string>) => fetchData<CurveData>("/api/compare", query(more), slot, sayMissing);
  let board: Board | null = null, colours = new Map<string, string>();

  const pointed = (values: Map<string, number> | null) => document.querySelectorAll<HTMLElement>("[data-value]").forEach((place) => {
    const value = values?.get(place.dataset.value!);
    place.textContent = value === undefined ? "" : digits(value);
  });
  const hidden = () => address().searchParams.getAll("hide");
  const showKeys = () => document.querySelectorAll<HTMLElement>("[data-toggle]").forEach((key) => {
    const isHidden = hidden().includes(key.dataset.toggle!);
    key.setAttribute("aria-pressed", String(!isHidden));
    key.style.setProperty("--own", colours.get(key.dataset.toggle!) ?? "var(--soft)");
    key.closest("tr")?.classList.toggle("hidden-run", isHidden);
  });
  const take = (data: CurveData) => {
    colours = new Map(data.panels.flatMap((panel) => panel.lines.map((line) => [line.label, colourOf(line.colour ?? 0, data.num_colours ?? 0)] as const)));
    const missing = data.missing ?? [];
    sayMissing([...missing.slice(0, MAX_SAID), ...(missing.length > MAX_SAID ? [`and ${missing.length - MAX_SAID} more`] : [])].join("; "));
    showKeys();
    showLegend(data);
  };
  const showLegend = (data: CurveData) => {
    const legend = find("colour-legend") ?? html("p", "note", find("curves")!.parentElement!);
    legend.id = "colour-legend";
    legend.replaceChildren(...Object.entries(data.legend ?? {}).map(([text, number]) => {
      const entry = html("span", "entry");
      html("span", "swatch", entry).style.setProperty("background", colourOf(number, data.num_colours ?? 0));
      html("span", "", entry, text);
      return entry;
    }));
  };
  const first = async () => {
    const data = await ask({});
    if (!data) return;
    board?.end();
    if (!data.whole) { root.replaceChildren(html("p", "none", undefined, "There is nothing to draw.")); take(data); return; }
    board = new Board(root, {
      ...viewOptions(), pointed,
      load: async (_, stretch) => {
        const found = await ask(stretch ? { from: String(stretch.from), to: String(stretch.to) } : {});
        if (found) take(found);
        return found;
      },
      csv: (id) => `/csv?${new URLSearchParams([...runs.map((run) => ["run", run]), ["metric", id], ["x", address().searchParams.get("x") ?? "step"]])}`,
    });
    take(data);
    board.hide(hidden());
    board.show(data);
    if (!board.isWhole) board.ask(0);
    performance.mark("curve-drawn");
  };
  leave.push(() => board?.end());

  document.querySelectorAll<HTMLSelectElement>("select[data-state]").forEach((control) => {
    const name = control.dataset.state!;
    control.value = address().searchParams.get(name) ?? control.options[0].value;
    control.addEventListener("change", () => {
      remember({ [name]: control.selectedIndex ? control.value : null, ...(name === "x" ? { from: null, to: null } : {}) });
      void first();
    });
  });
  const showChosen = () => find("chosen")?.replaceChildren(...metrics().map((metric) => {
    const button = html("button", "chip", undefined, `${metric} ×`);
    button.type = "button";
    button.setAttribute("aria-label", `remove ${metric}`);
    button.addEventListener("click", () => choose(metrics().filter((other) => other !== metric)));
    return button;
  }));
  const choose = (chosen: string[]) => {
    remember({ metric: chosen.join("\n") === "loss" ? null : chosen });
    showChosen();
    void first();
  };
  find<HTMLInputElement>("metric")?.addEventListener("change", (event) => {
    const input = event.target as HTMLInputElement;
    if (input.value) choose([...new Set([...metrics(), input.value])]);
    input.value = "";
  });
  find("legend")?.addEventListener("click", (event) => {
    const key = (event.target as Element).closest<HTMLElement>("[data-toggle]");
    if (!key) return;
    const name = key.dataset.toggle!, others = hidden().filter((other) => other !== name);
    /* With Alt or Shift, only this one stays. */
    const only = event.altKey || event.shiftKey;
    remember({ hide: only ? runs.filter((run) => run !== name) : hidden().includes(name) ? others : [...others, name] });
    showKeys();
    board?.hide(hidden());
  });
  showChosen();
  let late = 0;
  if (runs.length) {
    follow(runs, () => {
      late ||= setTimeout(() => { late = 0; if (board) board.ask(0); else void first(); void refresh(showKeys); }, EVERY_MS);
    });
  }
  leave.push(() => { clearTimeout(late); slot.now?.abort(); });
  await first();
};
