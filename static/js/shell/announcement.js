/** What an admin has to say to all users: shown until it ends, or until it is dismissed in this browser. */

import { signal } from "@preact/signals";

const DISMISSED = "parley.notice"; // the id of the last one

export class Announcement {
  /** @type {import("@preact/signals").Signal<{id: string, level: string, text: string} | null>} */
  shown = signal(null);
  #store;

  /** @param {import("../connection/storage.js").Store} store */
  constructor(store) {
    this.#store = store;
  }

  /** @param {{id: string, level: string, text: string} | null} notice as the server says it; null: none any more */
  show(notice) {
    this.shown.value = notice && this.#store.get(DISMISSED) !== notice.id ? notice : null;
  }

  /** This one is not shown again. */
  dismiss() {
    if (this.shown.value) this.#store.set(DISMISSED, this.shown.value.id);
    this.shown.value = null;
  }
}
