/* Times as the reader's clock shows them: the server writes them in UTC. */
const two = (number: number) => String(number).padStart(2, "0");
const day = (time: Date) => `${time.getFullYear()}-${two(time.getMonth() + 1)}-${two(time.getDate())}`;
const clock = (time: Date) => `${two(time.getHours())}:${two(time.getMinutes())}:${two(time.getSeconds())}`;

export const duration = (seconds: number): string => {
  if (seconds < 60) return `${Math.max(0, Math.round(seconds))} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
};

const textOf = (element: HTMLTimeElement, time: Date): string => {
  if (element.dataset.ago !== undefined) return `${duration((Date.now() - time.getTime()) / 1000)} ago`;
  return element.dataset.clock !== undefined ? clock(time) : `${day(time)} ${clock(time).slice(0, 5)}`;
};

export const localise = (part: ParentNode): void => {
  for (const element of part.querySelectorAll<HTMLTimeElement>("time[datetime]")) {
    const time = new Date(element.dateTime);
    if (isNaN(time.getTime())) continue;
    const text = textOf(element, time);
    if (element.textContent !== text) element.textContent = text;
    const exact = `${day(time)} ${clock(time)} (${element.dateTime.replace("T", " ").replace("Z", " UTC")})`;
    if (element.title !== exact) element.title = exact;
  }
};
