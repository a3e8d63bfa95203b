/** The parts of the server: its engines, its workers, its models. */

import { html } from "../../widgets/html.js";
import { Pulse } from "../../widgets/icons.js";
import { Read } from "../frame/parts.js";
import { Reading } from "../frame/reading.js";
import { Engines } from "./engines.js";
import { Models } from "./models.js";
import { WorkersTable } from "./workers.js";

class Server {
  engines = new Reading((api) => api.get("/engines"));
  models = new Reading((api) => api.get("/models"));

  readings() {
    return [this.engines, this.models];
  }
}

export const TAB = { id: "server", label: "Server", icon: Pulse, open: () => new Server(), View: ServerView };

function ServerView({ admin, state }) {
  const { told, workers } = admin.state(admin.strip);
  return html`<div class="tab">
    <main class="admin-main of-server">
      <${Read} reading=${state.engines}>
        ${({ engines }) => html`<${Engines} admin=${admin} engines=${engines} health=${told.value.value} />`}
      <//>
      <${WorkersTable} admin=${admin} workers=${workers.value} now=${admin.now.value} />
      <${Read} reading=${state.models}>${({ models }) => html`<${Models} admin=${admin} models=${models} />`}<//>
    </main>
  </div>`;
}
