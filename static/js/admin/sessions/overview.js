/** How much goes on: figures above the list. */

import { html } from "../../widgets/html.js";
import { count } from "../frame/words.js";

export function Overview({ admin }) {
  const { numHalted, told } = admin.state(admin.strip);
  const live = told.value.value?.live;
  const paused = numHalted.value;
  const figures = [
    ["answering", live && live.active_responses - paused],
    paused > 0 && ["paused", paused],
    ["waiting", live?.queued_responses],
    ["connections", live?.connections],
    ["sessions", live?.sessions],
  ].filter(Boolean);
  return html`<dl class="figures">
    ${figures.map(
      ([name, value]) => html`<div key=${name}>
        <dt>${name}</dt>
        <dd>${value === undefined ? "–" : count(value)}</dd>
      </div>`,
    )}
  </dl>`;
}
