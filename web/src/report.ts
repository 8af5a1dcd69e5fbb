/* The script of a report and of a notebook's cell: the curves are in the page. */
import { Board, type CurveData } from "./board";
import { localise } from "./times";

const root = document.getElementById("curves");
const source = document.getElementById("curve-data");
localise(document);
if (root && source) {
  new Board(root).show(JSON.parse(source.textContent ?? "") as CurveData);
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((part) => { part.open = true; });
  });
}
