/** What is around each tab: the head, the rail, the strip, what is said. Whatever users wrote becomes text nodes. */

import { useEffect, useRef } from "preact/hooks";

import { html } from "../../widgets/html.js";
import { Mark } from "../../widgets/icons.js";
import { ThemeSwitch } from "../../widgets/theme.js";
import { SignIn } from "./sign-in.js";

/** @param {{admin: import("./console.js").Console}} given */
export function Frame({ admin }) {
  if (!admin.api.value) return html`<${SignIn} admin=${admin} />`;
  const { tab, strip, dialog } = admin;
  return html`<div class=${admin.isStale.value ? "admin stale" : "admin"}>
    <${Top} admin=${admin} />
    <${Rail} admin=${admin} />
    <div class="admin-body">
      <${strip.View} admin=${admin} state=${admin.state(strip)} />
      <${tab.View} key=${tab.id} admin=${admin} state=${admin.state(tab)} />
    </div>
    ${dialog.value?.()}
    <${Notice} admin=${admin} />
  </div>`;
}

function Top({ admin }) {
  const { Search } = admin;
  return html`<header class="admin-top">
    <a class="admin-brand" href=${`#${admin.tabs[0].id}`}><${Mark} /><h1>Parley <span>admin</span></h1></a>
    ${Search && html`<${Search} admin=${admin} />`}
    <${ThemeSwitch} store=${admin.store} />
    <button type="button" class="plain" onClick=${() => admin.signOut()}>Sign out</button>
  </header>`;
}

/** Links to the tabs, under the headings of their groups. */
function Rail({ admin }) {
  const here = admin.tab.id;
  const rail = useRef(null);
  useEffect(() => {
    document.title = `${admin.tab.label} · Parley admin`;
    // On a phone the rail is a row that scrolls sideways.
    rail.current.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [here]);
  const groups = [...Map.groupBy(admin.tabs, ({ group }) => group ?? "")];
  return html`<nav class="rail" aria-label="Parts of the console" ref=${rail}>
    ${groups.map(
      ([group, tabs]) => html`<div class="rail-group" key=${group}>
        ${group && html`<h2>${group}</h2>`}
        <ul>
          ${tabs.map(
            ({ id, label, icon: Icon }) => html`<li key=${id}>
              <a href=${admin.route.href(id)} aria-current=${id === here ? "page" : null}>${Icon && html`<${Icon} />`}${label}</a>
            </li>`,
          )}
        </ul>
      </div>`,
    )}
  </nav>`;
}

function Notice({ admin }) {
  const notice = admin.notice.value;
  return html`<div class="toasts admin-toasts" role="status">
    ${notice && html`<p class=${notice.bad ? "toast bad" : "toast"}>${notice.text}</p>`}
  </div>`;
}
