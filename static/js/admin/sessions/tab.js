/**
 * Everybody's sessions: the list with its filters, and the session that is open beside it. One page of the list costs
 * the server the same whether there are a thousand sessions or a million.
 */

import { computed, signal } from "@preact/signals";

import { Chats } from "../../widgets/icons.js";
import { Refused } from "../frame/api.js";
import { ask } from "../frame/dialog.js";
import { ROUND_MS, Reading, readOpen, readPage } from "../frame/reading.js";
import { LIVE_ORDERS, OTHER_ORDERS } from "./columns.js";
import { SessionsView } from "./list.js";
import { Watch } from "./watch.js";

const PAGE = 50;
const FILTERS = ["q", "by", "show", "user", "model", "worker", "after"]; // each of them makes it another list
const FOUND_MS = 3000; // what was looked for is read again less often: titles have no index

class Sessions {
  list = new Reading((api) => readPage(this.admin, () => this.#readList(api)));
  details = new Reading((api) => this.#readDetails(api));
  /** @type {import("@preact/signals").Signal<Watch | null>} the conversation of the open session, if it is watched */
  watch = signal(null);
  /** The open session's id. */
  openId = computed(() => this.admin.route.params.open ?? null);
  /** How many chats "Look on" has looked at; null before it was asked for. */
  looked = signal(null);
  isLooking = signal(false);
  #cursors = []; // of the pages before this one
  #asked = null;
  #titlesAreHidden = false;
  #forget = []; // of what it follows

  /** @param {import("../frame/console.js").Console} admin */
  constructor(admin) {
    this.admin = admin;
    this.#forget.push(this.openId.subscribe(() => this.#change()));
    const take = ({ tab, params }) => {
      const asked = FILTERS.map((name) => params[name] ?? "").join("\n");
      if (tab !== TAB.id || asked === this.#asked) return;
      this.#asked = asked;
      this.isLooking.value = false;
      if (!params.after) this.looked.value = null;
      this.list.everyMs = params.q ? FOUND_MS : ROUND_MS;
      this.list.renew();
    };
    this.#forget.push(admin.route.place.subscribe(take));
  }

  readings() {
    return this.openId.value === null ? [this.list] : [this.list, this.details];
  }

  close() {
    for (const forget of this.#forget) forget();
    this.#endWatch();
  }

  #endWatch() {
    this.watch.value?.close();
    this.watch.value = null;
  }

  get isActive() {
    return this.admin.route.params.show !== "all";
  }

  /** The columns by which the server orders a list that is longer than a page. */
  get orders() {
    if (this.isActive) return LIVE_ORDERS;
    return this.list.value.value?.isByTitle ? [] : OTHER_ORDERS;
  }

  /** Whether the page has all rows, which can then be ordered here. */
  get isWhole() {
    return !this.list.value.value?.next_cursor && this.pageNumber === 1;
  }

  async #readList(api, cursor = this.admin.route.params.after, isByTitle = this.admin.route.params.by === "title") {
    const { q, user, model, worker, sort = "" } = this.admin.route.params;
    const page = { limit: PAGE, cursor };
    const order = this.orders.includes(sort.replace(/^-/, "")) ? sort : null;
    if (!isByTitle) {
      const query = { ...page, find: q, active: this.isActive, user, model, replica: worker, order };
      const found = await api.get("/sessions", query);
      if (!q || found.sessions.length || found.users?.length || this.#titlesAreHidden) return found;
    }
    return this.#readTitled(api, { ...page, title: q });
  }

  /** Nobody has such a name, or titles were asked for. */
  async #readTitled(api, query) {
    try {
      return { ...(await api.get("/sessions", query)), isByTitle: true };
    } catch (error) {
      if (!(error instanceof Refused) || error.status !== 403) throw error;
      this.#titlesAreHidden = true; // this token may not see them
      return { sessions: [], next_cursor: null };
    }
  }

  /** @param {Record<string, string | null>} changes */
  filter(changes) {
    this.#cursors = [];
    this.admin.route.set({ ...changes, after: null });
  }

  /** @param {string} order */
  sort(order) {
    this.#cursors = [];
    this.admin.route.set({ sort: order, after: null });
    this.list.hurry();
  }

  get pageNumber() {
    return this.admin.route.params.after ? this.#cursors.length + 2 : 1;
  }

  older() {
    const { after } = this.admin.route.params;
    if (after) this.#cursors.push(after);
    this.admin.route.set({ after: this.list.value.value.next_cursor });
  }

  /** Where no index says what fits: look through older and older chats, until some fit, all were seen, or it is ended. */
  async lookOn() {
    const asked = this.#asked;
    const isWanted = () => this.isLooking.value && this.#asked === asked;
    const { examined, isByTitle = false, next_cursor } = this.list.value.value;
    let after = next_cursor;
    this.looked.value = (this.looked.value ?? 0) + examined;
    this.isLooking.value = true;
    try {
      while (isWanted()) {
        const found = await this.#readList(this.admin.api.value, after, isByTitle);
        if (!isWanted() || found.sessions.length || !found.next_cursor) break;
        this.looked.value += found.examined;
        after = found.next_cursor;
      }
    } catch {
      // The list, which is read next from here, says why.
    }
    if (this.#asked !== asked) return;
    if (this.admin.route.params.after) this.#cursors.push(this.admin.route.params.after);
    this.isLooking.value = false;
    this.admin.route.set({ after, by: isByTitle ? "title" : null });
  }

  endLooking() {
    this.isLooking.value = false;
  }

  newer() {
    this.looked.value = null;
    this.admin.route.set({ after: this.#cursors.pop() ?? null });
  }

  /** How a session stands. A worker that is silent, or without an engine, answers nobody. */
  stateOf(row) {
    const { running } = this.admin.state(this.admin.strip);
    const isHalted = row.state === "in_progress" && !running.value.has(row.response?.replica);
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
    this.#endWatch();
    this.details.renew();
  }

  #readDetails(api) {
    const read = (id) => api.get(`/sessions/${id}`);
    return readOpen(this.admin, { openId: this.openId, read, gone: "There is no such chat." });
  }

  // ---- deeds ----

  stop(id) {
    const path = `/sessions/${encodeURIComponent(id)}/stop`;
    return this.admin.act((api) => api.post(path, { reason: "admin page" }), stopText);
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

const ENDED = new Set(["completed", "incomplete", "cancelled", "failed"]);

/** A silent worker's answers end when it speaks again, or when another one takes them over. */
function stopText({ responses }) {
  if (responses.every(({ status }) => ENDED.has(status))) return responses.length ? "Stopped." : "Nothing was being answered.";
  return "The stop is asked for: the worker of the answer is silent.";
}

export const TAB = {
  id: "sessions",
  label: "Sessions",
  icon: Chats,
  open: (admin) => new Sessions(admin),
  View: SessionsView,
};
