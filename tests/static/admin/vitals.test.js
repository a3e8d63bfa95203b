import assert from "node:assert/strict";
import { test } from "node:test";

import { Workers } from "../../../static/js/admin/health/rules.js";
import { vitalsOf } from "../../../static/js/admin/health/vitals.js";

const AT = 1_000_000; // when it was told, by the browser's clock
const worker = (pid, more = {}) => ({ id: `vm-${pid}-abc`, host: "vm", engine: "ok", seen_at: 4700, draining: 0, ...more });
const TOLD = {
  redis: { state: "ok", since: 0, heard_ms: 200, problems: [] },
  engines: [{ name: "oracle", model: "oracle", state: "ready", heard_ms: 400 }],
  now: 5000,
  replicas: [worker(1), worker(2)],
  missing: [],
};
const vitals = (changes = {}, now = AT) => {
  const told = { ...TOLD, ...changes };
  return vitalsOf(told, new Workers(told, AT), AT, now);
};
const said = (list) => list.map(({ label, tone, word }) => `${label}: ${tone}, ${word}`);

test("before anything was told nothing is claimed", () => {
  assert.deepEqual(vitalsOf(null, Workers.NONE, null, AT), []);
});

test("each part is there with the age of its last word", () => {
  assert.deepEqual(said(vitals({}, AT + 1000)), [
    "Redis: good, 1 s",
    "Engine: good, 1 s",
    "Worker vm · 1: good, 1 s",
    "Worker vm · 2: good, 1 s",
  ]);
});

test("every part is red when nothing was told for a while", () => {
  const tones = vitals({}, AT + 2500).map(({ tone }) => tone);
  assert.deepEqual(tones, ["bad", "bad", "bad", "bad"]);
});

test("nothing is red because the page itself asks late", () => {
  const tones = vitalsOf(TOLD, new Workers(TOLD, AT, AT + 1000), AT, AT + 9000).map(({ tone }) => tone);
  assert.deepEqual(tones, ["good", "good", "good", "good"]);
});

test("a Redis that is frozen is silent before it is known to be away", () => {
  const frozen = { ...TOLD.redis, heard_ms: 2600 };
  assert.equal(said(vitals({ redis: frozen }))[0], "Redis: bad, silent for 2 s");
  const away = { ...TOLD.redis, state: "unavailable", since: AT - 7000, heard_ms: 8000 };
  assert.equal(said(vitals({ redis: away }))[0], "Redis: bad, away for 7 s");
  const full = { ...away, problems: ["MISCONF its disk is full"] };
  assert.equal(said(vitals({ redis: full }))[0], "Redis: bad, away for 7 s: MISCONF its disk is full");
});

test("what is wrong with Redis although it answers is told", () => {
  const full = { ...TOLD.redis, problems: ["redis may evict keys"] };
  assert.equal(said(vitals({ redis: full }))[0], "Redis: warn, redis may evict keys");
});

test("several engines are told apart by their names, those of one alone by their models", () => {
  const engine = (name, model, state, more) => ({ name, model, state, ...more });
  const engines = [
    engine("native-1", "oracle", "ready", { heard_ms: 0, draining: true }),
    engine("native-2", "oracle", "dead"),
    engine("other", "other", "asleep"),
    engine("gpu1", "oracle", "ready"),
  ];
  assert.deepEqual(said(vitals({ engines })).slice(1, 5), [
    "Engine native-1: warn, draining",
    "Engine native-2: bad, away",
    "Engine other: idle, asleep",
    "Engine gpu1: good, 0 s",
  ]);
});

test("a worker that is missing is there as long as it is not known to have ended", () => {
  const missing = [worker(3, { seen_at: 5000 - 20_000 })];
  assert.equal(said(vitals({ missing })).at(-1), "Worker vm · 3: bad, silent for 20 s");
});

test("of many workers those that are well are one, with the oldest word of theirs", () => {
  const replicas = Array.from({ length: 9 }, (_, pid) => worker(pid + 1, { seen_at: pid === 4 ? 3000 : 4900 }));
  replicas[8] = worker(9, { draining: 1 });
  assert.deepEqual(said(vitals({ replicas })).slice(2), ["8 workers: good, 2 s", "Worker vm · 9: warn, draining"]);
});

test("a worker whose log takes nothing more says so", () => {
  const replicas = [worker(1, { log_lines_lost: 3 }), worker(2)];
  assert.equal(said(vitals({ replicas }))[2], "Worker vm · 1: warn, its log takes nothing more");
});

test("engines of one name are told apart by their models, and none is well whose model is not loaded", () => {
  const engine = (name, model, state) => ({ name, model, state, heard_ms: state === "ready" ? 0 : undefined });
  const engines = [
    engine("native-1", "oracle", "ready"),
    engine("native-2", "oracle", "ready"),
    engine("native-1", "other", "not_loaded"),
    engine("third", "other", "not_loaded"),
  ];
  assert.deepEqual(said(vitals({ engines })).slice(1, 5), [
    "Engine native-1 of oracle: good, 0 s",
    "Engine native-2: good, 0 s",
    "Engine native-1 of other: idle, not loaded",
    "Engine third: idle, not loaded",
  ]);
});
