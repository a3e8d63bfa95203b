/** The one box in which everything is looked for, from every tab; `/` leads there. */

import { useEffect, useRef } from "preact/hooks";

import { html } from "../../widgets/html.js";
import { Find } from "../../widgets/icons.js";
import { FilterText } from "../frame/parts.js";

export function Search({ admin }) {
  const input = useRef(null);
  useEffect(() => {
    const onKeyDown = (event) => {
      const isTyping = event.target.closest("input, textarea, select, dialog");
      if (event.key !== "/" || isTyping || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      input.current.focus();
    };
    addEventListener("keydown", onKeyDown);
    return () => removeEventListener("keydown", onKeyDown);
  }, []);
  const { tab, params } = admin.route.place.value;
  const find = (text) => admin.route.go("sessions", text ? { q: text, show: "all" } : {});
  return html`<form class="find" role="search" onSubmit=${(event) => event.preventDefault()}>
    <${Find} />
    <${FilterText} label="Find a user, a session, a response or a title" hint="Find a name, an id or a title"
      value=${tab === "sessions" ? (params.q ?? "") : ""} onPick=${find} inputRef=${input} />
    <kbd aria-hidden="true">/</kbd>
  </form>`;
}
