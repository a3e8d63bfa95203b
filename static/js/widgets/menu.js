/**
 * A menu beside its button; one is open at most. It is a popover: the browser closes it on Esc, on a click
 * elsewhere and on a click on its button, gives the focus back, and draws it above everything.
 */

import { render } from "preact";

import { html } from "./html.js";
import { Tick } from "./icons.js";

const GAP_PX = 4;
const EDGE_PX = 8;

/**
 * `checked` is said of one of several that exclude each other; `note` is a word on it.
 * @typedef {{label: string, icon?: Function, danger?: boolean, checked?: boolean, note?: string, act: () => void}} MenuItem
 */

/** @type {{box: HTMLElement, button: HTMLElement} | null} */
let open = null;

/**
 * Open the menu of the button that was clicked.
 * @param {Event} event the click @param {MenuItem[]} items @param {string} [heading]
 */
export function openMenu(event, items, heading = "") {
  const button = event.currentTarget;
  if (open?.button === button) return; // the browser closes it
  event.preventDefault(); // what the browser would do is the same click's toggle
  closeMenu();
  const box = document.createElement("div");
  box.className = "menu";
  box.popover = "auto";
  box.setAttribute("role", "menu");
  box.ariaLabel = heading || button.ariaLabel;
  open = { box, button };
  render(
    html`${heading && html`<p class="menu-heading">${heading}</p>`}
    ${items.map(({ label, icon: Icon, danger, checked, note, act }) => {
      const run = () => (closeMenu(), act());
      if (checked === undefined) {
        return html`<button type="button" role="menuitem" class=${danger ? "danger" : ""} onClick=${run}>
          ${Icon && html`<${Icon} />`}${label}
        </button>`;
      }
      return html`<button type="button" role="menuitemradio" aria-checked=${String(checked)} onClick=${run}>
        <span class="tick">${checked && html`<${Tick} />`}</span>
        <span class="choice">${label}${note && html`<small>${note}</small>`}</span>
      </button>`;
    })}`,
    box,
  );
  (button.closest("main, aside") ?? document.body).append(box); // in a landmark, as its button is
  button.popoverTargetElement = box;
  button.ariaExpanded = "true";
  box.addEventListener("keydown", moveInMenu);
  box.addEventListener("toggle", ({ newState }) => newState === "closed" && forget(box));
  box.showPopover();
  place(box, button.getBoundingClientRect());
  (box.querySelector("[aria-checked=true]") ?? box.querySelector("button")).focus();
}

export function closeMenu() {
  const box = open?.box;
  if (!box) return;
  box.hidePopover();
  forget(box);
}

function forget(box) {
  if (open?.box !== box) return;
  open.button.popoverTargetElement = null;
  open.button.ariaExpanded = "false";
  open = null;
  box.remove();
}

/** Below the button and as far right as it reaches; above it where there is no room. */
function place(box, { top, bottom, right }) {
  const below = bottom + GAP_PX;
  const fits = below + box.offsetHeight <= innerHeight - EDGE_PX;
  box.style.top = `${Math.max(EDGE_PX, fits ? below : top - GAP_PX - box.offsetHeight)}px`;
  box.style.left = `${Math.max(EDGE_PX, Math.min(right, innerWidth - EDGE_PX) - box.offsetWidth)}px`;
}

function moveInMenu(event) {
  if (event.key === "Escape") event.stopPropagation(); // it would also stop the answer
  const items = [...event.currentTarget.querySelectorAll("[role^=menuitem]")];
  const index = items.indexOf(document.activeElement);
  const next = { ArrowDown: index + 1, ArrowUp: index - 1, Home: 0, End: -1 }[event.key];
  if (next === undefined) return;
  event.preventDefault();
  items.at(next % items.length).focus();
}
