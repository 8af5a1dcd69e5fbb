/* A panel as a file: its picture as SVG, its points as CSV. */
import { html } from "./dom";

const STYLES = ["fill", "stroke", "stroke-width", "stroke-dasharray", "opacity", "font-size", "font-family", "stroke-linejoin"];

export const save = (name: string, type: string, text: string): void => {
  const link = html("a", "");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
};

/* The picture by itself: the page's style goes into attributes, since the file has no style sheet. */
export const pictureOf = (picture: SVGElement, title: string): string => {
  const copy = picture.cloneNode(true) as SVGElement;
  const from = [picture, ...picture.querySelectorAll<SVGElement>("*")], to = [copy, ...copy.querySelectorAll<SVGElement>("*")];
  from.forEach((element, number) => {
    const style = getComputedStyle(element);
    for (const name of STYLES) to[number].setAttribute(name, style.getPropertyValue(name));
    to[number].removeAttribute("class");
    to[number].style.cssText = "";
    to[number].removeAttribute("style");
  });
  copy.querySelectorAll("title").forEach((one) => one.remove());
  copy.setAttribute("xmlns", "http://www.w3.org/2000/svg");
  const background = copy.ownerDocument.createElementNS("http://www.w3.org/2000/svg", "rect");
  background.setAttribute("width", "100%");
  background.setAttribute("height", "100%");
  background.setAttribute("fill", getComputedStyle(document.body).backgroundColor);
  copy.prepend(background);
  const name = copy.ownerDocument.createElementNS("http://www.w3.org/2000/svg", "title");
  name.textContent = title;
  copy.prepend(name);
  return new XMLSerializer().serializeToString(copy);
};

export const fileName = (title: string, ending: string): string => `${title.replace(/[^\w.-]+/g, "-") || "curve"}.${ending}`;
