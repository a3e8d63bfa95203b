import assert from "node:assert/strict";
import { test } from "node:test";

import { directionOf, inOrder, nextOrder } from "../../../static/js/admin/frame/order.js";

const NAME = { id: "name", value: (row) => row.name };
const TOKENS = { id: "tokens", number: true, value: (row) => row.tokens };
const COLUMNS = [NAME, TOKENS, { id: "deed" }];
const ROWS = [
  { name: "worker 10", tokens: 3 },
  { name: "Worker 2", tokens: null },
  { name: "ada", tokens: 20 },
];
const names = (order) => inOrder(ROWS, COLUMNS, order).map(({ name }) => name);

test("words stand as people order them, and numbers in them by what they are", () => {
  assert.deepEqual(names("name"), ["ada", "Worker 2", "worker 10"]);
  assert.deepEqual(names("-name"), ["worker 10", "Worker 2", "ada"]);
});

test("a row without a value comes last, whichever way", () => {
  assert.deepEqual(names("tokens"), ["worker 10", "ada", "Worker 2"]);
  assert.deepEqual(names("-tokens"), ["ada", "worker 10", "Worker 2"]);
});

test("without an order, or by what has no value, rows stay as they came", () => {
  for (const order of ["", "deed", "-gone"]) assert.deepEqual(names(order), ROWS.map(({ name }) => name));
});

test("of figures the most comes first, of words the first; a second click turns it round", () => {
  assert.equal(nextOrder("", TOKENS), "-tokens");
  assert.equal(nextOrder("-tokens", TOKENS), "tokens");
  assert.equal(nextOrder("-tokens", NAME), "name");
  assert.equal(nextOrder("name", NAME), "-name");
  assert.equal(directionOf("-tokens", TOKENS), "descending");
  assert.equal(directionOf("-tokens", NAME), "none");
});
