/** The buttons below a message: one for each of the page's actions that fits it, the rarer ones in a menu. */

import { wordButton } from "../widgets/copy.js";
import { openMenu } from "../widgets/menu.js";

/**
 * @typedef {object} Action something that a user does with a message
 * @property {string} word on the button
 * @property {{user?: string, assistant?: string}} labels what the button does, for those who cannot
 *   see where it stands; messages of a role without one have no button
 * @property {boolean} [isRare] it stands in the menu
 * @property {(place: Place) => boolean} [fits] whether it can be done with this message, now
 * @property {(bubble: {message: object, text: string}, button: HTMLButtonElement) => void} act with
 *   the message and what is painted of it
 *
 * @typedef {object} Place where a message stands
 * @property {import("../state/message.js").Message} message
 * @property {boolean} isLast of its branch
 * @property {string[]} siblings the messages in whose place it stands, and its own id
 */

export class ActionRow {
  element = document.createElement("div");
  /** @type {{action: Action, button: HTMLButtonElement}[]} */
  #buttons = [];
  /** @type {Action[]} */
  #rare;
  #more;
  #place = null;

  /**
   * @param {Action[]} actions in the order of their buttons
   * @param {"user" | "assistant"} role of the message in `bubble`
   */
  constructor(actions, role, bubble) {
    this.element.className = "actions";
    const fitting = actions.filter(({ labels }) => labels[role]);
    for (const action of fitting.filter(({ isRare }) => !isRare)) {
      const button = wordButton(action.word, action.labels[role]);
      button.addEventListener("click", () => action.act(bubble, button));
      this.#buttons.push({ action, button });
      this.element.append(button);
    }
    this.#rare = fitting.filter(({ isRare }) => isRare);
    this.#more = wordButton("⋯", role === "user" ? "More about your message" : "More about the answer");
    this.#more.ariaHasPopup = "menu";
    this.#more.addEventListener("click", (event) => openMenu(event, this.#items(bubble)));
    if (this.#rare.length > 0) this.element.append(this.#more);
  }

  /** @param {Place} place */
  draw(place) {
    this.#place = place;
    for (const { action, button } of this.#buttons) button.hidden = !fits(action, place);
    this.#more.hidden = !this.#rare.some((action) => fits(action, place));
  }

  /** The button of an action takes the focus, if it is there. */
  focus(word) {
    this.#buttons.find(({ action }) => action.word === word)?.button.focus();
  }

  #items(bubble) {
    return this.#rare
      .filter((action) => fits(action, this.#place))
      .map(({ word, act }) => ({ label: word, act: () => act(bubble, this.#more) }));
  }
}

const fits = (action, place) => action.fits?.(place) ?? true;
