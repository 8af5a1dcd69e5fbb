/* Turns a part of the page into what it is now, and touches only what differs: scroll, focus, selected text and what is unfolded stay.

   Children with `data-key` or an id are found again by it. What the script has filled itself (`data-filled`) stays filled,
   and what is the script's own (`data-own`) is not touched at all. */
const KEPT = new Set(["open", "style", "data-filled", "aria-pressed"]);

const keyOf = (node: Node): string | null => node instanceof Element ? node.getAttribute("data-key") ?? (node.id || null) : null;

const isAlike = (one: Node, other: Node): boolean =>
  one.nodeType === other.nodeType && one.nodeName === other.nodeName && keyOf(one) === keyOf(other);

const takeAttributes = (old: Element, now: Element): void => {
  for (const { name } of [...old.attributes]) if (!KEPT.has(name) && !now.hasAttribute(name)) old.removeAttribute(name);
  for (const { name, value } of now.attributes) if (!KEPT.has(name) && old.getAttribute(name) !== value) old.setAttribute(name, value);
};

export const morph = (old: Element, now: Element): void => {
  if (old.hasAttribute("data-own")) return;
  takeAttributes(old, now);
  if (old.hasAttribute("data-filled")) return;
  const known = new Map<string, Element>();
  for (const child of old.children) { const key = keyOf(child); if (key) known.set(key, child); }
  let place: ChildNode | null = old.firstChild;
  for (const wanted of [...now.childNodes]) {
    const key = keyOf(wanted), same = key ? known.get(key) : undefined;
    if (same && same !== place && isAlike(same, wanted)) {
      old.insertBefore(same, place);
      morph(same, wanted as Element);
    } else if (place && isAlike(place, wanted)) {
      const next: ChildNode | null = place.nextSibling;
      if (place instanceof Element) morph(place, wanted as Element);
      else if (place.nodeValue !== wanted.nodeValue) place.nodeValue = wanted.nodeValue;
      place = next;
    } else old.insertBefore(wanted, place);
  }
  while (place) { const next: ChildNode | null = place.nextSibling; place.remove(); place = next; }
};
