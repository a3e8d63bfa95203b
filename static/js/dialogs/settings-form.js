/**
 * The fields of the settings that an answer is made with; an empty one leaves the default. What is typed stays
 * when something else on the page changes: only another `key` of the form fills it again.
 */

import { html } from "../widgets/html.js";
import { ToolFields, toolsOf } from "./tools-form.js";

/**
 * In the order of the form. `step` is that of a number; `rare` ones are folded away.
 * @type {{name: string, label: string, hint?: string, min?: number, max?: number, step?: number, rare?: boolean}[]}
 */
export const SETTINGS = [
  { name: "temperature", label: "Temperature", hint: "0 always takes the likeliest word", min: 0, max: 2, step: 0.1 },
  { name: "max_output_tokens", label: "Longest answer", hint: "tokens", min: 1, max: 16384, step: 1 },
  { name: "seed", label: "Seed", hint: "empty: another one each time", min: 0, max: 2 ** 53, step: 1 },
  { name: "stop", label: "Stop at", hint: "up to four texts, one on each line" },
  { name: "top_p", label: "Top-p", min: 0.01, max: 1, step: 0.01, rare: true },
  { name: "top_k", label: "Top-k", min: -1, max: 1000, step: 1, rare: true },
  { name: "min_p", label: "Min-p", min: 0, max: 1, step: 0.01, rare: true },
  { name: "repetition_penalty", label: "Repetition penalty", min: 0.1, max: 10, step: 0.05, rare: true },
  { name: "presence_penalty", label: "Presence penalty", min: -2, max: 2, step: 0.1, rare: true },
  { name: "frequency_penalty", label: "Frequency penalty", min: -2, max: 2, step: 0.1, rare: true },
  { name: "logprobs", label: "Alternatives", hint: "for each token, shown in an answer's details", min: 0, max: 5, step: 1, rare: true },
];

/**
 * @param {object} properties
 * @param {object} properties.settings what is set now
 * @param {{id: string}[]} properties.models offered where there is more than one
 * @param {boolean} [properties.withSystem] whether the instructions are among the fields
 * @param {object[]} [properties.toolServers] whose tools may be offered
 */
export function SettingsFields({ settings, models, withSystem = false, toolServers = [] }) {
  const rows = SETTINGS.map((setting) => [setting, html`<${Field} setting=${setting} value=${settings[setting.name]} />`]);
  const isRareSet = SETTINGS.some(({ name, rare }) => rare && settings[name] !== undefined);
  return html`
    ${models.length > 1 &&
    html`<label class="field-row"><span>Model</span>
      <select name="model">
        <option value="">${models[0].id} (default)</option>
        ${models.slice(1).map(({ id }) => html`<option value=${id} selected=${settings.model === id}>${id}</option>`)}
      </select></label>`}
    ${withSystem &&
    html`<label class="field-row tall"><span>Instructions<small>what the model reads before the chat</small></span>
      <textarea name="system" rows="5" dir="auto" maxlength="32768" defaultValue=${settings.system ?? ""}></textarea></label>`}
    ${rows.filter(([{ rare }]) => !rare).map(([, row]) => row)}
    <${ToolFields} servers=${toolServers} offered=${settings.tools} />
    <details class="more-settings" open=${isRareSet}>
      <summary>More</summary>
      ${rows.filter(([{ rare }]) => rare).map(([, row]) => row)}
    </details>`;
}

function Field({ setting, value }) {
  const { name, label, hint, min, max, step } = setting;
  const words = html`<span>${label}${hint && html`<small>${hint}</small>`}</span>`;
  if (step === undefined) {
    return html`<label class="field-row">${words}
      <textarea name=${name} rows="2" defaultValue=${(value ?? []).join("\n")}></textarea></label>`;
  }
  return html`<label class="field-row">${words}
    <input type="number" name=${name} min=${min} max=${max} step=${step === 1 ? 1 : "any"} placeholder="default"
      inputmode="decimal" defaultValue=${value ?? ""} /></label>`;
}

/**
 * What a form says, without what was left empty; of `others`, what has no field in it.
 * @param {HTMLFormElement} form @param {object} [others]
 */
export function settingsOf(form, others = {}) {
  const given = new FormData(form);
  const fields = new Set([...form.elements].map(({ name }) => name));
  const settings = Object.fromEntries(Object.entries(others).filter(([name]) => !fields.has(name)));
  for (const name of ["model", "system"]) {
    const text = given.get(name);
    if (text?.trim()) settings[name] = text;
  }
  for (const { name, step } of SETTINGS) {
    const text = given.get(name)?.trim() ?? "";
    if (text === "") continue;
    settings[name] = step === undefined ? text.split("\n").filter(Boolean).slice(0, 4) : Number(text);
  }
  const tools = toolsOf(form, others.tools);
  if (fields.has("tools") && tools.length > 0) settings.tools = tools;
  return settings;
}
