/** What stands above every tab: how each part of the server is and how old that is, and what is wrong. */

import { computed } from "@preact/signals";

import { html } from "../../widgets/html.js";
import { Reading } from "../frame/reading.js";
import { clock, momentAndAge } from "../frame/words.js";
import { Workers, lossTrouble } from "./rules.js";
import { vitalsOf } from "./vitals.js";

const EVERY_MS = 500;
const REACH_MS = 1000; // what was told is taken to go on so long
const LIMIT_MS = 1500; // the server itself waits less for its parts

class Health {
  told = new Reading((api) => api.get("/health", {}, { limitMs: LIMIT_MS }), { everyMs: EVERY_MS });
  /** What workers said of themselves. */
  workers = computed(() => {
    const told = this.told.value.value;
    const until = this.isStale.value ? Infinity : this.told.at.value + REACH_MS;
    return told ? new Workers(told, this.told.at.value - told.roll_age_ms, until) : Workers.NONE;
  });

  /** @param {import("../frame/console.js").Console} admin */
  constructor(admin) {
    this.isStale = computed(() => this.told.isStale(admin.now.value));
    const halted = computed(() => this.workers.value.halted(admin.now.value).join("\n")); // of most moments the same
    const running = computed(() => {
      const names = new Set(halted.value.split("\n"));
      return this.workers.value.present.map(({ id }) => id).filter((id) => !names.has(id)).join("\n");
    });
    /** The workers whose answers go on. */
    this.running = computed(() => new Set(running.value.split("\n")));
    this.numHalted = computed(() => this.workers.value.numHalted(admin.now.value));
    this.vitals = computed(() =>
      vitalsOf(this.told.value.value, this.workers.value, this.told.at.value, admin.now.value),
    );
    this.troubles = computed(() => {
      const lost = admin.lost.value && lossTrouble(admin.lost.value, admin.asOf.value);
      return [lost, ...this.workers.value.troubles(admin.now.value)].filter(Boolean);
    });
  }

  /** Whether the token that asks has this scope. */
  may(scope) {
    return this.told.value.value?.scopes.includes(scope) ?? false;
  }

  readings() {
    return [this.told];
  }
}

export const STRIP = { open: (admin) => new Health(admin), View: Strip };

function Strip({ admin, state }) {
  return html`<section class="strip" aria-label="Health">
    <ul class=${state.isStale.value ? "vitals old" : "vitals"}>
      ${state.vitals.value.map(
        ({ key, label, tone, word }) => html`<li key=${key} class=${`vital ${tone}`}>
          <span class="label">${label}</span> <span class="word">${word}</span>
        </li>`,
      )}
    </ul>
    <${AsOf} admin=${admin} />
    <${Troubles} state=${state} />
  </section>`;
}

/** What is wrong, or nothing. Only the headlines are read out: the ages change each second. */
function Troubles({ state }) {
  const troubles = state.troubles.value;
  const unwell = state.vitals.value.filter(({ tone }) => tone === "bad").map(({ label }) => label);
  const said = [...troubles.map(({ headline }) => headline), unwell.length > 0 && `Not well: ${unwell.join(", ")}.`];
  return html`<div class=${troubles.length ? "troubles" : "visually-hidden"}>
    <p class="visually-hidden" role="status">${said.filter(Boolean).join(" ")}</p>
    ${troubles.map(
      ({ key, headline, detail }) => html`<p class=${key === "lost" ? "trouble lost" : "trouble"} key=${key}>
        <strong>${headline}</strong> <span>${detail}</span>
      </p>`,
    )}
  </div>`;
}

/** When the server said all this. */
function AsOf({ admin }) {
  const at = admin.asOf.value;
  if (at === null) return null;
  return html`<p class="as-of">as of ${admin.isStale.value ? momentAndAge(at, admin.now.value) : clock(at)}</p>`;
}
