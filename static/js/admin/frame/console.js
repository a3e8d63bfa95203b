/**
 * What the console holds whichever tab is shown: the token, where one is, what is read again and again, and what is
 * said of deeds. Tabs are given to it; it knows none of them.
 *
 * The strip and the tab are read apart, so that a long list does not make the server look silent; and each of them one
 * request after the other, so that few connections are enough: each further one might meet a worker that hangs.
 */

import { computed, signal } from "@preact/signals";

import { Store } from "../../connection/storage.js";
import { AdminApi, Refused } from "./api.js";
import { Lane, ROUND_MS } from "./reading.js";
import { Route } from "./route.js";
import { sentence } from "./words.js";

const TOKEN = "parley.admin-token";
const STRIP_MS = 500;
const TICK_MS = 250; // ages are counted, and what is stale turns red, so often
const LATE_MS = 500; // then this page was held up itself
const NOTICE_MS = 4000;
const BAD_NOTICE_MS = 10_000;

/**
 * @typedef {object} Part what stands in the page: a tab, or the strip above all tabs
 * @property {(admin: Console) => {readings?: () => import("./reading.js").Reading[], close?: () => void}} open
 *   makes its state, when it is first shown; `readings` are read while it is shown, `close` is called at the sign-out
 * @property {Function} View takes `{admin, state}`
 */
/** @typedef {Part & {id: string, label: string, icon?: Function, group?: string}} Tab `group`: a heading in the rail */

export class Console {
  store = Store.open();
  api = signal(null);
  /** Why the token was not taken. */
  signInError = signal("");
  signingIn = signal(false);
  now = signal(Date.now());
  notice = signal(null);
  /** What stands above everything, as a function that draws it; null: nothing. */
  dialog = signal(null);
  /** Why what the dialog asks for was not done; "": nothing was refused. */
  problem = signal("");
  /** @type {import("@preact/signals").ReadonlySignal<import("./reading.js").Reading[]>} */
  readings = computed(() => [...this.#readingsOf(this.#strip), ...this.#readingsOf(this.#tab.value)]);
  /** The moment of the oldest of what is read each second; null before there is anything. */
  asOf = computed(() => {
    const moments = this.#steady.map(({ at }) => at.value).filter((at) => at !== null);
    return moments.length ? Math.min(...moments) : null;
  });
  /** Why the last try to read failed; null when it did not. What was refused is said where it would be shown. */
  lost = computed(() => this.readings.value.find((reading) => reading.error.value && !reading.isRefused)?.error.value ?? null);
  isStale = computed(() => this.#steady.some((reading) => reading.isStale(this.now.value)));
  #strip;
  #tickedAt = 0;
  #wasLate = false;
  #tab = computed(() => this.tabs.find(({ id }) => id === this.route.place.value.tab));
  #states = new Map();
  #lanes = [
    new Lane(() => this.#readingsOf(this.#strip), (error) => this.#isOver(error), STRIP_MS),
    new Lane(() => this.#readingsOf(this.#tab.value), (error) => this.#isOver(error)),
  ];

  /** @param {{tabs: Tab[], strip: Part, Search?: Function}} parts `Search` stands in the head of the page */
  constructor({ tabs, strip, Search = null }) {
    this.tabs = tabs;
    this.#strip = strip;
    this.Search = Search;
    this.route = new Route(tabs.map(({ id }) => id));
  }

  start() {
    const token = sessionStorage.getItem(TOKEN);
    if (token) this.#use(token);
    setInterval(() => this.#tick(), TICK_MS);
    addEventListener("visibilitychange", () => {
      this.#tick();
      this.refresh();
    });
    this.route.place.subscribe(() => this.refresh());
  }

  /** A late tick counts at the next one: answers that came meanwhile may wait behind it. */
  #tick() {
    const before = this.#tickedAt;
    this.#tickedAt = performance.now();
    if (!this.api.value || document.visibilityState !== "visible") return;
    this.#wasLate = !this.#wasLate && this.#tickedAt - before > LATE_MS;
    if (!this.#wasLate) this.now.value = Date.now();
  }

  // ---- who ----

  async signIn(token) {
    this.signInError.value = "";
    this.signingIn.value = true;
    try {
      await new AdminApi(token).get("/replicas");
    } catch (error) {
      this.signInError.value =
        error instanceof Refused && error.status === 401
          ? "The server does not know this token."
          : sentence(error.message);
      return;
    } finally {
      this.signingIn.value = false;
    }
    sessionStorage.setItem(TOKEN, token);
    this.#use(token);
  }

  signOut() {
    sessionStorage.removeItem(TOKEN);
    for (const lane of this.#lanes) lane.stop();
    this.api.value = null;
    for (const state of this.#states.values()) state.close?.();
    this.#states.clear(); // nothing that was read stays
    this.dialog.value = null;
  }

  /** Whether the token has a scope, as the server has said last. */
  may(scope) {
    return this.state(this.#strip).may(scope);
  }

  #use(token) {
    this.api.value = new AdminApi(token);
    this.refresh();
  }

  // ---- parts ----

  /** The tab that is shown. */
  get tab() {
    return this.#tab.value;
  }

  get strip() {
    return this.#strip;
  }

  /** A part's state; the same until the sign-out. */
  state(part) {
    if (!this.#states.has(part)) this.#states.set(part, part.open(this));
    return this.#states.get(part);
  }

  #readingsOf(part) {
    return this.api.value ? (this.state(part).readings?.() ?? []) : [];
  }

  /** Those that are read in each round. */
  get #steady() {
    return this.readings.value.filter(({ everyMs }) => everyMs <= ROUND_MS);
  }

  // ---- reading ----

  /** Read what is due now, and from now on each second while somebody looks. */
  refresh() {
    const mayAsk = () => (document.visibilityState === "visible" ? this.api.value : null);
    for (const lane of this.#lanes) lane.go(mayAsk);
  }

  // ---- deeds ----

  /**
   * Do something, say what came of it, and read everything again. A refusal is said where it was asked for: in the
   * dialog, if that is still there.
   * @param {(api: AdminApi) => Promise<any>} deed @param {string | ((answer: any) => string)} done what to say then
   * @returns {Promise<any>} the server's answer; null when it was refused, or is not known
   */
  async act(deed, done = "") {
    const dialog = this.dialog.value;
    let answer = null;
    try {
      answer = await deed(this.api.value);
      this.say(typeof done === "function" ? done(answer) : done);
    } catch (error) {
      if (this.#isOver(error)) return null;
      const unknown = "The server does not answer; whether this was done is not known.";
      const problem = error instanceof Refused ? sentence(error.message) : unknown;
      if (dialog && this.dialog.value === dialog) this.problem.value = problem;
      else this.say(problem, { bad: true });
    }
    for (const reading of this.readings.value) reading.hurry();
    this.refresh();
    return answer;
  }

  say(text, { bad = false } = {}) {
    if (!text) return;
    const notice = { text, bad };
    this.notice.value = notice;
    const end = () => this.notice.value === notice && (this.notice.value = null);
    setTimeout(end, bad ? BAD_NOTICE_MS : NOTICE_MS);
  }

  /** Whether the token is no good any more; then sign out. */
  #isOver(error) {
    if (!(error instanceof Refused) || error.status !== 401) return false;
    this.signOut();
    this.signInError.value = "The server does not accept this token any more.";
    return true;
  }
}
