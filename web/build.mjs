// Builds the two scripts that are committed: the report's, which stands inside its page, and the dashboard's.
import { build } from "esbuild";
import { fileURLToPath } from "node:url";

const here = fileURLToPath(new URL(".", import.meta.url));
const out = process.argv[2] ?? `${here}../src/sonde`;
const banner = { js: "/* Built from web/src by `npm run build`; do not edit. */" };
const shared = { bundle: true, minify: true, format: "iife", target: "es2022", charset: "utf8", legalComments: "none", banner };
await build({ ...shared, entryPoints: [`${here}src/report.ts`], outfile: `${out}/report/html/curve.js` });
await build({ ...shared, entryPoints: [`${here}src/dashboard.ts`], outfile: `${out}/dashboard/static/dashboard.js` });
