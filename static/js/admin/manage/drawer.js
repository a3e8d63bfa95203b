/** What the drawers of this room hold: facts, and quotas in words and as fields. */

import { html } from "../../widgets/html.js";
import { count } from "../frame/words.js";

/** @param {{facts: ([string, any] | null | false)[]}} given */
export function Facts({ facts }) {
  return html`<dl class="facts">
    ${facts.filter(Boolean).map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}
  </dl>`;
}

const UNITS = { tokens_per_day: ["token", " a day"], sessions: ["session", ""], answers: ["answer", " at a time"] };

/** "5,000 tokens a day, 2 answers at a time" @param {Record<string, number | null>} quotas @param {string} none */
export function quotaText(quotas, none) {
  const given = Object.entries(quotas).filter(([, most]) => most !== null);
  return given.map(([name, most]) => `${most === 0 ? "unlimited" : count(most)} ${unitOf(name, most)}`).join(", ") || none;
}

/** "1,200 of 5,000" @param {number} used @param {number | null} most null and 0: as many as they like */
export const of = (used, most) => (most ? `${count(used)} of ${count(most)}` : count(used));

function unitOf(name, number) {
  const [unit, rest] = UNITS[name];
  return `${unit}${number === 1 ? "" : "s"}${rest}`;
}

/** The fields of a form for quotas. @param {Record<string, number | null>} quotas @param {string} hint of an empty one */
export function quotaFields(quotas, hint) {
  const labels = { tokens_per_day: "Tokens a day", sessions: "Sessions", answers: "Answers at a time" };
  return Object.entries(labels).map(([name, label]) => ({ name, label, kind: "number", value: quotas[name] ?? "", hint }));
}
