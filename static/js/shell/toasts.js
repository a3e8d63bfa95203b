/** What the page says in passing; some of it can be taken back as long as it is shown. */

import { signal } from "@preact/signals";

/** @typedef {{text: string, action: {label: string, run: () => void, isUndo?: boolean} | null}} Toast */

export class Toasts {
  /** @type {import("@preact/signals").Signal<Toast[]>} the oldest first */
  shown = signal([]);
  #shownMs;

  /** @param {number} shownMs */
  constructor(shownMs) {
    this.#shownMs = shownMs;
  }

  put(text, action = null) {
    const toast = { text, action };
    this.shown.value = [...this.shown.value, toast];
    setTimeout(() => this.dismiss(toast), this.#shownMs);
  }

  dismiss(toast) {
    this.shown.value = this.shown.value.filter((other) => other !== toast);
  }

  /** Take back the last thing that can be. @returns {boolean} whether there was one */
  undo() {
    const toast = this.shown.value.findLast(({ action }) => action?.isUndo);
    if (!toast) return false;
    this.dismiss(toast);
    toast.action.run();
    return true;
  }
}
