"use strict";
/* Draws the curves of a report as SVG: panels one below the other that share their steps. Wheel or drag zooms, double click shows all,
   arrows and + - 0 do the same from the keyboard; the legend of a panel shows the values under the pointer. Text goes in as text only. */
(() => {
  const root = document.getElementById("curves");
  const source = document.getElementById("curve-data");
  if (!root || !source) return;
  const data = JSON.parse(source.textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const LEFT = 56, RIGHT = 12, TOP = 8, BOTTOM = 8, AXIS = 22;

  const svg = (name, attributes, parent, text) => {
    const element = document.createElementNS(SVG, name);
    for (const key in attributes) element.setAttribute(key, attributes[key]);
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };
  const html = (name, className, parent, text) => {
    const element = document.createElement(name);
    element.className = className;
    if (text !== undefined) element.textContent = text;
    if (parent) parent.append(element);
    return element;
  };
  const digits = (value) => {
    if (value === 0) return "0";
    const size = Math.abs(value);
    if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
    return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
  };
  const steps = (value) => Math.round(value).toLocaleString("en");

  /* The position of the first step that is not before `wanted`. */
  const position = (x, wanted) => {
    let low = 0, high = x.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (x[middle] < wanted) low = middle + 1; else high = middle;
    }
    return low;
  };
  const nearest = (x, wanted) => {
    const after = Math.min(position(x, wanted), x.length - 1);
    return after > 0 && wanted - x[after - 1] < x[after] - wanted ? after - 1 : after;
  };
  const ticks = (low, high, wanted) => {
    const raw = (high - low) / Math.max(wanted, 1);
    if (!(raw > 0)) return [low];
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((one) => one * power >= raw) * power;
    const found = [];
    for (let n = Math.ceil(low / step); n * step <= high + step * 1e-9; n++) found.push(n * step);
    return found;
  };
  const logTicks = (low, high) => {
    const decades = Math.log10(high / low), found = [];
    const parts = decades > 4 ? [1] : decades > 1 ? [1, 3] : [1, 1.5, 2, 3, 4, 5, 7];
    const every = Math.max(1, Math.ceil(decades / 5));
    for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
      if (e % every) continue;
      for (const part of parts) if (part * 10 ** e >= low && part * 10 ** e <= high) found.push(part * 10 ** e);
    }
    return found.length > 1 ? found : ticks(low, high, 4).filter((one) => one > 0);
  };

  const all = { from: Infinity, to: -Infinity };
  for (const panel of data.panels) {
    for (const line of panel.lines) {
      all.from = Math.min(all.from, line.x[0]);
      all.to = Math.max(all.to, line.x[line.x.length - 1]);
    }
    for (const [step] of panel.broken) {
      all.from = Math.min(all.from, step);
      all.to = Math.max(all.to, step);
    }
  }
  if (all.to <= all.from) { all.from -= 0.5; all.to += 0.5; }
  const view = { from: all.from, to: all.to };
  const isWhole = () => view.from <= all.from && view.to >= all.to;
  let logarithmic = false, pointer = null, drag = null, width = 600;

  root.textContent = "";
  root.tabIndex = 0;
  root.setAttribute("role", "group");
  root.setAttribute("aria-label", "curves over the steps of the run");
  const tools = html("div", "tools", root);
  const range = html("span", "range", tools);
  const logButton = html("button", "", tools, "log scale");
  logButton.setAttribute("aria-pressed", "false");
  const reset = html("button", "", tools, "show all");

  const panels = data.panels.map((panel, index) => {
    const box = html("div", "panel", root);
    const head = html("div", "panel-head", box);
    html("span", "panel-title", head, panel.title);
    const legend = html("span", "panel-legend", head);
    const values = panel.lines.filter((line) => line.kind !== "ghost").map((line) => {
      const entry = html("span", "entry " + line.kind, legend);
      if (line.label) html("span", "swatch", entry), html("span", "entry-label", entry, line.label);
      return { line, value: html("b", "", entry) };
    });
    if (panel.lines.some((line) => line.kind === "ghost")) {
      const entry = html("span", "entry ghost", legend);
      html("span", "swatch", entry);
      html("span", "entry-label", entry, "before a restart");
    }
    const last = index === data.panels.length - 1;
    const height = panel.height + (last ? AXIS : 0);
    const picture = svg("svg", { height, role: "img", "aria-label": panel.title + " over steps" }, box);
    return { ...panel, index, last, picture, values };
  });

  const toX = (step) => LEFT + (step - view.from) / (view.to - view.from) * (width - LEFT - RIGHT);
  const toStep = (x) => view.from + (x - LEFT) / (width - LEFT - RIGHT) * (view.to - view.from);
  const seen = (line) => [Math.max(position(line.x, view.from) - 1, 0), Math.min(position(line.x, view.to) + 1, line.x.length)];

  const extent = (panel) => {
    let low = Infinity, high = -Infinity;
    for (const line of panel.lines) {
      const [start, end] = seen(line);
      for (let i = start; i < end; i++) {
        if (line.x[i] < view.from || line.x[i] > view.to) continue;
        low = Math.min(low, line.y[i]);
        high = Math.max(high, line.y[i]);
      }
    }
    if (low > high) return [0, 1];
    if (low === high) { const room = Math.abs(low) * 0.1 || 1; return [low - room, high + room]; }
    return [low, high];
  };

  const drawPanel = (panel) => {
    const { picture, height } = panel;
    picture.textContent = "";
    picture.setAttribute("width", width);
    picture.setAttribute("viewBox", `0 0 ${width} ${height + (panel.last ? AXIS : 0)}`);
    let [low, high] = extent(panel);
    const log = logarithmic && low > 0;
    const scale = log ? Math.log : (value) => value;
    const room = (scale(high) - scale(low)) * 0.04;
    const bottom = scale(low) - room, top = scale(high) + room;
    const toY = (value) => height - BOTTOM - (scale(value) - bottom) / (top - bottom) * (height - TOP - BOTTOM);
    for (const tick of log ? logTicks(low, high) : ticks(low, high, Math.max(height / 46, 3.5))) {
      const y = toY(tick).toFixed(1);
      svg("line", { class: "grid", x1: LEFT, x2: width - RIGHT, y1: y, y2: y }, picture);
      svg("text", { class: "tick", x: LEFT - 8, y, dy: "0.32em", "text-anchor": "end" }, picture, digits(tick));
    }
    svg("line", { class: "axis", x1: LEFT, x2: width - RIGHT, y1: height - 0.5, y2: height - 0.5 }, picture);
    const clip = svg("clipPath", { id: "clip" + panel.index }, picture);
    svg("rect", { x: LEFT - 3, y: 0, width: width - LEFT - RIGHT + 6, height }, clip);
    const inside = svg("g", { "clip-path": `url(#clip${panel.index})` }, picture);
    drawEvents(panel, inside, height);
    let drawn = 0;
    for (const line of panel.lines) {
      const [start, end] = seen(line);
      drawn += end - start;
      if (line.kind === "dots" || end - start === 1) {
        for (let i = start; i < end; i++) {
          svg("circle", { class: "dot " + line.kind, cx: toX(line.x[i]).toFixed(1), cy: toY(line.y[i]).toFixed(1), r: 2.6 }, inside);
        }
        continue;
      }
      let path = "";
      for (let i = start; i < end; i++) path += (i > start ? "L" : "M") + toX(line.x[i]).toFixed(1) + " " + toY(line.y[i]).toFixed(1);
      svg("path", { class: "curve " + line.kind, d: path }, inside);
    }
    for (const [step, value] of panel.broken) {
      if (step < view.from || step > view.to) continue;
      const mark = svg("text", { class: "broken", x: toX(step).toFixed(1), y: TOP + 8, "text-anchor": "middle" }, inside, "✕");
      svg("title", {}, mark, `step ${steps(step)}: ${value}`);
    }
    if (panel.last) {
      for (const tick of ticks(view.from, view.to, Math.min(width / 110, 10))) {
        if (tick % 1 && view.to - view.from > 2) continue;
        svg("text", { class: "tick", x: toX(tick).toFixed(1), y: height + 16, "text-anchor": "middle" }, picture, steps(tick));
      }
    }
    return drawn;
  };

  const drawEvents = (panel, inside, height) => {
    const visible = data.events.filter((event) => event.last >= view.from && event.first <= view.to);
    let free = -Infinity;
    visible.forEach((event, place) => {
      const x = toX(event.first), end = toX(event.last);
      if (end - x > 1) svg("rect", { class: "span", x, y: 0, width: end - x, height }, inside);
      const line = svg("line", { class: "event", x1: x, x2: x, y1: panel.index ? 0 : 14, y2: height }, inside);
      svg("title", {}, line, `step ${steps(event.first)}: ${event.label}`);
      if (panel.index) return;
      /* The step is written where it has room: after the mark, before it at the right edge, else not at all. */
      const size = (steps(event.first).length + 2) * 7;
      const next = place + 1 < visible.length ? toX(visible[place + 1].first) - 6 : Infinity;
      const after = x + size < Math.min(next, width - RIGHT), before = !after && next === Infinity && x - size > free;
      const text = after ? `▼ ${steps(event.first)}` : before ? `${steps(event.first)} ▼` : "▼";
      const mark = svg("text", { class: "mark", x: before ? x + 5 : x - 5, y: 11, "text-anchor": before ? "end" : "start" }, inside, text);
      free = after ? x + size : x + 6;
      svg("title", {}, mark, `${event.label} at step ${steps(event.first)}: click to look closer`);
      mark.addEventListener("click", () => {
        const half = Math.max(event.last - event.first, 20) * 1.5;
        zoom(event.first - half, event.last + half);
      });
    });
  };

  const drawPointer = () => {
    for (const panel of panels) {
      panel.picture.querySelectorAll(".hair, .brush, .at").forEach((one) => one.remove());
      if (drag !== null && pointer !== null && Math.abs(drag - pointer) > 3) {
        svg("rect", { class: "brush", x: Math.min(drag, pointer), y: 0, width: Math.abs(pointer - drag), height: panel.height }, panel.picture);
      }
      const step = pointer === null ? null : toStep(pointer);
      for (const { line, value } of panel.values) {
        const at = step === null ? line.x.length - 1 : nearest(line.x, step);
        value.textContent = digits(line.y[at]) + (line.kind === "dots" && step !== null ? ` at ${steps(line.x[at])}` : "");
      }
      if (step !== null) svg("line", { class: "hair", x1: pointer, x2: pointer, y1: 0, y2: panel.height }, panel.picture);
    }
    const line = panels[0].lines.find((one) => one.kind === "line");
    const where = pointer === null ? "" : `step ${steps(line ? line.x[nearest(line.x, toStep(pointer))] : toStep(pointer))}`;
    range.textContent = where || `steps ${steps(view.from)} to ${steps(view.to)}`;
  };

  const draw = () => {
    width = Math.max(root.clientWidth, 240);
    let drawn = 0;
    for (const panel of panels) drawn += drawPanel(panel);
    reset.hidden = isWhole();
    Object.assign(root.dataset, { drawn: "true", points: drawn, from: view.from, to: view.to });
    drawPointer();
  };

  const zoom = (from, to) => {
    const least = Math.min(4, all.to - all.from);
    if (to - from < least) { const middle = (from + to) / 2; from = middle - least / 2; to = middle + least / 2; }
    const span = Math.min(to - from, all.to - all.from);
    view.from = Math.min(Math.max(from, all.from), all.to - span);
    view.to = view.from + span;
    draw();
  };
  const zoomAround = (step, factor) => zoom(step - (step - view.from) * factor, step + (view.to - step) * factor);
  const showAll = () => zoom(all.from, all.to);
  const within = (event) => Math.min(Math.max(event.clientX - root.getBoundingClientRect().left, LEFT), width - RIGHT);

  for (const panel of panels) {
    const picture = panel.picture;
    picture.addEventListener("wheel", (event) => {
      if (event.deltaY > 0 && isWhole()) return; /* all is seen already: let the page scroll */
      event.preventDefault();
      zoomAround(toStep(within(event)), Math.exp(Math.max(Math.min(event.deltaY, 120), -120) * 0.004));
    }, { passive: false });
    picture.addEventListener("pointerdown", (event) => {
      if (event.button || event.target.classList.contains("mark")) return;
      drag = within(event);
      try { picture.setPointerCapture(event.pointerId); } catch { /* a pointer that is not there cannot be held */ }
    });
    picture.addEventListener("pointermove", (event) => { pointer = within(event); drawPointer(); });
    picture.addEventListener("pointerup", (event) => {
      const start = drag, end = within(event);
      drag = null;
      if (start !== null && Math.abs(end - start) > 6) zoom(toStep(Math.min(start, end)), toStep(Math.max(start, end)));
      else drawPointer();
    });
    picture.addEventListener("pointercancel", () => { drag = null; pointer = null; drawPointer(); });
    picture.addEventListener("pointerleave", () => { if (drag === null) { pointer = null; drawPointer(); } });
    picture.addEventListener("dblclick", showAll);
  }
  root.addEventListener("keydown", (event) => {
    const middle = (view.from + view.to) / 2, move = (view.to - view.from) / 5;
    const actions = {
      "+": () => zoomAround(middle, 0.6), "-": () => zoomAround(middle, 1.7), "0": showAll,
      ArrowLeft: () => zoom(view.from - move, view.to - move), ArrowRight: () => zoom(view.from + move, view.to + move),
    };
    if (event.target !== root || !actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  });
  logButton.addEventListener("click", () => {
    logarithmic = !logarithmic;
    logButton.setAttribute("aria-pressed", String(logarithmic));
    draw();
  });
  reset.addEventListener("click", showAll);
  addEventListener("resize", draw);
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((one) => { one.open = true; });
    draw();
  });
  draw();
})();
