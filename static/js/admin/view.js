/** The admin page's parts: sign-in, figures, filters, the list. Whatever users wrote becomes text nodes. */

import { useEffect, useRef } from "preact/hooks";
import { useSignal } from "@preact/signals";

import { html } from "../widgets/html.js";
import { Mark, Stop } from "../widgets/icons.js";
import { ThemeSwitch } from "../widgets/theme.js";
import { Drawer } from "./drawer.js";
import { Models } from "./models.js";
import { State, titleOf } from "./parts.js";
import { clock, duration, momentAndAge, shortReplica } from "./words.js";

export function AdminApp({ page }) {
  if (!page.api.value) return html`<${SignIn} page=${page} />`;
  const classes = ["admin", page.open.value && "has-drawer", page.isStale.value && "stale"];
  return html`<div class=${classes.filter(Boolean).join(" ")}>
    <${Top} page=${page} />
    <main class="admin-main">
      <${Troubles} page=${page} />
      <${Figures} page=${page} />
      <${Models} page=${page} />
      <${Filters} page=${page} />
      <${List} page=${page} />
      <${Pager} page=${page} />
    </main>
    ${page.open.value && html`<${Drawer} key=${page.open.value.id} page=${page} />`}
    <${Notice} page=${page} />
  </div>`;
}

function SignIn({ page }) {
  const token = useSignal("");
  const submit = (event) => {
    event.preventDefault();
    if (token.value.trim()) page.signIn(token.value.trim());
  };
  return html`<main class="card-place">
    <form class="card sign-in" onSubmit=${submit} aria-labelledby="sign-in">
      <${Mark} />
      <h1 id="sign-in">Parley admin</h1>
      <label class="field">
        <span>Admin token</span>
        <input type="password" autocomplete="off" spellcheck="false" autofocus value=${token.value}
          aria-describedby="token-help" onInput=${(event) => (token.value = event.target.value)} />
      </label>
      ${page.signInError.value && html`<p class="sign-in-error" role="alert">${page.signInError.value}</p>`}
      <p class="muted" id="token-help">
        On the server it is in <code>admin-token</code> in the data directory. This tab forgets it when it is closed.
      </p>
      <button type="submit" class="primary" disabled=${page.signingIn.value}>
        ${page.signingIn.value ? "Signing in …" : "Sign in"}
      </button>
    </form>
  </main>`;
}

function Top({ page }) {
  return html`<header class="admin-top">
    <div class="admin-brand"><${Mark} /><h1>Parley <span>admin</span></h1></div>
    <${ThemeSwitch} store=${page.store} />
    <button type="button" class="plain" onClick=${() => page.signOut()}>Sign out</button>
  </header>`;
}

/** What is wrong, or nothing. Only the headlines are read out: the ages change each second. */
function Troubles({ page }) {
  const troubles = page.troubles.value;
  return html`<div class=${troubles.length ? "troubles" : "visually-hidden"}>
    <p class="visually-hidden" role="status">${troubles.map(({ headline }) => headline).join(" ")}</p>
    ${troubles.map(
      ({ key, headline, detail }) => html`<p class=${key === "lost" ? "trouble lost" : "trouble"} key=${key}>
        <strong>${headline}</strong> <span>${detail}</span>
      </p>`,
    )}
  </div>`;
}

function Figures({ page }) {
  const live = page.stats.value;
  const paused = page.workers.value.numHalted;
  const figures = [
    ["answering", live && live.active_responses - paused],
    paused > 0 && ["paused", paused],
    ["waiting", live?.queued_responses],
    ["connections", live?.connections],
    ["workers", live?.replicas],
    ["sessions", live?.sessions],
  ].filter(Boolean);
  return html`<div class="overview">
    <dl class="figures">
      ${figures.map(
        ([name, value]) => html`<div key=${name}>
          <dt>${name}</dt>
          <dd>${value?.toLocaleString("en") ?? "–"}</dd>
        </div>`,
      )}
    </dl>
    <${AsOf} page=${page} />
  </div>`;
}

/** When the server said all this. */
function AsOf({ page }) {
  const at = page.asOf.value;
  if (at === null) return null;
  return html`<p class="as-of">as of ${page.isStale.value ? momentAndAge(at, page.now.value) : clock(at)}</p>`;
}

function Filters({ page }) {
  const { active, user, model, replica } = page.filters.value;
  return html`<form class="filters" onSubmit=${(event) => event.preventDefault()}>
    <div class="segments" role="group" aria-label="Which sessions">
      <button type="button" aria-pressed=${String(active)} onClick=${() => page.filter({ active: true })}>
        Being answered
      </button>
      <button type="button" aria-pressed=${String(!active)}
        onClick=${() => page.filter({ active: false, replica: "" })}>All</button>
    </div>
    <${FilterText} label="User id" value=${user} onPick=${(value) => page.filter({ user: value })} />
    <${FilterText} label="Model" value=${model} onPick=${(value) => page.filter({ model: value })} />
    <select aria-label="Worker" value=${replica}
      onChange=${(event) => page.filter({ replica: event.target.value, active: true })}>
      <option value="">Every worker</option>
      ${page.workers.value.present.map((one) => html`<option key=${one.id} value=${one.id}>${one.id}</option>`)}
    </select>
  </form>`;
}

