/** The list of sessions with its filters, and beside it the session that is open. */

import { html } from "../../widgets/html.js";
import { visibleName } from "../../widgets/visible.js";
import { inOrder } from "../frame/order.js";
import { Choice, Empty, FilterText, Pager, Read, Segments } from "../frame/parts.js";
import { Table } from "../frame/table.js";
import { count, shortReplica } from "../frame/words.js";
import { columnsOf } from "./columns.js";
import { Drawer } from "./drawer.js";
import { Overview } from "./overview.js";

export function SessionsView({ admin, state }) {
  const openId = state.openId.value;
  return html`<div class=${openId ? "tab has-drawer" : "tab"}>
    <main class="admin-main">
      <${Overview} admin=${admin} />
      <${Filters} admin=${admin} state=${state} />
      <${Read} reading=${state.list}>
        ${(found) => html`<${Found} admin=${admin} state=${state} found=${found} />
          <${List} admin=${admin} state=${state} found=${found} />`}
      <//>
      <${Pager} number=${state.pageNumber} hasMore=${Boolean(state.list.value.value?.next_cursor)}
        onNewer=${() => state.newer()} onOlder=${() => state.older()} />
    </main>
    ${openId && html`<${Drawer} key=${openId} admin=${admin} state=${state} />`}
  </div>`;
}

const ORDERS = [
  ["", "Newest first"],
  ["-age", "Oldest first"],
  ["-tokens", "Most tokens first"],
  ["rate", "Slowest first"],
  ["user", "By user"],
];

function Filters({ admin, state }) {
  const { model = "", worker = "", sort = "" } = admin.route.params;
  const { workers } = admin.state(admin.strip);
  const orders = ORDERS.filter(([order]) => !order || state.isWhole || state.orders.includes(order.replace(/^-/, "")));
  return html`<form class="filters" onSubmit=${(event) => event.preventDefault()}>
    <${Segments} label="Which sessions" value=${state.isActive ? "" : "all"}
      choices=${[["", "Being answered"], ["all", "All"]]}
      onPick=${(show) => state.filter(show ? { show, worker: null } : { show })} />
    <${FilterText} label="Model" value=${model} onPick=${(model) => state.filter({ model })} />
    <${Choice} label="Worker" value=${worker}
      choices=${[["", "Every worker"], ...workers.value.present.map(({ id }) => [id, shortReplica(id)])]}
      onPick=${(worker) => state.filter({ worker, show: null })} />
    <span class="of-phones">
      <${Choice} label="Order" value=${sort} choices=${orders} onPick=${(sort) => state.sort(sort)} />
    </span>
  </form>`;
}

/** What was looked for, and in which way it was found. */
function Found({ admin, state, found }) {
  const { q, user } = admin.route.params;
  if (!q && !user) return null;
  const clear = html`<button type="button" class="plain small" onClick=${() => state.filter({ q: null, by: null, user: null })}>Clear</button>`;
  if (user) {
    const name = found.sessions.find((row) => row.user.id === user)?.user.name ?? user;
    return html`<p class="found">Sessions of <b>${visibleName(name)}</b> ${clear}</p>`;
  }
  if (found.isByTitle) {
    const examined = found.next_cursor && found.sessions.length ? `, among ${count(found.examined)} chats` : "";
    return html`<p class="found">Titles with <q>${q}</q>${examined} ${clear}</p>`;
  }
  const titles = html`<button type="button" class="plain small" onClick=${() => state.filter({ by: "title" })}>Look in titles</button>`;
  if (!found.users?.length) return html`<p class="found">${found.sessions.length ? "By its id" : html`Nobody, and no id, for <q>${q}</q>`} ${clear}</p>`;
  const [first, ...others] = found.users;
  const who = others.length ? html`${count(found.users.length)} users with <q>${q}</q> in their names` : html`<b>${visibleName(first.name)}</b>`;
  return html`<p class="found">Sessions of ${who} ${titles} ${clear}</p>`;
}

/** Nothing fits so far: how far that is, and a way to look on. */
function Further({ admin, state, found }) {
  const isLooking = state.isLooking.value;
  const looked = (state.looked.value ?? 0) + (isLooking ? 0 : found.examined);
  const all = admin.state(admin.strip).told.value.value?.live.sessions;
  const { q, user } = admin.route.params;
  const ofAll = all && !user && (!q || found.isByTitle) ? ` of ${count(all)}` : "";
  return html`<div class="nothing" role="status">
    <p>None among the ${count(looked)}${ofAll} chats that were looked at.</p>
    <p><button type="button" class="plain" onClick=${() => (isLooking ? state.endLooking() : state.lookOn())}>
      ${isLooking ? "Looking at older ones … end it" : "Look at older ones"}</button></p>
  </div>`;
}

function List({ admin, state, found }) {
  const { q, user, model, worker, sort = "" } = admin.route.params;
  const rows = found.sessions;
  if (rows.length === 0) {
    if (found.next_cursor) return html`<${Further} admin=${admin} state=${state} found=${found} />`;
    if (q || user || model || worker) return html`<${Empty}>${state.looked.value ? "Nothing fits, to the oldest chat." : "Nothing fits."}<//>`;
    return html`<${Empty}>${state.isActive ? "Nobody is being answered right now." : "No sessions yet."}<//>`;
  }
  const { isWhole } = state;
  const columns = columnsOf(admin, state, isWhole);
  return html`<${Table} label="Sessions" kind="of-sessions" columns=${columns}
    rows=${isWhole ? inOrder(rows, columns, sort) : rows} keyOf=${({ id }) => id}
    order=${sort} onOrder=${(order) => state.sort(order)}
    onOpen=${({ id }) => state.show(id)} openKey=${state.openId.value} />`;
}
