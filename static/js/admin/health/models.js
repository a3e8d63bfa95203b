/** The models of the host that answers: what they take, and which are loaded. */

import { html } from "../../widgets/html.js";
import { count, size } from "../frame/words.js";

const STATES = { loaded: "Loaded", loading: "Loading", unloading: "Unloading", failed: "Failed", not_loaded: "Not loaded" };

/** A model that is alone is always there: nothing can be done with it. */
export function Models({ admin, models }) {
  return html`<section class="models" aria-labelledby="models">
    <h2 id="models">Models</h2>
    <ul>
      ${models.map((model) => html`<${Model} key=${model.name} admin=${admin} model=${model} areMany=${models.length > 1} />`)}
    </ul>
  </section>`;
}

function Model({ admin, model, areMany }) {
  const { name, state, progress, problem } = model;
  const share = state === "loading" && progress > 0 ? ` ${Math.round(progress * 100)} %` : "";
  const canLoad = areMany && (state === "not_loaded" || state === "failed");
  return html`<li>
    <span class="name">${name}${model.default && areMany && html` <small>default</small>`}</span>
    <span class=${`state ${state}`}>${STATES[state] ?? state}${share}</span>
    <span class="facts">${facts(model)}</span>
    ${canLoad && html`<button type="button" class="plain small" aria-label=${`Load ${name}`} onClick=${() => move(admin, name, "load")}>Load</button>`}
    ${areMany && state === "loaded" &&
    html`<button type="button" class="plain small" aria-label=${`Unload ${name}`}
      onClick=${() => move(admin, name, "unload")}>Unload</button>`}
    ${problem && html`<p class="problem">${problem}</p>`}
  </li>`;
}

/** @param {string} name @param {"load" | "unload"} deed */
function move(admin, name, deed) {
  const done = deed === "load" ? `${name} is being loaded.` : `${name} goes when no answer uses it.`;
  return admin.act((api) => api.post(`/models/${deed}`, { name }), done);
}

/** What it takes, or would take; its context, and what its files are. */
function facts({ memory_bytes: taken, needs_bytes: needs, context_length: context, format }) {
  const memory = taken ? `${size(taken)} of memory` : needs ? `needs ${size(needs)}` : "";
  return [memory, context && `context ${count(context)}`, format].filter(Boolean).join(" · ");
}