/** Takes effect with Enter or when it is left, not with each letter; what is typed stays until then. */
function FilterText({ label, value, onPick }) {
  const typed = useSignal(value);
  useEffect(() => {
    typed.value = value;
  }, [value]);
  const pick = (event) => event.target.value.trim() !== value && onPick(event.target.value.trim());
  return html`<input type="search" placeholder=${label} aria-label=${label} value=${typed.value} spellcheck="false"
    onInput=${(event) => (typed.value = event.target.value)} onChange=${pick} onSearch=${pick} />`;
}

function List({ page }) {
  const rows = page.sessions.value;
  if (!page.loaded.value) return html`<p class="nothing">Loading …</p>`;
  if (rows.length === 0) {
    const { active, user, model, replica } = page.filters.value;
    const isNarrowed = user || model || replica;
    if (isNarrowed) return html`<p class="nothing">Nothing fits these filters.</p>`;
    return html`<p class="nothing">${active ? "Nobody is being answered right now." : "No sessions yet."}</p>`;
  }
  return html`<div class="list-place">
    <table class="list">
      <thead>
        <tr>
          <th scope="col">User</th>
          <th scope="col">Title</th>
          <th scope="col">Model</th>
          <th scope="col">Worker</th>
          <th scope="col">State</th>
          <th scope="col" class="number">Tokens</th>
          <th scope="col" class="number">Tokens/s</th>
          <th scope="col" class="number">Viewers</th>
          <th scope="col" class="number">Age</th>
          <th scope="col"><span class="visually-hidden">Stop</span></th>
        </tr>
      </thead>
      <tbody>
        ${rows.map((row) => html`<${Row} key=${row.id} page=${page} row=${row} />`)}
      </tbody>
    </table>
  </div>`;
}

function Row({ page, row }) {
  const run = row.response;
  const isOpen = page.open.value?.id === row.id;
  const rate = page.stateOf(row) !== "paused" && run?.tokens_per_s;
  const stop = (event) => {
    event.stopPropagation();
    page.stop(row.id);
  };
  return html`<tr class=${isOpen ? "open" : ""} onClick=${() => page.show(row.id)}>
    <td class="user" data-label="User">${row.user.name ?? row.user.id}</td>
    <td class="title" data-label="Title">
      <button type="button" aria-expanded=${String(isOpen)} onClick=${() => page.show(row.id)}>
        ${titleOf(row)}
      </button>
    </td>
    <td class="model" data-label="Model">${row.model}</td>
    <td class=${run ? "worker" : "worker none"} data-label="Worker" title=${run?.replica ?? ""}>
      ${run ? shortReplica(run.replica) : "–"}
    </td>
    <td data-label="State"><${State} page=${page} row=${row} /></td>
    <td class="number" data-label="Tokens">${(run?.tokens ?? row.usage.output_tokens).toLocaleString("en")}</td>
    <td class=${rate ? "number" : "number none"} data-label="Tokens/s">${rate ? rate.toFixed(0) : "–"}</td>
    <td class="number" data-label="Viewers">${row.viewers}</td>
    <td class="number" data-label="Age">${run ? duration(run.age_ms) : ago(row.updated_at)}</td>
    <td class="deed">
      ${run &&
      html`<button type="button" class="quiet" title="Stop" aria-label=${`Stop the answer to ${row.user.name ?? row.user.id}`}
        disabled=${row.state === "stopping"} onClick=${stop}><${Stop} /></button>`}
    </td>
  </tr>`;
}

function Pager({ page }) {
  const number = page.pageNumber.value;
  if (number === 1 && page.nextCursor.value === null) return null;
  return html`<nav class="pager" aria-label="Pages">
    <button type="button" class="plain" disabled=${number === 1} onClick=${() => page.previousPage()}>Newer</button>
    <span>Page ${number}</span>
    <button type="button" class="plain" disabled=${page.nextCursor.value === null}
      onClick=${() => page.nextPage()}>Older</button>
  </nav>`;
}

function Notice({ page }) {
  const notice = page.notice.value;
  return html`<div class="toasts admin-toasts" role="status">
    ${notice && html`<p class=${notice.bad ? "toast bad" : "toast"}>${notice.text}</p>`}
  </div>`;
}

function ago(at) {
  const seconds = Math.max(0, Math.floor((Date.now() - at) / 1000));
  if (seconds < 60) return "now";
  if (seconds < 3600) return `${Math.floor(seconds / 60)} min ago`;
  if (seconds < 86_400) return `${Math.floor(seconds / 3600)} h ago`;
  return `${Math.floor(seconds / 86_400)} d ago`;
}
