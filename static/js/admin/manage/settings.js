/** The settings as they run, of the host whose worker answers; secrets are masked before they get here. */

import { html } from "../../widgets/html.js";
import { Sliders } from "../../widgets/icons.js";
import { FilterText, Read } from "../frame/parts.js";
import { Reading } from "../frame/reading.js";
import { Table } from "../frame/table.js";

class Settings {
  settings = new Reading((api) => api.get("/settings"), { everyMs: 30_000 });

  readings() {
    return [this.settings];
  }
}

export const TAB = { id: "settings", label: "Settings", group: "Manage", icon: Sliders, open: () => new Settings(), View: SettingsView };

const ORIGINS = { default: "default", environment: "environment", option: "command line" };
const COLUMNS = [
  { id: "name", label: "Setting", cell: ({ name }) => html`<code>${name}</code>` },
  { id: "value", label: "Value", cell: ({ value }) => (value === null ? null : html`<code>${value}</code>`) },
  { id: "origin", label: "From", cell: ({ origin }) => ORIGINS[origin] ?? origin },
  { id: "about", label: "What it is", cell: ({ about }) => about.replaceAll("`", "") || null },
];

function SettingsView({ admin, state }) {
  const { find = "" } = admin.route.params;
  const fits = ({ name, about }) => `${name} ${about}`.toLowerCase().includes(find.toLowerCase());
  return html`<div class="tab">
    <main class="admin-main">
      <form class="filters" onSubmit=${(event) => event.preventDefault()}>
        <${FilterText} label="Find a setting" value=${find} onPick=${(found) => admin.route.set({ find: found })} />
      </form>
      <${Read} reading=${state.settings}>
        ${({ settings }) => html`<${Table} label="Settings" kind="of-settings" columns=${COLUMNS} rows=${settings.filter(fits)} keyOf=${({ name }) => name} />`}
      <//>
    </main>
  </div>`;
}
