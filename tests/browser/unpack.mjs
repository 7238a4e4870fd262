// Unpacks the browser of @sparticuz/chromium into the folder that TMPDIR names; its fonts are there, not in /tmp.
import { readFileSync, writeFileSync } from "node:fs";
import chromium from "@sparticuz/chromium";

const folder = process.env.TMPDIR;
await chromium.executablePath();
const fonts = `${folder}/fonts/fonts.conf`;
const text = readFileSync(fonts, "utf8").replace("/tmp/fonts<", `${folder}/fonts/fonts<`).replace("/tmp/fonts-cache/", `${folder}/fonts/cache/`);
writeFileSync(fonts, text);
