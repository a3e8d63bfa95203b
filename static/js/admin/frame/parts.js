/** What several tabs are made of. */

import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";

import { html } from "../../widgets/html.js";
import { Close } from "../../widgets/icons.js";
import { Refused } from "./api.js";
import { momentAndAge, clock, sentence } from "./words.js";

/** What stands where nothing can be listed. */
export function Empty({ children }) {
  return html`<p class="nothing">${children}</p>`;
}

/**
 * What a reading has brought, or why it has not. `children` draws its value.
 * @param {{reading: import("./reading.js").Reading, children: (value: any) => any}} given
 */
export function Read({ reading, children }) {
  const value = reading.value.value;
  if (value !== null) return children(value);
  const error = reading.error.value;
  if (!error) return html`<${Empty}>Loading …<//>`;
  return html`<p class="nothing failed" role="alert">
    ${error instanceof Refused ? sentence(error.message) : "The server does not answer. This page keeps asking."}
  </p>`;
}

/** Of when something is. @param {{admin: object, reading: import("./reading.js").Reading}} given */
export function AsOf({ admin, reading }) {
  const at = reading.at.value;
  if (at === null) return null;
  const isStale = reading.isStale(admin.now.value);
  return html`<p class=${isStale ? "read-at stale" : "read-at"}>
    as of ${isStale ? momentAndAge(at, admin.now.value) : clock(at)}
  </p>`;
}

/** One of a few. @param {{label: string, value: string, choices: [string, string][], onPick: (value: string) => void}} given */
export function Segments({ label, value, choices, onPick }) {
  return html`<div class="segments" role="group" aria-label=${label}>
    ${choices.map(
      ([choice, text]) => html`<button type="button" key=${choice} aria-pressed=${String(choice === value)}
        onClick=${() => onPick(choice)}>${text}</button>`,
    )}
  </div>`;
}

/** A field that takes effect with Enter or when it is left, not with each letter; what is typed stays until then. */
export function FilterText({ label, value, onPick, hint = label, inputRef = null }) {
  const typed = useSignal(value);
  useEffect(() => {
    typed.value = value;
  }, [value]);
  const pick = (event) => event.target.value.trim() !== value && onPick(event.target.value.trim());
  return html`<input type="search" placeholder=${hint} aria-label=${label} value=${typed.value} spellcheck="false"
    autocomplete="off" ref=${inputRef} onInput=${(event) => (typed.value = event.target.value)} onChange=${pick} onSearch=${pick} />`;
}

/** @param {{label?: string, value: string, choices: [string, string][], onPick: (value: string) => void}} given */
export function Choice({ label, value, choices, onPick }) {
  return html`<select aria-label=${label} value=${value} onChange=${(event) => onPick(event.target.value)}>
    ${choices.map(([choice, text]) => html`<option key=${choice} value=${choice} selected=${choice === value}>${text}</option>`)}
  </select>`;
}

/** @param {{number: number, hasMore: boolean, onNewer: () => void, onOlder: () => void}} given `number` is the page's */
export function Pager({ number, hasMore, onNewer, onOlder }) {
  if (number === 1 && !hasMore) return null;
  return html`<nav class="pager" aria-label="Pages">
    <button type="button" class="plain" disabled=${number === 1} onClick=${onNewer}>Newer</button>
    <span>Page ${number}</span>
    <button type="button" class="plain" disabled=${!hasMore} onClick=${onOlder}>Older</button>
  </nav>`;
}

/**
 * What is open beside a list: a heading that takes the focus. Esc closes it and gives the focus back.
 * @param {{admin: object, title: string, onClose: () => void, children: any}} given
 */
export function Beside({ admin, title, onClose, children }) {
  const heading = useRef(null);
  useEffect(() => {
    const before = document.activeElement;
    heading.current?.focus();
    const onKeyDown = (event) => event.key === "Escape" && !admin.dialog.value && onClose();
    addEventListener("keydown", onKeyDown);
    return () => {
      removeEventListener("keydown", onKeyDown);
      if (before?.isConnected) before.focus(); // where the keyboard was
    };
  }, []);
  return html`<aside class="drawer" aria-labelledby="drawer-title">
    <header class="drawer-top">
      <h2 id="drawer-title" tabindex="-1" ref=${heading}>${title}</h2>
      <button type="button" class="quiet" aria-label="Close" onClick=${onClose}><${Close} /></button>
    </header>
    <div class="drawer-body">${children}</div>
  </aside>`;
}

/** The same until `reading` has brought what is open; no component, so that the keyboard stays where it is then. */
export function besideUnread(admin, reading, onClose) {
  return html`<${Beside} admin=${admin} title=${reading.error.value ? "Not to be read" : "Loading …"} onClose=${onClose}>
    ${reading.error.value && html`<${Read} reading=${reading}>${() => null}<//>`}
  <//>`;
}
