/** A modal dialog: the browser keeps the focus in it, closes it on Esc and gives the focus back. */

import { useLayoutEffect, useRef } from "preact/hooks";

import { html } from "./html.js";
import { Close } from "./icons.js";

/** @param {{title: string, kind?: string, onClose: () => void, children: any}} properties */
export function Dialog({ title, kind = "", onClose, children }) {
  const element = useRef(null);
  useLayoutEffect(() => {
    const dialog = element.current;
    dialog.showModal();
    return () => dialog.close(); // one that is only taken away leaves the keyboard nowhere
  }, []);
  const onGone = () => element.current && onClose(); // not that of one which another one follows
  const onKeyDown = (event) => event.key === "Escape" && event.stopPropagation(); // it would also stop the answer
  const onPointerDown = ({ target, clientX, clientY }) => {
    const { left, right, top, bottom } = element.current.getBoundingClientRect();
    const isInside = clientX >= left && clientX <= right && clientY >= top && clientY <= bottom;
    if (target === element.current && !isInside) element.current.close();
  };
  return html`<dialog class=${`dialog ${kind}`} ref=${element} aria-labelledby="dialog-title" onClose=${onGone}
    onKeyDown=${onKeyDown} onPointerDown=${onPointerDown}>
    <header>
      <h2 id="dialog-title" tabindex="-1" autofocus>${title}</h2>
      <button type="button" class="quiet" aria-label="Close" onClick=${() => element.current.close()}><${Close} /></button>
    </header>
    ${children}
  </dialog>`;
}
