/** Whose drafts and messages this browser keeps: on a shared machine nobody finds, or sends, another's. */

const USER = "parley.user";
const THEME = "parley.theme"; // of the machine, not of its user

export class KeptUser {
  #store;
  #tabStore;

  /**
   * @param {import("./storage.js").Store} store
   * @param {import("./storage.js").Store} tabStore
   */
  constructor(store, tabStore) {
    this.#store = store;
    this.#tabStore = tabStore;
  }

  /**
   * This user is signed in; what the browser has of another one goes.
   * @param {string} id
   * @param {string} [before] who this page has known so far, if not the browser alone
   * @returns {boolean} whether it is who was here before
   */
  meet(id, before = this.#store.get(USER)) {
    const isOther = before !== null && before !== id;
    if (isOther) this.forget();
    this.#store.set(USER, id);
    return !isOther;
  }

  forget() {
    this.#store.clear("parley.", [THEME]);
    this.#tabStore.clear("parley.");
  }
}
