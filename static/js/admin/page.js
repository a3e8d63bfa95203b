/**
 * What the admin page holds: the token, the list with its filters, the session that is open. The list
 * is asked for each second while somebody looks; one page of it costs the server the same whether
 * there are a thousand sessions or a million. What is shown is of one moment, `asOf`.
 */

import { computed, signal } from "@preact/signals";

import { Store } from "../connection/storage.js";
import { AdminApi, Refused } from "./api.js";
import { Workers, lossTrouble } from "./health.js";
import { Watch } from "./watch.js";
import { sentence } from "./words.js";

const TOKEN = "parley.admin-token";
const REFRESH_MS = 1000;
const STALE_MS = 4000; // figures that are older are not shown as those of now
const NOTICE_MS = 4000;
const BAD_NOTICE_MS = 10_000;
const PAGE = 50;

export class AdminPage {
  store = Store.open();
  api = signal(null);
  /** Why the token was not taken. */
  signInError = signal("");
  signingIn = signal(false);
  sessions = signal([]);
  loaded = signal(false);
  stats = signal(null);
  workers = signal(Workers.NONE);
  /** Those of the host that answered. */
  models = signal([]);
  #hasModels = true; // as long as it is not known that there is only one
  /** When all of this was so, by this browser's clock; null before the first answer. */
  asOf = signal(null);
  /** Why the last request failed; null when it did not. */
  lost = signal(null);
  now = signal(Date.now());
  filters = signal({ active: true, user: "", model: "", replica: "" });
  /** Cursors of the pages before this one, the first page's being null. */
  cursors = signal([null]);
  nextCursor = signal(null);
  /** @type {import("@preact/signals").Signal<object | null>} the open session: id, details, watch */
  open = signal(null);
  evicting = signal(null);
  notice = signal(null);
  #timer = 0;
  #busy = false;

  pageNumber = computed(() => this.cursors.value.length);
  isStale = computed(() => {
    if (this.asOf.value === null) return false; // then nothing is shown
    return this.lost.value !== null || this.now.value - this.asOf.value > STALE_MS;
  });
  troubles = computed(() => {
    const now = this.now.value;
    const lost = this.lost.value && lossTrouble(this.lost.value, this.asOf.value);
    return [lost, ...this.workers.value.troubles(now)].filter(Boolean);
  });

  start() {
    const token = sessionStorage.getItem(TOKEN);
    if (token) this.#use(token);
    setInterval(() => this.#tick(), 1000);
    addEventListener("visibilitychange", () => {
      this.#tick();
      this.refresh();
    });
  }

  #tick() {
    if (this.api.value && document.visibilityState === "visible") this.now.value = Date.now();
  }

  async signIn(token) {
    this.signInError.value = "";
    this.signingIn.value = true;
    try {
      await new AdminApi(token).get("/stats");
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
    this.close();
    clearTimeout(this.#timer);
    this.api.value = null;
    this.sessions.value = [];
    this.stats.value = null;
    this.workers.value = Workers.NONE;
    this.models.value = [];
    this.#hasModels = true;
    this.asOf.value = this.lost.value = null;
    this.loaded.value = false;
  }

  #use(token) {
    this.api.value = new AdminApi(token);
    this.refresh();
  }

  // ---- the list ----

  filter(changes) {
    this.filters.value = { ...this.filters.value, ...changes };
    this.cursors.value = [null];
    this.loaded.value = false;
    this.refresh();
  }

  nextPage() {
    this.cursors.value = [...this.cursors.value, this.nextCursor.value];
    this.refresh();
  }

  previousPage() {
    this.cursors.value = this.cursors.value.slice(0, -1);
    this.refresh();
  }

  /** Ask again now, and from now on each second. */
  async refresh() {
    clearTimeout(this.#timer);
    const api = this.api.value;
    if (!api || document.visibilityState !== "visible") return;
    if (!this.#busy) await this.#fetch(api);
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.refresh(), REFRESH_MS);
  }

  async #fetch(api) {
    this.#busy = true;
    const { active, user, model, replica } = this.filters.value;
    const asked = this.filters.value;
    const query = { limit: PAGE, cursor: this.cursors.value.at(-1), active, user, model, replica };
    try {
      // One after the other, so that one connection is enough: another might meet a worker that
      // hangs.
      const stats = await api.get("/stats");
      const page = await api.get("/sessions", query);
      if (this.#hasModels) await this.#fetchModels(api);
      if (api !== this.api.value) return; // signed out meanwhile
      this.now.value = Date.now();
      this.asOf.value = this.now.value;
      this.lost.value = null;
      this.stats.value = stats.live;
      this.workers.value = new Workers(stats, this.now.value);
      if (asked !== this.filters.value) return; // another question was asked meanwhile
      this.sessions.value = page.sessions;
      this.nextCursor.value = page.next_cursor;
      this.loaded.value = true;
      await this.#fetchDetails(api);
    } catch (error) {
      if (api === this.api.value && !this.#isOver(error)) this.lost.value = error;
    } finally {
      this.#busy = false;
    }
  }

  /** How a session stands. A worker that is silent, or without an engine, answers nobody. */
  stateOf(row) {
    const halted = row.state === "in_progress" && this.workers.value.isHalted(row.response?.replica);
    return halted ? "paused" : row.state;
  }

  // ---- one session ----

  show(id) {
    this.close();
    this.open.value = { id, details: null, watch: null };
    this.refresh();
  }

  close() {
    this.open.value?.watch?.close();
    this.open.value = null;
  }

  watch() {
    const open = this.open.value;
    this.open.value = { ...open, watch: new Watch(this.api.value, open.id) };
  }

  async #fetchModels(api) {
    const { models } = await api.get("/models");
    this.#hasModels = models.length > 1; // the list is that of the server's start
    this.models.value = models;
  }

  async #fetchDetails(api) {
    const id = this.open.value?.id;
    if (!id) return;
    try {
      const details = await api.get(`/sessions/${encodeURIComponent(id)}`);
      if (this.open.value?.id === id) this.open.value = { ...this.open.value, details };
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
      this.close();
      this.say("That chat was deleted.");
    }
  }

  // ---- deeds ----

  async stop(id) {
    await this.#act(`/sessions/${encodeURIComponent(id)}/stop`, { reason: "admin page" }, "Stopped.");
  }

  async evict(id, reason, lock) {
    const path = `/sessions/${encodeURIComponent(id)}/evict`;
    this.evicting.value = null;
    await this.#act(path, { reason, lock }, lock ? "Evicted and locked." : "Evicted.");
  }

  async unlock(id) {
    await this.#act(`/sessions/${encodeURIComponent(id)}/unlock`, {}, "Unlocked.");
  }

  /** @param {string} name @param {"load" | "unload"} deed */
  async moveModel(name, deed) {
    const done = deed === "load" ? `${name} is being loaded.` : `${name} goes when no answer uses it.`;
    await this.#act(`/models/${deed}`, { name }, done);
  }

  async #act(path, body, done) {
    try {
      await this.api.value.post(path, body);
      this.say(done);
    } catch (error) {
      if (this.#isOver(error)) return;
      const unknown = "The server does not answer; whether this was done is not known.";
      this.say(error instanceof Refused ? sentence(error.message) : unknown, { bad: true });
    }
    this.refresh();
  }

  say(text, { bad = false } = {}) {
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
