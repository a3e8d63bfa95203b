/** The notice to all users: what is shown now, and another one. */

import { html } from "../../widgets/html.js";
import { Horn } from "../../widgets/icons.js";
import { visibleName } from "../../widgets/visible.js";
import { ask, fill } from "../frame/dialog.js";
import { Empty, Read } from "../frame/parts.js";
import { Reading } from "../frame/reading.js";
import { date } from "../frame/words.js";
import { Facts } from "./drawer.js";

const LIVES = [
  ["900", "15 minutes"],
  ["3600", "an hour"],
  ["14400", "4 hours"],
  ["86400", "a day"],
  ["604800", "a week"],
];
const LEVELS = [
  ["info", "News"],
  ["warning", "Warning"],
];

class NoticeState {
  shown = new Reading((api) => api.get("/notice"), { everyMs: 3000 });

  /** @param {import("../frame/console.js").Console} admin */
  constructor(admin) {
    this.admin = admin;
  }

  readings() {
    return [this.shown];
  }

  write(notice) {
    fill(this.admin, {
      title: "Tell all users",
      text: notice ? "It takes the place of the one that is shown." : "Every open page shows it at once, and those that are opened later.",
      deed: "Show",
      fields: [
        { name: "text", label: "What to say, in one line", isNeeded: true, max: 500 },
        { name: "level", label: "Kind", kind: "choice", value: "info", choices: LEVELS },
        { name: "life", label: "For how long", kind: "choice", value: "3600", choices: LIVES },
      ],
      act: ({ text, level, life }) =>
        this.admin.act((api) => api.put("/notice", { text, level, expires_in_s: Number(life) }), "All users see it now."),
    });
  }

  remove() {
    ask(this.admin, {
      title: "Show this notice no more",
      deed: "Take away",
      act: () => this.admin.act((api) => api.delete("/notice"), "Nobody sees it any more."),
    });
  }
}

export const TAB = { id: "notice", label: "Notice", group: "Manage", icon: Horn, open: (admin) => new NoticeState(admin), View: NoticeView };

function NoticeView({ state }) {
  return html`<div class="tab">
    <main class="admin-main">
      <${Read} reading=${state.shown}>
        ${({ notice }) => html`
          <div class="filters">
            <button type="button" class="plain" onClick=${() => state.write(notice)}>${notice ? "Show another …" : "Tell all users …"}</button>
            ${notice && html`<button type="button" class="plain" onClick=${() => state.remove()}>Take away …</button>`}
          </div>
          ${notice ? html`<${Shown} notice=${notice} />` : html`<${Empty}>Users are shown no notice.<//>`}
        `}
      <//>
    </main>
  </div>`;
}

function Shown({ notice }) {
  return html`<section class="shown-notice" aria-label="The notice">
    <p class=${`announcement ${notice.level}`} dir="auto">${visibleName(notice.text)}</p>
    <${Facts} facts=${[
      ["Until", date(notice.until)],
      ["Since", date(notice.created_at)],
      ["By", html`<code>${notice.by}</code>`],
    ]} />
  </section>`;
}
