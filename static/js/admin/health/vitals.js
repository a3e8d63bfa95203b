/**
 * The parts of the server as the strip shows them: each with a name, how it is, and the age of that. Rules only.
 *
 * @typedef {object} Vital
 * @property {string} key
 * @property {string} label
 * @property {"good" | "warn" | "bad" | "idle"} tone
 * @property {string} word what is wrong, or how old the last word is
 */

import { duration, shortReplica } from "../frame/words.js";
import { QUIET_MS } from "./rules.js";

const MANY = 6; // of a kind: then those that are well are one
const ENGINE_WORDS = {
  stalled: ["bad", "makes no progress"],
  dead: ["bad", "away"],
  failed: ["bad", "failed"],
  paused: ["warn", "paused"],
  connecting: ["warn", "is starting"],
  preparing: ["warn", "is starting"],
  asleep: ["idle", "asleep"],
  not_loaded: ["idle", "not loaded"],
};

/**
 * @param {object | null} told the answer of `/v1/admin/health`; null: none yet
 * @param {import("./rules.js").Workers} workers @param {number} toldAt @param {number} now
 * @returns {Vital[]}
 */
export function vitalsOf(told, workers, toldAt, now) {
  if (!told) return [];
  const since = Math.max(0, workers.moment(now) - toldAt);
  return [
    redisVital(told.redis, since, now),
    ...few("engines", told.engines.map((engine) => engineVital(engine, told.engines, since))),
    ...few("workers", everybody(workers).map((worker) => workerVital(worker, workers, now))),
  ];
}

function redisVital({ state, since: changedAt, heard_ms: heard, problems }, since, now) {
  const part = { key: "redis", label: "Redis" };
  if (state !== "ok") {
    return { ...part, tone: "bad", word: [`away for ${duration(now - changedAt)}`, ...problems].join(": ") };
  }
  if (heard + since > QUIET_MS) return { ...part, tone: "bad", word: `silent for ${duration(heard + since)}` };
  if (problems.length) return { ...part, tone: "warn", word: problems.join("; ") };
  return { ...part, tone: "good", word: duration(heard + since) };
}

function engineVital({ name, model, state, draining, heard_ms: heard }, engines, since) {
  const isAlone = engines.filter((one) => one.model === model).length === 1;
  const isNamesake = engines.some((one) => one.name === name && one.model !== model);
  const named = isAlone ? model : isNamesake ? `${name} of ${model}` : name;
  const part = { key: `engine ${model} ${name}`, label: engines.length === 1 ? "Engine" : `Engine ${named}` };
  const [tone, word] = ENGINE_WORDS[state] ?? [];
  if (tone) return { ...part, tone, word };
  const age = (heard ?? 0) + since;
  if (age > QUIET_MS) return { ...part, tone: "bad", word: `silent for ${duration(age)}` };
  if (draining) return { ...part, tone: "warn", word: "draining" };
  return { ...part, tone: "good", word: duration(age) };
}

/** Those that are there, and those that are missing; a worker may be both for some seconds. */
export function everybody({ present, missing }) {
  const ids = new Set(present.map(({ id }) => id));
  return [...present, ...missing.filter(({ id }) => !ids.has(id))];
}

function workerVital(worker, workers, now) {
  const part = { key: `worker ${worker.id}`, label: `Worker ${shortReplica(worker.id)}` };
  const age = workers.age(worker, now);
  if (age > QUIET_MS) return { ...part, tone: "bad", word: `silent for ${duration(age)}` };
  if (worker.draining) return { ...part, tone: "warn", word: "draining" };
  if (worker.log_lines_lost) return { ...part, tone: "warn", word: "its log takes nothing more" };
  return { ...part, tone: "good", word: duration(age) };
}

/** @param {string} kind @param {Vital[]} vitals */
function few(kind, vitals) {
  const well = vitals.filter(({ tone }) => tone === "good");
  if (vitals.length <= MANY || well.length < 2) return vitals;
  const label = `${well.length} ${kind}`;
  const oldest = well.reduce((one, other) => (parseInt(other.word) > parseInt(one.word) ? other : one));
  return [{ key: kind, label, tone: "good", word: oldest.word }, ...vitals.filter(({ tone }) => tone !== "good")];
}
