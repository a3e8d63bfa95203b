/** Small JSON values that outlive the page. Where the browser forbids or fills up storage, memory serves. */

export class Store {
  #memory = new Map();
  #storage;

  /** @param {Storage | null} storage */
  constructor(storage) {
    this.#storage = storage;
  }

  /** The browser's own storage, for all tabs. */
  static open() {
    return Store.#on(() => globalThis.localStorage);
  }

  /** What this tab alone keeps, also over a reload. */
  static ofTab() {
    return Store.#on(() => globalThis.sessionStorage);
  }

  /** Merely naming a storage throws where cookies are blocked. */
  static #on(storage) {
    try {
      return new Store(storage());
    } catch {
      return new Store(null);
    }
  }

  get(name) {
    try {
      return JSON.parse(this.#storage?.getItem(name) ?? null) ?? this.#memory.get(name) ?? null;
    } catch {
      return this.#memory.get(name) ?? null;
    }
  }

  set(name, value) {
    this.#memory.set(name, value);
    try {
      this.#storage?.setItem(name, JSON.stringify(value));
    } catch {
      // full: the value lives as long as the page
    }
  }

  remove(name) {
    this.#memory.delete(name);
    this.#storage?.removeItem(name);
  }

  /** Forget everything whose name begins with `prefix`, but for the names to `keep`. */
  clear(prefix, keep = []) {
    for (const name of this.names(prefix)) if (!keep.includes(name)) this.remove(name);
  }

  /** The stored names that begin with `prefix`, sorted. */
  names(prefix) {
    const stored = Array.from({ length: this.#storage?.length ?? 0 }, (_, i) => this.#storage.key(i));
    const names = new Set([...stored, ...this.#memory.keys()]);
    return [...names].filter((name) => name.startsWith(prefix)).sort();
  }
}
