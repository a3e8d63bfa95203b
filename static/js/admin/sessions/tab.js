/**
 * Everybody's sessions: the list with its filters, and the session that is open beside it. One page of the list costs
 * the server the same whether there are a thousand sessions or a million.
 */

import { computed, signal } from "@preact/signals";

import { Refused } from "../frame/api.js";
import { ask } from "../frame/dialog.js";
import { Reading } from "../frame/reading.js";
import { SessionsView } from "./list.js";
import { Watch } from "./watch.js";

const PAGE = 50;
const FILTERS = ["show", "user", "model", "worker", "after"]; // each of them makes it another list

class Sessions {
  list = new Reading((api) => api.get("/sessions", this.#query()));
  details = new Reading((api) => this.#readDetails(api));
  /** @type {import("@preact/signals").Signal<Watch | null>} the conversation of the open session, if it is watched */
  watch = signal(null);
  /** The open session's id. */
  openId = computed(() => this.admin.route.params.open ?? null);
  #cursors = []; // of the pages before this one
  #asked = "";

  /** @param {import("../frame/console.js").Console} admin */
  constructor(admin) {
    this.admin = admin;
    this.openId.subscribe(() => this.#change());
    admin.route.place.subscribe(({ tab, params }) => {
      const asked = FILTERS.map((name) => params[name] ?? "").join("\n");
      if (tab !== TAB.id || asked === this.#asked) return;
      this.#asked = asked;
      this.list.renew();
    });
  }

  readings() {
    return this.openId.value === null ? [this.list] : [this.list, this.details];
  }

  close() {
    this.watch.value?.close();
    this.watch.value = null;
  }

  get isActive() {
    return this.admin.route.params.show !== "all";
  }

  #query() {
    const { user, model, worker, after } = this.admin.route.params;
    return { limit: PAGE, cursor: after, active: this.isActive, user, model, replica: worker };
  }

  /** @param {Record<string, string | null>} changes */
  filter(changes) {
    this.#cursors = [];
    this.admin.route.set({ ...changes, after: null });
  }

  get pageNumber() {
    return this.admin.route.params.after ? this.#cursors.length + 2 : 1;
  }

  older() {
    const { after } = this.admin.route.params;
    if (after) this.#cursors.push(after);
    this.admin.route.set({ after: this.list.value.value.next_cursor });
  }

  newer() {
    this.admin.route.set({ after: this.#cursors.pop() ?? null });
  }

  /** How a session stands. A worker that is silent, or without an engine, answers nobody. */
  stateOf(row) {
    const { workers } = this.admin.state(this.admin.strip);
    const isHalted = row.state === "in_progress" && workers.value.isHalted(row.response?.replica);
    return isHalted ? "paused" : row.state;
  }

  // ---- one session ----

  /** @param {string | null} id */
  show(id) {
    this.admin.route.set({ open: id }, { keep: true });
  }

  startWatch() {
    this.watch.value = new Watch(this.admin.api.value, this.openId.value);
  }

  #change() {
    this.close();
    this.details.renew();
  }

  async #readDetails(api) {
    const id = this.openId.value;
    try {
      return await api.get(`/sessions/${encodeURIComponent(id)}`);
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 404) throw error;
      if (this.openId.value === id) {
        this.admin.route.set({ open: null });
        this.admin.say("That chat was deleted.");
      }
      return null;
    }
  }

  // ---- deeds ----

  stop(id) {
    const path = `/sessions/${encodeURIComponent(id)}/stop`;
    return this.admin.act((api) => api.post(path, { reason: "admin page" }), "Stopped.");
  }

  evict(id) {
    const path = `/sessions/${encodeURIComponent(id)}/evict`;
    ask(this.admin, {
      title: "Evict everybody from this chat",
      text: "Its answers end, and the connections of all its viewers are closed.",
      reason: { label: "Reason, shown to them", isNeeded: true, max: 120 },
      check: "Lock the chat: no new answers until it is unlocked",
      deed: "Evict",
      danger: true,
      act: ({ reason, isChecked: lock }) =>
        this.admin.act((api) => api.post(path, { reason, lock }), lock ? "Evicted and locked." : "Evicted."),
    });
  }

  unlock(id) {
    return this.admin.act((api) => api.post(`/sessions/${encodeURIComponent(id)}/unlock`), "Unlocked.");
  }
}

export const TAB = {
  id: "sessions",
  label: "Sessions",
  open: (admin) => new Sessions(admin),
  View: SessionsView,
};
