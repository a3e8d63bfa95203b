/** The columns of the list of sessions, and in which orders the server gives it. */

import { html } from "../../widgets/html.js";
import { Stop } from "../../widgets/icons.js";
import { visibleName } from "../../widgets/visible.js";
import { ago, count, duration, shortReplica } from "../frame/words.js";
import { State, titleOf } from "./parts.js";

/** By which the server orders a list that is longer than a page: of answers that are written, and of all sessions. */
export const LIVE_ORDERS = ["user", "model", "worker", "state", "tokens", "rate", "age"];
export const OTHER_ORDERS = ["age"];

/**
 * @param {object} admin @param {object} state the tab's @param {boolean} isWhole whether all rows are on the page
 * @returns {import("../frame/order.js").Column[]}
 */
export function columnsOf(admin, state, isWhole) {
  const rateOf = (row) => (state.stateOf(row) === "paused" ? null : (row.response?.tokens_per_s ?? null));
  const tokensOf = ({ response, usage }) => response?.tokens ?? usage.output_tokens;
  const columns = [
    { id: "user", label: "User", value: nameOf, cell: nameOf },
    { id: "title", label: "Title", value: titleOf, cell: (row) => html`<${Title} state=${state} id=${row.id} title=${titleOf(row)} />` },
    { id: "model", label: "Model", value: ({ model }) => model, cell: ({ model }) => model },
    {
      id: "worker",
      label: "Worker",
      value: ({ response }) => response?.replica ?? null,
      cell: ({ response }) => (response ? shortReplica(response.replica) : null),
    },
    { id: "state", label: "State", value: (row) => state.stateOf(row), cell: (row) => State({ state, row }) },
    { id: "tokens", label: "Tokens", number: true, value: tokensOf, cell: (row) => count(tokensOf(row)) },
    { id: "rate", label: "Tokens/s", number: true, value: rateOf, cell: (row) => rateOf(row)?.toFixed(0) ?? null },
    { id: "viewers", label: "Viewers", number: true, value: ({ viewers }) => viewers, cell: ({ viewers }) => viewers },
    {
      id: "age",
      label: "Age",
      number: true,
      value: ({ response, updated_at: at }) => response?.age_ms ?? admin.now.peek() - at,
      cell: ({ response, updated_at: at }) => (response ? duration(response.age_ms) : ago(at, admin.now.peek())),
    },
    { id: "stop", label: "Stop", isDeed: true, cell: (row) => stopButton(state, row) },
  ];
  if (isWhole) return columns;
  return columns.map((column) => (state.orders.includes(column.id) ? column : { ...column, value: undefined }));
}

export const nameOf = ({ user }) => visibleName(user.name ?? user.id);

/** Drawn anew only when it changes, as a component is that is given plain values and reads a signal. */
function Title({ state, id, title }) {
  const isOpen = state.openId.value === id;
  return html`<button type="button" aria-expanded=${String(isOpen)} onClick=${() => state.show(id)}>${title}</button>`;
}

function stopButton(state, row) {
  if (!row.response) return null;
  return html`<button type="button" class="quiet" title="Stop" aria-label=${`Stop the answer to ${nameOf(row)}`}
    disabled=${row.state === "stopping"} onClick=${() => state.stop(row.id)}><${Stop} /></button>`;
}
