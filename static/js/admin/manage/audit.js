/** Who did or read what as an admin: the log, filtered by who, what and whom. */

import { html } from "../../widgets/html.js";
import { File } from "../../widgets/icons.js";
import { visibleName } from "../../widgets/visible.js";
import { Empty, FilterText, Pager, Read } from "../frame/parts.js";
import { Table } from "../frame/table.js";
import { date } from "../frame/words.js";
import { Paged } from "./paged.js";

const FILTERS = ["actor", "action", "target"];

class Audit {
  /** @param {import("../frame/console.js").Console} admin */
  constructor(admin) {
    this.paged = new Paged(admin, { tab: TAB.id, path: "/audit", filters: FILTERS });
  }

  readings() {
    return [this.paged.list];
  }
}

export const TAB = { id: "audit", label: "Audit", group: "Manage", icon: File, open: (admin) => new Audit(admin), View: AuditView };

const COLUMNS = [
  { id: "at", label: "When", cell: ({ at }) => date(at) },
  { id: "actor", label: "Who", cell: ({ actor, actor_name: name }) => named(actor, name) },
  { id: "action", label: "Did", cell: ({ action }) => action },
  { id: "target", label: "To", cell: (entry) => toWhom(entry) },
  { id: "reason", label: "Why", cell: ({ reason, user }) => (reason && reason !== user?.id ? visibleName(reason) : null) },
  { id: "address", label: "From", cell: ({ address }) => address || null },
];

/** What is called so now, beside the id, which nobody can choose. */
function named(id, name) {
  return html`<div>${name && name !== id && `${visibleName(name)} `}<code>${visibleName(id)}</code></div>`;
}

/** Of a session and of a group also the user whom it is about, unless it is who did it. */
function toWhom({ actor, target, target_name: name, user }) {
  if (!target) return null;
  return html`<div>${named(target, name)}${user && user.id !== actor && named(user.id, user.name)}</div>`;
}

function AuditView({ admin, state }) {
  const { paged } = state;
  const { params } = admin.route;
  const isFiltered = FILTERS.some((name) => params[name]);
  return html`<div class="tab">
    <main class="admin-main">
      <form class="filters" onSubmit=${(event) => event.preventDefault()}>
        <${FilterText} label="Who" hint="Who: a user's id" value=${params.actor ?? ""} onPick=${(actor) => paged.filter({ actor })} />
        <${FilterText} label="What" hint="What: user.*" value=${params.action ?? ""} onPick=${(action) => paged.filter({ action })} />
        <${FilterText} label="To whom" hint="To: an id" value=${params.target ?? ""} onPick=${(target) => paged.filter({ target })} />
      </form>
      <${Read} reading=${paged.list}>
        ${({ entries, next_cursor: more }) =>
          entries.length === 0
            ? html`<${Empty}>${more ? "Nothing on this page fits; older ones may." : isFiltered ? "Nothing fits these filters." : "Nothing was done yet."}<//>`
            : html`<${Table} label="Audit log" kind="of-audit" columns=${COLUMNS} rows=${entries} keyOf=${({ id }) => id} />`}
      <//>
      <${Pager} number=${paged.pageNumber} hasMore=${Boolean(paged.list.value.value?.next_cursor)}
        onNewer=${() => paged.newer()} onOlder=${() => paged.older()} />
    </main>
  </div>`;
}
