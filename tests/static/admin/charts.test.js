import assert from "node:assert/strict";
import { test } from "node:test";

import { CHARTS, alone, lastOf, told, valuesOf } from "../../../static/js/admin/figures/charts.js";

const STATS = {
  at: [0, 10_000, 20_000],
  series: { connections: [null, 2, 3], kv_usage: [null, 0.25, 0.5], errors: [null, 2, null], "ttft_ms.p50": [null, null, 1500] },
};
const chart = (id) => CHARTS.find((one) => one.id === id);

test("a share is told in per cent, and what was not measured is not drawn", () => {
  assert.deepEqual(valuesOf(STATS, chart("kv").lines[0]), [null, 25, 50]);
  assert.deepEqual(valuesOf(STATS, chart("stop").lines[0]), [null, null, null]);
});

test("what did not happen while somebody counted happened no times", () => {
  const [failed, sent] = chart("errors").lines;
  assert.deepEqual(valuesOf(STATS, sent), [null, 2, 0]);
  assert.deepEqual(valuesOf(STATS, failed), [null, 0, 0]);
});

test("a value without neighbours is a point, or nobody would see it", () => {
  assert.deepEqual(alone([1, null, 2, 3, null, 4]), [0, 5]);
  assert.deepEqual(alone([null, null]), []);
});

test("the last value that there is is that of now", () => {
  assert.equal(lastOf([1, 0, null]), 0);
  assert.equal(lastOf([null]), null);
});

test("who does not see a chart is told its last value and its greatest", () => {
  assert.equal(told(chart("kv"), STATS), "KV cache in use: of all blocks 50 % at the end, 50 % at most");
  assert.match(told(chart("first-token"), STATS), /median 1\.5 s at the end.*95 %: nothing measured/);
});
