/** A list that the server gives in pages: which page, and what it is filtered by, stand in the address. */

import { Reading, readPage } from "../frame/reading.js";

const PAGE = 50;
const EVERY_MS = 5000;

export class Paged {
  /** @type {Reading} the page that is shown */
  list;
  #cursors = []; // of the pages before this one
  #asked = "";

  /**
   * @param {import("../frame/console.js").Console} admin
   * @param {object} given
   * @param {string} given.tab whose list it is
   * @param {string} given.path
   * @param {string[]} [given.filters] parameters of the address, by their names in the query
   */
  constructor(admin, { tab, path, filters = [] }) {
    this.admin = admin;
    const query = () => {
      const { params } = admin.route;
      return { limit: PAGE, cursor: params.after, ...Object.fromEntries(filters.map((name) => [name, params[name]])) };
    };
    this.list = new Reading((api) => readPage(admin, () => api.get(path, query())), { everyMs: EVERY_MS });
    admin.route.place.subscribe((place) => {
      const asked = ["after", ...filters].map((name) => place.params[name] ?? "").join("\n");
      if (place.tab !== tab || asked === this.#asked) return;
      this.#asked = asked;
      this.list.renew();
    });
  }

  get pageNumber() {
    return this.admin.route.params.after ? this.#cursors.length + 2 : 1;
  }

  /** @param {Record<string, string | null>} changes */
  filter(changes) {
    this.#cursors = [];
    this.admin.route.set({ ...changes, after: null });
  }

  older() {
    const { after } = this.admin.route.params;
    if (after) this.#cursors.push(after);
    this.admin.route.set({ after: this.list.value.value.next_cursor });
  }

  newer() {
    this.admin.route.set({ after: this.#cursors.pop() ?? null });
  }
}
