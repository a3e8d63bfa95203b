/**
 * How well the server is, as far as the console knows: which engines are unavailable, which workers are silent, and
 * whether what is shown is old. Rules and words only; nothing here is drawn or asked for.
 */

import { Refused } from "../frame/api.js";
import { clock, duration, sentence, shortReplica } from "../frame/words.js";

const MAX_NAMED = 3; // workers in one sentence
export const QUIET_MS = 2400; // each part says each second that it is there

/** What workers said of themselves, as `/v1/admin/health` has it, in moments of this browser's clock. */
export class Workers {
  static NONE = new Workers({ now: 0, replicas: [], missing: [] }, 0);
  #missing;

  /**
   * @param {{now: number, replicas: object[], missing: object[]}} told @param {number} toldAt
   * @param {number} [until] nobody is taken to be silent after that: the page has not asked since, or is about to hear
   */
  constructor({ now, replicas, missing }, toldAt, until = Infinity) {
    this.moment = (now) => Math.min(now, until);
    this.present = replicas;
    this.missing = missing;
    this.here = (moment) => moment - now + toldAt;
    this.#missing = new Set(missing.map(({ id }) => id));
  }

  /** Since a worker's last report. */
  age(worker, now) {
    return Math.max(0, this.moment(now) - this.here(worker.seen_at));
  }

  /** "ok", what the worker says, or "silent". Engines that say nothing unasked have no `engine_heard_ms`. */
  engineOf(worker, now) {
    const heard = worker.engine_heard_ms;
    return worker.engine === "ok" && heard && heard + this.age(worker, now) > QUIET_MS ? "silent" : worker.engine;
  }

  /** Whether a worker's answers stand still: it is silent or gone, or its engine is away. */
  isHalted(id, now) {
    const worker = this.present.find((one) => one.id === id);
    return !worker || this.age(worker, now) > QUIET_MS || this.engineOf(worker, now) !== "ok";
  }

  /** The ids of those whose answers stand still. */
  halted(now) {
    return this.present.map(({ id }) => id).filter((id) => this.isHalted(id, now));
  }

  /** How many answers stand still. */
  numHalted(now) {
    const halted = this.present.filter(({ id }) => this.isHalted(id, now));
    return halted.reduce((sum, { active_responses }) => sum + active_responses, 0);
  }

  /** @returns {{key: string, headline: string, detail: string}[]} what is wrong with them */
  troubles(now) {
    return [...this.#engineTroubles(now), ...this.missing.map((worker) => this.#missingTrouble(worker, now))];
  }

  /** One for each host, which has one engine, and each state. */
  #engineTroubles(now) {
    const groups = new Map();
    for (const worker of this.present) {
      if (worker.engine === "ok" || this.#missing.has(worker.id)) continue;
      const key = `${worker.engine} ${worker.host}`;
      groups.set(key, [...(groups.get(key) ?? []), worker]);
    }
    return Array.from(groups, ([key, workers]) => ({ key, ...this.#engineTrouble(workers, now) }));
  }

  #engineTrouble(workers, now) {
    const isStalled = workers[0].engine === "stalled";
    const moments = workers.map((worker) => worker.engine_since).filter(Boolean);
    const at = moments.length ? this.here(Math.min(...moments)) : null;
    const since = at === null ? "" : ` since ${clock(at)} (${duration(now - at)})`;
    return {
      headline: `The engine of ${listed(workers)} ${isStalled ? "makes no progress" : "is away"}.`,
      detail: `${isStalled ? "Stalled" : "Away"}${since}. Its answers are paused until it ${
        isStalled ? "goes on" : "is back"
      }.`,
    };
  }

  #missingTrouble(worker, now) {
    return {
      key: worker.id,
      headline: `Worker ${shortReplica(worker.id)} has not been seen since ${clock(this.here(worker.seen_at))}.`,
      detail: `Silent for ${duration(this.age(worker, now))}: it hangs, or its host is gone.`,
    };
  }
}

/**
 * Why the page could not be brought up to date.
 * @param {Error} error of the last request @param {number | null} asOf when the figures came, null if none have
 */
export function lossTrouble(error, asOf) {
  const isStore = error instanceof Refused && error.code === "store_unavailable";
  const headline = error instanceof Refused && !isStore ? sentence(error.message) : `The ${
    isStore ? "session store" : "server"
  } does not answer.`;
  const shown = isStore ? "These lists may be out of date: they are of" : "What you see is of";
  const detail = asOf === null ? "Nothing could be read yet." : `${shown} ${clock(asOf)}.`;
  return { key: "lost", headline, detail: `${detail} This page keeps asking.` };
}

/** "host · 1, host · 2 and 3 more" */
function listed(workers) {
  const names = workers.map(({ id }) => shortReplica(id));
  const rest = names.length - MAX_NAMED;
  const shown = rest > 0 ? [...names.slice(0, MAX_NAMED), `${rest} more`] : names;
  return shown.length < 2 ? shown.join("") : `${shown.slice(0, -1).join(", ")} and ${shown.at(-1)}`;
}
