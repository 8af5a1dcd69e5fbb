/* Numbers as they are written beside a curve, and where the ticks of an axis stand. */
export type Axis = "step" | "tokens" | "seconds";

export const digits = (value: number): string => {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1e6 || size < 1e-4) return value.toExponential(2).replace(/\.?0+e/, "e").replace("e+", "e");
  return size >= 1000 ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(4)));
};

export const steps = (value: number): string => Math.round(value).toLocaleString("en");

/* A place on the axis. */
export const place = (value: number, axis: Axis): string => {
  if (axis === "step") return steps(value);
  if (axis === "tokens") {
    for (const [size, unit] of [[1e12, "T"], [1e9, "B"], [1e6, "M"], [1e3, "k"]] as const) {
      if (Math.abs(value) >= size) return String(Number((value / size).toPrecision(4))) + unit;
    }
    return steps(value);
  }
  if (value < 120) return `${Number(value.toPrecision(3))} s`;
  if (value < 7200) return `${Number((value / 60).toPrecision(3))} min`;
  return value < 172800 ? `${Number((value / 3600).toPrecision(3))} h` : `${Number((value / 86400).toPrecision(3))} d`;
};

/* The position of the first of the ascending `x` that is not before `wanted`. */
export const position = (x: number[], wanted: number): number => {
  let low = 0, high = x.length;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (x[middle] < wanted) low = middle + 1; else high = middle;
  }
  return low;
};

export const nearest = (x: number[], wanted: number): number => {
  const after = Math.min(position(x, wanted), x.length - 1);
  return after > 0 && wanted - x[after - 1] < x[after] - wanted ? after - 1 : after;
};

export const ticks = (low: number, high: number, wanted: number): number[] => {
  const raw = (high - low) / Math.max(wanted, 1);
  if (!(raw > 0) || !isFinite(raw)) return [low];
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = (([1, 2, 5, 10].find((factor) => factor * power >= raw)) ?? 10) * power;
  const found: number[] = [];
  for (let n = Math.ceil(low / step); n * step <= high + step * 1e-9; n++) found.push(n * step);
  return found;
};

export const logTicks = (low: number, high: number): number[] => {
  const decades = Math.log10(high / low), found: number[] = [];
  const parts = decades > 4 ? [1] : decades > 1 ? [1, 3] : [1, 1.5, 2, 3, 4, 5, 7];
  const every = Math.max(1, Math.ceil(decades / 5));
  for (let e = Math.floor(Math.log10(low)); e <= Math.ceil(Math.log10(high)); e++) {
    if (e % every) continue;
    for (const part of parts) if (part * 10 ** e >= low && part * 10 ** e <= high) found.push(part * 10 ** e);
  }
  return found.length > 1 ? found : ticks(low, high, 4).filter((tick) => tick > 0);
};
