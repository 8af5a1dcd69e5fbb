/* Elements. Text goes in as text only. */
const SVG = "http://www.w3.org/2000/svg";
type Attributes = Record<string, string | number>;

export const svg = (name: string, attributes: Attributes, parent?: Element, text?: string): SVGElement => {
  const element = document.createElementNS(SVG, name);
  for (const key in attributes) element.setAttribute(key, String(attributes[key]));
  if (text !== undefined) element.textContent = text;
  parent?.append(element);
  return element;
};

export const html = <K extends keyof HTMLElementTagNameMap>(name: K, className: string, parent?: Element, text?: string): HTMLElementTagNameMap[K] => {
  const element = document.createElement(name);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  parent?.append(element);
  return element;
};
