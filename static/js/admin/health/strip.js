/** What stands above every tab: how the server is, of when that is, and what is wrong. */

import { computed } from "@preact/signals";

import { html } from "../../widgets/html.js";
import { Reading } from "../frame/reading.js";
import { clock, count, momentAndAge } from "../frame/words.js";
import { Workers, lossTrouble } from "./rules.js";

class Health {
  stats = new Reading((api) => api.get("/stats"));
  /** What workers said of themselves. */
  workers = computed(() =>
    this.stats.value.value ? new Workers(this.stats.value.value, this.stats.at.value) : Workers.NONE,
  );

  /** @param {import("../frame/console.js").Console} admin */
  constructor(admin) {
    this.troubles = computed(() => {
      const lost = admin.lost.value && lossTrouble(admin.lost.value, admin.asOf.value);
      return [lost, ...this.workers.value.troubles(admin.now.value)].filter(Boolean);
    });
  }

  readings() {
    return [this.stats];
  }
}

export const STRIP = { open: (admin) => new Health(admin), View: Strip };

function Strip({ admin, state }) {
  return html`<div class="strip">
    <${Troubles} state=${state} />
    <${Figures} admin=${admin} state=${state} />
  </div>`;
}

/** What is wrong, or nothing. Only the headlines are read out: the ages change each second. */
function Troubles({ state }) {
  const troubles = state.troubles.value;
  return html`<div class=${troubles.length ? "troubles" : "visually-hidden"}>
    <p class="visually-hidden" role="status">${troubles.map(({ headline }) => headline).join(" ")}</p>
    ${troubles.map(
      ({ key, headline, detail }) => html`<p class=${key === "lost" ? "trouble lost" : "trouble"} key=${key}>
        <strong>${headline}</strong> <span>${detail}</span>
      </p>`,
    )}
  </div>`;
}

function Figures({ admin, state }) {
  const live = state.stats.value.value?.live;
  const paused = state.workers.value.numHalted;
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
          <dd>${value === undefined ? "–" : count(value)}</dd>
        </div>`,
      )}
    </dl>
    <${AsOf} admin=${admin} />
  </div>`;
}

/** When the server said all this. */
function AsOf({ admin }) {
  const at = admin.asOf.value;
  if (at === null) return null;
  return html`<p class="as-of">as of ${admin.isStale.value ? momentAndAge(at, admin.now.value) : clock(at)}</p>`;
}
