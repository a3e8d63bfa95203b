/**
 * What the admin page holds: the token, the list with its filters, the session that is open. The list
 * is asked for each second while somebody looks; one page of it costs the server the same whether
 * there are a thousand sessions or a million.
 */

import { computed, signal } from "@preact/signals";

import { AdminApi, Refused } from "./admin-api.js";
import { Watch } from "./admin-watch.js";
import { Store } from "./storage.js";

const TOKEN = "parley.admin-token";
const REFRESH_MS = 1000;
const PAGE = 50;

export class AdminPage {
  store = Store.open();
  api = signal(null);
  /** Why the token was not taken. */
  signInError = signal("");
  sessions = signal([]);
  loaded = signal(false);
  stats = signal(null);
  replicas = signal([]);
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

  start() {
    const token = sessionStorage.getItem(TOKEN);
    if (token) this.#use(token);
    addEventListener("visibilitychange", () => this.refresh());
  }

  async signIn(token) {
    this.signInError.value = "";
    try {
      await new AdminApi(token).get("/stats");
    } catch (error) {
      this.signInError.value =
        error instanceof Refused && error.status === 401
          ? "The server does not know this token."
          : sentence(error.message);
      return;
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
      const [page, stats] = await Promise.all([api.get("/sessions", query), api.get("/stats")]);
      if (asked !== this.filters.value) return; // another question was asked meanwhile
      this.sessions.value = page.sessions;
      this.nextCursor.value = page.next_cursor;
      this.stats.value = stats.live;
      this.replicas.value = stats.replicas;
      this.loaded.value = true;
      if (this.notice.value?.lost) this.notice.value = null;
      await this.#fetchDetails(api);
    } catch (error) {
      this.#failed(error, true);
    } finally {
      this.#busy = false;
    }
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

  async #act(path, body, done) {
    try {
      await this.api.value.post(path, body);
      this.say(done);
    } catch (error) {
      this.#failed(error, false);
    }
    this.refresh();
  }

  say(text) {
    this.notice.value = { text };
    setTimeout(() => this.notice.value?.text === text && (this.notice.value = null), 4000);
  }

  #failed(error, lost) {
    if (error instanceof Refused && error.status === 401) {
      this.signOut();
      this.signInError.value = "The server does not accept this token any more.";
      return;
    }
    const text = error instanceof Refused ? sentence(error.message) : "The server does not answer.";
    this.notice.value = { text, lost, bad: true };
  }
}

function sentence(text) {
  return `${text.charAt(0).toUpperCase()}${text.slice(1)}${/[.!?]$/.test(text) ? "" : "."}`;
}
