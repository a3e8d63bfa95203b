/** Everybody's share links: whose, since when; each can be taken back. The links themselves are told to nobody. */

import { html } from "../../widgets/html.js";
import { Link } from "../../widgets/icons.js";
import { visibleName } from "../../widgets/visible.js";
import { ask } from "../frame/dialog.js";
import { Empty, Pager, Read } from "../frame/parts.js";
import { Table } from "../frame/table.js";
import { date, titleText } from "../frame/words.js";
import { Paged } from "./paged.js";

class Shares {
  /** @param {import("../frame/console.js").Console} admin */
  constructor(admin) {
    this.admin = admin;
    this.paged = new Paged(admin, { tab: TAB.id, path: "/shares" });
  }

  readings() {
    return [this.paged.list];
  }

  revoke({ session_id: id, user }) {
    ask(this.admin, {
      title: "Take this share link back",
      text: `Whoever has the link of ${visibleName(user.name ?? user.id)} sees nothing from now on. They can share it again.`,
      deed: "Take back",
      danger: true,
      act: () => this.admin.act((api) => api.delete(`/shares/${encodeURIComponent(id)}`), "Taken back."),
    });
  }
}

export const TAB = { id: "shares", label: "Share links", group: "Manage", icon: Link, open: (admin) => new Shares(admin), View: SharesView };

function SharesView({ state }) {
  const { paged } = state;
  const columns = [
    { id: "user", label: "User", cell: ({ user }) => visibleName(user.name ?? user.id) },
    { id: "title", label: "Chat", cell: ({ title, session_id: id }) => (title === null ? html`<code>${id}</code>` : titleText(title)) },
    { id: "at", label: "Shared", cell: ({ shared_at: at }) => date(at) },
    {
      id: "deed",
      label: "Take back",
      isDeed: true,
      cell: (share) => html`<button type="button" class="plain small" onClick=${() => state.revoke(share)}>Take back …</button>`,
    },
  ];
  return html`<div class="tab">
    <main class="admin-main">
      <${Read} reading=${paged.list}>
        ${({ shares }) =>
          shares.length === 0
            ? html`<${Empty}>Nobody shares a chat.<//>`
            : html`<${Table} label="Share links" kind="of-shares" columns=${columns} rows=${shares} keyOf=${({ session_id: id }) => id} />`}
      <//>
      <${Pager} number=${paged.pageNumber} hasMore=${Boolean(paged.list.value.value?.next_cursor)}
        onNewer=${() => paged.newer()} onOlder=${() => paged.older()} />
    </main>
  </div>`;
}
