/** Wires the parts together. `window.parley` is there for tests and the curious. */

import { render } from "preact";

import { App } from "./app.js";
import { html } from "./html.js";
import { Page } from "./page.js";

const page = new Page();
window.parley = { stats: page.chat.stats };
render(html`<${App} page=${page} />`, document.getElementById("app"));
page.start();
