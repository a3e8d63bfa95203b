/** The parts of the server: its models. */

import { html } from "../../widgets/html.js";
import { Read } from "../frame/parts.js";
import { Reading } from "../frame/reading.js";
import { Models } from "./models.js";

class Server {
  models = new Reading((api) => api.get("/models"));

  readings() {
    return [this.models];
  }
}

export const TAB = { id: "server", label: "Server", open: () => new Server(), View: ServerView };

function ServerView({ admin, state }) {
  return html`<div class="tab">
    <main class="admin-main">
      <${Read} reading=${state.models}>${({ models }) => html`<${Models} admin=${admin} models=${models} />`}<//>
    </main>
  </div>`;
}
