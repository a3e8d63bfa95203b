import assert from "node:assert/strict";
import { test } from "node:test";

import { Refused, Silent } from "../../../static/js/admin/frame/api.js";
import { Workers, lossTrouble } from "../../../static/js/admin/health/rules.js";
import { clock } from "../../../static/js/admin/frame/words.js";

const HERE = 1_000_000; // when the figures came, by the browser's clock
const THERE = 5_000_000; // the same moment by the server's

const worker = (pid, more = {}) => ({
  id: `vm-${pid}-abc`,
  host: "vm",
  engine: "ok",
  engine_since: THERE - 60_000,
  seen_at: THERE - 500,
  engine_heard_ms: 300,
  active_responses: 2,
  ...more,
});
const workers = (replicas, missing = []) => new Workers({ now: THERE, replicas, missing }, HERE);

test("a healthy server has no troubles, and its answers run", () => {
  const all = workers([worker(1), worker(2)]);
  assert.deepEqual(all.troubles(HERE), []);
  assert.equal(all.isHalted("vm-1-abc", HERE), false);
  assert.equal(all.numHalted(HERE), 0);
});

test("an engine that is away is reported once for its workers, since when by the reader's clock", () => {
  const away = { engine: "unavailable", engine_since: THERE - 25_000 };
  const all = workers([worker(1, away), worker(2, { ...away, engine_since: THERE - 24_000 })]);
  const [trouble, ...others] = all.troubles(HERE + 5000);
  assert.deepEqual(others, []);
  assert.equal(trouble.headline, "The engine of vm · 1 and vm · 2 is away.");
  assert.ok(trouble.detail.startsWith(`Away since ${clock(HERE - 25_000)} (30 s).`), trouble.detail);
  assert.equal(all.isHalted("vm-2-abc", HERE), true);
  assert.equal(all.numHalted(HERE), 4);
});

test("a stalled engine of one host leaves the other host's answers running", () => {
  const all = workers([worker(1), worker(2, { host: "other", engine: "stalled" })]);
  const [trouble] = all.troubles(HERE);
  assert.equal(trouble.headline, "The engine of vm · 2 makes no progress.");
  assert.equal(all.isHalted("vm-1-abc", HERE), false);
  assert.equal(all.numHalted(HERE), 2);
});

test("many workers of one engine are not all named", () => {
  const all = workers([1, 2, 3, 4, 5].map((pid) => worker(pid, { engine: "unavailable" })));
  assert.equal(all.troubles(HERE)[0].headline, "The engine of vm · 1, vm · 2, vm · 3 and 2 more is away.");
});

test("a silent worker is named with the moment since when, and its answers stand still", () => {
  const silent = worker(1, { seen_at: THERE - 14_000 });
  const all = workers([silent, worker(2)], [silent]);
  const [trouble] = all.troubles(HERE + 1000);
  assert.equal(trouble.headline, `Worker vm · 1 has not been seen since ${clock(HERE - 14_000)}.`);
  assert.match(trouble.detail, /^Silent for 15 s/);
  assert.equal(all.isHalted("vm-1-abc", HERE), true);
  assert.equal(all.isHalted("vm-3-gone", HERE), true);
  assert.equal(all.numHalted(HERE), 2);
});

test("the last state of its engine that a silent worker sent is not shown as that of now", () => {
  const silent = worker(1, { engine: "stalled", seen_at: THERE - 14_000 });
  assert.equal(workers([silent], [silent]).troubles(HERE).length, 1);
});

test("lists that cannot be read are called old; nobody doubts that they were stored", () => {
  const away = new Refused(503, { code: "store_unavailable", message: "not known whether this was stored" });
  const { headline, detail } = lossTrouble(away, HERE);
  assert.equal(headline, "The session store does not answer.");
  assert.match(detail, new RegExp(`These lists may be out of date: they are of ${clock(HERE)}\\.`));
  assert.doesNotMatch(headline + detail, /stored/);
});

test("a server that is silent, and one that refuses, are told apart", () => {
  assert.equal(lossTrouble(new Silent(), HERE).headline, "The server does not answer.");
  assert.equal(lossTrouble(new Refused(500, { message: "it broke" }), HERE).headline, "It broke.");
  assert.match(lossTrouble(new Silent(), null).detail, /^Nothing could be read yet/);
});

test("what a worker said some seconds ago is not what its answers do now", () => {
  const all = workers([worker(1)]);
  assert.equal(all.isHalted("vm-1-abc", HERE + 1500), false);
  assert.deepEqual(all.halted(HERE + 2000), ["vm-1-abc"]);
  assert.equal(all.numHalted(HERE + 2000), 2);
});

test("as long as the page itself is late nobody is taken to be silent, and nobody's answers stand still", () => {
  const told = { now: THERE, replicas: [worker(1)], missing: [] };
  const late = new Workers(told, HERE, HERE + 1000);
  assert.equal(late.age(worker(1), HERE + 9000), 1500);
  assert.equal(late.numHalted(HERE + 9000), 0);
  const silent = { ...told, replicas: [worker(1, { seen_at: THERE - 2000 })] };
  assert.equal(new Workers(silent, HERE, HERE + 1000).numHalted(HERE + 500), 2); // the server has said so
});

test("an engine that has said nothing for a while is silent, whatever its worker thinks of it", () => {
  const one = worker(1, { engine_heard_ms: 2500 });
  const all = workers([one, worker(2, { engine_heard_ms: 0 })]); // the second one says nothing unasked
  assert.equal(all.engineOf(one, HERE), "silent");
  assert.deepEqual(all.halted(HERE), ["vm-1-abc"]);
  assert.deepEqual(all.troubles(HERE), []); // that it is stalled its worker will say
});
