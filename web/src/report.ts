/* The script of a report: its curves are in the page. */
import { Curves, type CurveData } from "./curve";

const root = document.getElementById("curves");
const source = document.getElementById("curve-data");
if (root && source) {
  new Curves(root, JSON.parse(source.textContent ?? "") as CurveData);
  addEventListener("beforeprint", () => {
    document.querySelectorAll("details").forEach((one) => { one.open = true; });
  });
}
