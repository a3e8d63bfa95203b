/** The page of a share link. Nothing is asked of the server before its reader wants to go on with the chat. */

import { serveCode } from "../markdown/code.js";
import { continueOnClick } from "./continue.js";
import { Drawing } from "./drawing.js";

const log = document.querySelector(".log");
const said = document.querySelector(".said");
const print = document.querySelector(".print");
const drawing = new Drawing(log);

serveCode(log);
addEventListener("parley:said", ({ detail }) => (document.querySelector(".spoken").textContent = detail));
continueOnClick(document.querySelector(".continue"), (words) => (said.textContent = words));
addEventListener("beforeprint", () => drawing.finish());
print.hidden = false;
print.addEventListener("click", () => globalThis.print());
drawing.run();
