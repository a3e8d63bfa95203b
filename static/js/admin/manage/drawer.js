/** What is open beside a list of this room: a heading that takes the focus, Esc closes it and gives the focus back. */

import { useEffect, useRef } from "preact/hooks";

import { html } from "../../widgets/html.js";
import { Close } from "../../widgets/icons.js";

/** @param {{admin: object, title: string, onClose: () => void, children: any}} given */
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

/** @param {{facts: ([string, any] | null | false)[]}} given */
export function Facts({ facts }) {
  return html`<dl class="facts">
    ${facts.filter(Boolean).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

const WORDS = { tokens_per_day: "tokens a day", sessions: "sessions", answers: "answers at a time" };

/** "5,000 tokens a day, 2 answers at a time" @param {Record<string, number | null>} quotas @param {string} none */
export function quotaText(quotas, none) {
  const given = Object.entries(quotas).filter(([, most]) => most !== null);
  return given.map(([name, most]) => (most === 0 ? `any ${WORDS[name]}` : `${most.toLocaleString("en")} ${WORDS[name]}`)).join(", ") || none;
}

/** The fields of a form for quotas. @param {Record<string, number | null>} quotas @param {string} hint of an empty one */
export function quotaFields(quotas, hint) {
  const labels = { tokens_per_day: "Tokens a day", sessions: "Sessions", answers: "Answers at a time" };
  return Object.entries(labels).map(([name, label]) => ({ name, label, kind: "number", value: quotas[name] ?? "", hint }));
}
