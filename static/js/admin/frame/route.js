/**
 * Where in the console one is: a tab and what is set in it (search, filters, order, what is open), as the part of the
 * address after `#`. So a reload and a shared link show the same, the browser's Back closes what was opened, and what
 * an operator searches for stands in no server's log.
 */

import { signal } from "@preact/signals";

import { hashOf, placeOf } from "./place.js";

export class Route {
  /** @type {import("@preact/signals").Signal<import("./place.js").Place>} */
  place;
  #tabs;
  #last = new Map(); // tab -> its hash when it was left

  /** @param {string[]} tabs their names */
  constructor(tabs) {
    this.#tabs = tabs;
    this.place = signal(placeOf(location.hash, tabs));
    addEventListener("hashchange", () => this.#take());
    addEventListener("popstate", () => this.#take());
  }

  get tab() {
    return this.place.value.tab;
  }

  /** What is set in the present tab. */
  get params() {
    return this.place.value.params;
  }

  /** The address of a tab, as it was left. */
  href(tab) {
    return this.#last.get(tab) ?? `#${tab}`;
  }

  /** Another place; Back leads here. */
  go(tab, params = {}) {
    this.#push(hashOf(tab, params));
    this.#take();
  }

  /**
   * Change what is set in the present tab; null takes away.
   * @param {Record<string, string | null>} changes @param {{keep?: boolean}} [how] `keep`: Back leads here
   */
  set(changes, { keep = false } = {}) {
    const hash = hashOf(this.tab, { ...this.params, ...changes });
    if (keep) this.#push(hash);
    else history.replaceState(null, "", hash);
    this.#take();
  }

  /** Once, however often it is asked for: Back is to lead to another place. */
  #push(hash) {
    if (hash !== location.hash) history.pushState(null, "", hash);
  }

  #take() {
    const place = placeOf(location.hash, this.#tabs);
    this.#last.set(place.tab, hashOf(place.tab, place.params));
    const before = this.place.peek();
    if (hashOf(before.tab, before.params) !== hashOf(place.tab, place.params)) this.place.value = place;
  }
}
