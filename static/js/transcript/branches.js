/** ‹ 2/3 › below a message that stands beside others: the branches of the conversation, and the way between them. */

import { wordButton } from "../widgets/copy.js";

export class BranchSwitch {
  element = document.createElement("span");
  #back = wordButton("‹", "Previous version");
  #count = document.createElement("span");
  #forth = wordButton("›", "Next version");
  #place = null;

  /** @param {(messageId: string, step: number) => void} onswitch shows the branch of that message */
  constructor(onswitch) {
    this.element.className = "branches";
    this.element.setAttribute("role", "group");
    this.element.append(this.#back, this.#count, this.#forth);
    for (const [button, step] of [[this.#back, -1], [this.#forth, 1]]) {
      button.addEventListener("click", () => {
        const target = this.#at(step);
        if (target) onswitch(target, step);
      });
    }
  }

  /** @param {import("./actions.js").Place} place */
  draw(place) {
    this.#place = place;
    const { message, siblings } = place;
    this.element.hidden = siblings.length < 2;
    const number = siblings.indexOf(message.id) + 1;
    this.#count.textContent = `${number}/${siblings.length}`;
    this.element.ariaLabel = `Version ${number} of ${siblings.length}`;
    // An arrow that leads nowhere keeps the focus that it may have.
    this.#back.ariaDisabled = String(!this.#at(-1));
    this.#forth.ariaDisabled = String(!this.#at(1));
  }

  /** The arrow that was pressed has gone with its message: the one in its place takes the focus. */
  focus(step) {
    (step < 0 ? this.#back : this.#forth).focus({ preventScroll: true });
  }

  #at(step) {
    const { message, siblings } = this.#place;
    return siblings[siblings.indexOf(message.id) + step];
  }
}
