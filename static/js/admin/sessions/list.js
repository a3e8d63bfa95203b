/** The list of sessions with its filters, and beside it the session that is open. */

import { html } from "../../widgets/html.js";
import { Stop } from "../../widgets/icons.js";
import { Choice, Empty, FilterText, Pager, Read, Segments } from "../frame/parts.js";
import { Table } from "../frame/table.js";
import { ago, count, duration, shortReplica } from "../frame/words.js";
import { Drawer } from "./drawer.js";
import { State, titleOf } from "./parts.js";

export function SessionsView({ admin, state }) {
  const openId = state.openId.value;
  return html`<div class=${openId ? "tab has-drawer" : "tab"}>
    <main class="admin-main">
      <${Filters} admin=${admin} state=${state} />
      <${Read} reading=${state.list}>${({ sessions }) => html`<${List} admin=${admin} state=${state} rows=${sessions} />`}<//>
      <${Pager} number=${state.pageNumber} hasMore=${Boolean(state.list.value.value?.next_cursor)}
        onNewer=${() => state.newer()} onOlder=${() => state.older()} />
    </main>
    ${openId && html`<${Drawer} key=${openId} admin=${admin} state=${state} id=${openId} />`}
  </div>`;
}

function Filters({ admin, state }) {
  const { user = "", model = "", worker = "" } = admin.route.params;
  const { workers } = admin.state(admin.strip);
  return html`<form class="filters" onSubmit=${(event) => event.preventDefault()}>
    <${Segments} label="Which sessions" value=${state.isActive ? "" : "all"}
      choices=${[["", "Being answered"], ["all", "All"]]}
      onPick=${(show) => state.filter(show ? { show, worker: null } : { show })} />
    <${FilterText} label="User id" value=${user} onPick=${(user) => state.filter({ user })} />
    <${FilterText} label="Model" value=${model} onPick=${(model) => state.filter({ model })} />
    <${Choice} label="Worker" value=${worker}
      choices=${[["", "Every worker"], ...workers.value.present.map(({ id }) => [id, shortReplica(id)])]}
      onPick=${(worker) => state.filter({ worker, show: null })} />
  </form>`;
}

function List({ admin, state, rows }) {
  const { user, model, worker } = admin.route.params;
  if (rows.length === 0) {
    if (user || model || worker) return html`<${Empty}>Nothing fits these filters.<//>`;
    return html`<${Empty}>${state.isActive ? "Nobody is being answered right now." : "No sessions yet."}<//>`;
  }
  return html`<${Table} label="Sessions" kind="sessions" columns=${columnsOf(admin, state)} rows=${rows} keyOf=${({ id }) => id}
    onOpen=${({ id }) => state.show(id)} openKey=${state.openId.value} />`;
}

/** @returns {import("../frame/order.js").Column[]} */
function columnsOf(admin, state) {
  const rateOf = (row) => (state.stateOf(row) === "paused" ? null : (row.response?.tokens_per_s ?? null));
  return [
    { id: "user", label: "User", cell: nameOf },
    { id: "title", label: "Title", cell: (row) => html`<${Title} state=${state} row=${row} />` },
    { id: "model", label: "Model", cell: ({ model }) => model },
    { id: "worker", label: "Worker", cell: ({ response }) => (response ? shortReplica(response.replica) : null) },
    { id: "state", label: "State", cell: (row) => html`<${State} state=${state} row=${row} />` },
    { id: "tokens", label: "Tokens", number: true, cell: ({ response, usage }) => count(response?.tokens ?? usage.output_tokens) },
    { id: "rate", label: "Tokens/s", number: true, cell: (row) => rateOf(row)?.toFixed(0) ?? null },
    { id: "viewers", label: "Viewers", number: true, cell: ({ viewers }) => viewers },
    {
      id: "age",
      label: "Age",
      number: true,
      cell: ({ response, updated_at: at }) => (response ? duration(response.age_ms) : ago(at, admin.now.peek())),
    },
    { id: "stop", label: "Stop", isDeed: true, cell: (row) => html`<${StopButton} state=${state} row=${row} />` },
  ];
}

const nameOf = ({ user }) => user.name ?? user.id;

function Title({ state, row }) {
  const isOpen = state.openId.value === row.id;
  return html`<button type="button" aria-expanded=${String(isOpen)} onClick=${() => state.show(row.id)}>${titleOf(row)}</button>`;
}

function StopButton({ state, row }) {
  if (!row.response) return null;
  return html`<button type="button" class="quiet" title="Stop" aria-label=${`Stop the answer to ${nameOf(row)}`}
    disabled=${row.state === "stopping"} onClick=${() => state.stop(row.id)}><${Stop} /></button>`;
}
