/* Colours of lines: ten that were chosen by eye, and as many more as are needed, far apart in hue. */
const CHOSEN = 10, GOLDEN_ANGLE = 137.508;

export const colourOf = (number: number, numColours: number): string => {
  if (numColours <= CHOSEN) return `var(--c${number % CHOSEN})`;
  const hue = (210 + number * GOLDEN_ANGLE) % 360;
  const shade = number % 3;
  return `hsl(${hue.toFixed(0)} ${[62, 48, 75][shade]}% var(--shade${shade}))`;
};
