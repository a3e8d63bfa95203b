/** Wires the admin page. `window.parleyAdmin` is there for tests and the curious. */

import { render } from "preact";

import { html } from "../widgets/html.js";
import { AdminPage } from "./page.js";
import { AdminApp } from "./view.js";

const page = new AdminPage();
window.parleyAdmin = { page };
render(html`<${AdminApp} page=${page} />`, document.getElementById("admin"));
page.start();
