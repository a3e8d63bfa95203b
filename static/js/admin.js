/** Wires the admin page. `window.parleyAdmin` is there for tests and the curious. */

import { render } from "preact";

import { AdminPage } from "./admin-page.js";
import { AdminApp } from "./admin-view.js";
import { html } from "./html.js";

const page = new AdminPage();
window.parleyAdmin = { page };
render(html`<${AdminApp} page=${page} />`, document.getElementById("admin"));
page.start();
