/** The choice of a group, of however many there are: what is written is looked for on the server. */

import { useEffect } from "preact/hooks";
import { signal, useSignal } from "@preact/signals";

import { html } from "../../widgets/html.js";
import { visibleName } from "../../widgets/visible.js";
import { Refused } from "../frame/api.js";
import { Reading } from "../frame/reading.js";
import { count, sentence } from "../frame/words.js";

const SHOWN = 6;
const EVERY_MS = 2000; // where the server did not answer, it is asked again

/** What is looked for, and what was found; read with the tab as long as somebody chooses. */
export class GroupSearch {
  #text = ""; // "": the newest groups
  #isOpen = signal(false);
  found = new Reading((api) => api.get("/groups", { find: this.#text, limit: SHOWN }), { everyMs: EVERY_MS });

  /** @param {import("../frame/console.js").Console} admin */
  constructor(admin) {
    this.admin = admin;
  }

  readings() {
    return this.#isOpen.value ? [this.found] : [];
  }

  open() {
    this.#text = "";
    this.found.renew();
    this.#isOpen.value = true;
    this.admin.refresh();
    return () => (this.#isOpen.value = false);
  }

  /** What was found before stays until there is an answer. @param {string} text */
  look(text) {
    this.#text = text.trim();
    this.found.hurry();
    this.admin.refresh();
  }

  /** What is to be said of it. */
  get word() {
    const found = this.found.value.value;
    const error = this.found.error.value;
    if (error) return error instanceof Refused ? sentence(error.message) : "The server does not answer.";
    if (!found) return "Looking …";
    const { groups, found: number, next_cursor: next } = found;
    if (groups.length === 0) return number === undefined ? "There are no groups yet." : "No group has such a name.";
    if (number > groups.length) return `${count(groups.length)} of ${count(number)}: write more of the name.`;
    return next ? `The newest ${count(groups.length)}: write a part of the name of another one.` : "";
  }
}

/**
 * @param {object} given
 * @param {{name: string, search: GroupSearch, current: {id: string, name: string} | null}} given.field
 * @param {string} given.value the id of the one that is chosen; "": none
 */
export function GroupField({ field: { name, search, current }, value, onSet }) {
  const chosen = useSignal(current);
  useEffect(() => search.open(), []);
  const pick = (group) => {
    chosen.value = group;
    onSet(name, group?.id ?? "");
  };
  const found = search.found.value.value?.groups ?? [];
  const others = found.filter(({ id }) => id !== current?.id);
  const isLeft = chosen.value && chosen.value.id !== current?.id && !others.some(({ id }) => id === value);
  const shown = [null, current, isLeft && chosen.value, ...others].filter((one, place) => place === 0 || one);
  const called = shown.map((group) => group && nameOf(group));
  const isTwin = (group) => group && called.filter((name) => name === nameOf(group)).length > 1;
  const stay = (event) => event.key === "Enter" && event.preventDefault(); // nothing is chosen by that
  return html`<fieldset class="picks">
    <legend class="visually-hidden">Group</legend>
    <label class="field">
      <span>Find a group</span>
      <input type="search" maxlength="100" placeholder="a part of its name" autocomplete="off" spellcheck="false"
        onKeyDown=${stay} onInput=${(event) => search.look(event.target.value)} />
    </label>
    <p class="muted" role="status">${search.word}</p>
    <div class="found-groups">
      ${shown.map((group) => html`<${Pick} key=${group?.id ?? ""} name=${name} group=${group} isTwin=${isTwin(group)} value=${value}
        onPick=${pick} />`)}
    </div>
  </fieldset>`;
}

function Pick({ name, group, isTwin, value, onPick }) {
  const id = group?.id ?? "";
  return html`<label class="check">
    <input type="radio" name=${name} value=${id} checked=${id === value} onChange=${() => onPick(group)} />
    <span>${group ? visibleName(group.name) : "None"}${group?.members !== undefined && html` <small>${members(group)}</small>`}${isTwin && html` <small><code>${group.id}</code></small>`}</span>
  </label>`;
}

/** Two that differ in nothing else, whoever looks at them, are told apart by their ids. */
const nameOf = ({ name }) => visibleName(name).normalize("NFKC").toLowerCase();

const members = ({ members: number }) => (number === 1 ? "1 member" : `${count(number)} members`);
