/** The models of the host that answers, where there are several: what they take, and which are loaded. */

import { html } from "../widgets/html.js";

const STATES = { loaded: "Loaded", loading: "Loading", unloading: "Unloading", failed: "Failed", not_loaded: "Not loaded" };

export function Models({ page }) {
  const models = page.models.value;
  if (models.length < 2) return null;
  return html`<section class="models" aria-labelledby="models">
    <h2 id="models">Models</h2>
    <ul>
      ${models.map((model) => html`<${Model} key=${model.name} page=${page} model=${model} />`)}
    </ul>
  </section>`;
}

function Model({ page, model }) {
  const { name, state, progress, problem } = model;
  const share = state === "loading" && progress > 0 ? ` ${Math.round(progress * 100)} %` : "";
  const canLoad = state === "not_loaded" || state === "failed";
  return html`<li>
    <span class="name">${name}${model.default && html` <small>default</small>`}</span>
    <span class=${`state ${state}`}>${STATES[state] ?? state}${share}</span>
    <span class="facts">${facts(model)}</span>
    ${canLoad && html`<button type="button" class="plain" aria-label=${`Load ${name}`} onClick=${() => page.moveModel(name, "load")}>Load</button>`}
    ${state === "loaded" &&
    html`<button type="button" class="plain" aria-label=${`Unload ${name}`}
      onClick=${() => page.moveModel(name, "unload")}>Unload</button>`}
    ${problem && html`<p class="problem">${problem}</p>`}
  </li>`;
}

/** What it takes, or would take; its context, and what its files are. */
function facts({ memory_bytes: taken, needs_bytes: needs, context_length: context, format }) {
  const memory = taken ? `${size(taken)} of memory` : needs ? `needs ${size(needs)}` : "";
  return [memory, context && `context ${context.toLocaleString("en")}`, format].filter(Boolean).join(" · ");
}

/** @param {number} bytes */
const size = (bytes) => `${(bytes / 1e9).toFixed(1)} GB`;
