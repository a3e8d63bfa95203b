/** Wires the parts together. `window.parley` is there for tests and the curious. */

import { render } from "preact";

import { Markdown } from "./markdown/markdown.js";
import { Page } from "./page.js";
import { App } from "./shell/app.js";
import { html } from "./widgets/html.js";

const page = new Page();
window.parley = { Markdown, stats: page.chat.stats };
render(html`<${App} page=${page} />`, document.getElementById("app"));
page.start();
