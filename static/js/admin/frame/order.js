/** In which order a table stands: a column's name, with `-` before it the other way round. */

/**
 * @typedef {object} Column
 * @property {string} id
 * @property {string} label its head
 * @property {(row: any) => any} cell what stands in it
 * @property {(row: any) => string | number | null} [value] by which rows are ordered; without it they are not
 * @property {boolean} [number] a figure: it stands at the end of its cell, and the most comes first
 * @property {string} [kind] a class for its cells
 * @property {boolean} [isDeed] it holds buttons, and its head is for those who do not see them
 */

/** The order after a click on a column's head. @param {string} order the present one @param {Column} column */
export function nextOrder(order, { id, number }) {
  const [first, second] = number ? [`-${id}`, id] : [id, `-${id}`];
  return order === first ? second : first;
}

/** "ascending", "descending" or "none", as `aria-sort` has it */
export function directionOf(order, { id }) {
  if (order === id) return "ascending";
  return order === `-${id}` ? "descending" : "none";
}

/**
 * The rows in that order; what has no value comes last. @param {any[]} rows @param {Column[]} columns
 * @param {string} order
 */
export function inOrder(rows, columns, order) {
  const value = columns.find(({ id }) => id === order.replace(/^-/, ""))?.value;
  if (!value) return rows;
  const sign = order.startsWith("-") ? -1 : 1;
  return rows
    .map((row) => [value(row) ?? null, row])
    .sort(([one], [other]) => compare(one, other, sign))
    .map(([, row]) => row);
}

function compare(one, other, sign) {
  if (one === null || other === null) return (one === null) - (other === null);
  if (typeof one === "string") return sign * one.localeCompare(other, undefined, { numeric: true, sensitivity: "base" });
  return sign * (one - other);
}
