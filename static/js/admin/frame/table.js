/** A table whose rows can be ordered and opened; on a phone each row is a card. */

import { html } from "../../widgets/html.js";
import { directionOf, nextOrder } from "./order.js";

/**
 * Rows are shown in the order in which they come (`inOrder`).
 * @param {object} given
 * @param {string} given.label what it lists
 * @param {string} [given.kind] a class
 * @param {import("./order.js").Column[]} given.columns
 * @param {any[]} given.rows
 * @param {(row: any) => string} given.keyOf
 * @param {string} [given.order] @param {(order: string) => void} [given.onOrder]
 * @param {(row: any) => void} [given.onOpen] by a click anywhere in the row; a button of the row is for the keyboard
 * @param {string | null} [given.openKey] of the row that is open
 */
export function Table({ label, kind = "", columns, rows, keyOf, order = "", onOrder, onOpen, openKey = null }) {
  // It may scroll: where it has no button of its own, the keys must get there all the same.
  const region = !onOpen && !onOrder && { role: "group", "aria-label": label, tabindex: 0 };
  const kinds = columns.map(kindOf);
  return html`<div class="list-place" ...${region}>
    <table class=${["list", onOpen && "opens", kind].filter(Boolean).join(" ")} aria-label=${label}>
      <thead>
        <tr>${columns.map((column) => html`<${Head} key=${column.id} column=${column} order=${order} onOrder=${onOrder} />`)}</tr>
      </thead>
      <tbody>
        ${rows.map((row) => {
          const key = keyOf(row);
          const open = (event) => !event.target.closest("button, a, input, select") && onOpen(row);
          return html`<tr key=${key} class=${key === openKey ? "open" : ""} onClick=${onOpen && open}>
            ${columns.map((column, place) => cellOf(column, kinds[place], row))}
          </tr>`;
        })}
      </tbody>
    </table>
  </div>`;
}

/** Where there is nothing to say, a dash; on a phone nothing at all. No component: hundreds are drawn each second. */
function cellOf(column, kind, row) {
  const shown = column.cell(row);
  const isNone = shown === null && !column.isDeed;
  return html`<td key=${column.id} class=${isNone ? `${kind} none` : kind} data-label=${column.label}>${isNone ? "–" : shown}</td>`;
}

function Head({ column, order, onOrder }) {
  const { label, isDeed, value } = column;
  if (isDeed) return html`<th scope="col" class=${kindOf(column)}><span class="visually-hidden">${label}</span></th>`;
  if (!value || !onOrder) return html`<th scope="col" class=${kindOf(column)}>${label}</th>`;
  const direction = directionOf(order, column);
  return html`<th scope="col" class=${kindOf(column)} aria-sort=${direction}>
    <button type="button" class="order" onClick=${() => onOrder(nextOrder(order, column))}>${label}</button>
  </th>`;
}

const kindOf = ({ kind, number, isDeed, id }) => [`col-${kind ?? id}`, number && "number", isDeed && "deed"].filter(Boolean).join(" ");
