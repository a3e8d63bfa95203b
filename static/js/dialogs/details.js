/** How an answer came about: when, how fast, from what, with which settings; and the way to make it again. */

import { endText, reasonText } from "../connection/protocol.js";
import { duration, rate } from "../widgets/figures.js";
import { Dialog } from "../widgets/dialog.js";
import { html } from "../widgets/html.js";
import { SETTINGS } from "./settings-form.js";
import { Tokens } from "./tokens.js";

export function Details({ page, message, onClose }) {
  const again = () => {
    onClose();
    page.ask({ regenerate_of: message.id, settings: message.settings });
  };
  return html`<${Dialog} title="Details of the answer" kind="wide" onClose=${onClose}>
    ${sections(message).map(
      ([heading, rows]) => html`<h3>${heading}</h3>
        <dl class="pairs">${rows.map(([name, value]) => html`<dt>${name}</dt><dd>${value}</dd>`)}</dl>`,
    )}
    <${Tokens} tokens=${message.tokens} />
    ${message.settings &&
    html`<div class="dialog-foot">
      <p>The same seed and settings give the same answer, as long as the chat's instructions are the same.</p>
      <button type="button" class="primary" onClick=${again}>Make it again</button>
    </div>`}
  <//>`;
}

/** @returns {[string, [string, any][]][]} headings with their rows; what is not known has none */
export function sections(message) {
  const { timings = {}, usage, settings } = { ...message, timings: message.timings ?? {} };
  const all = [
    ["Course", courseOf(message, timings)],
    ["Tokens", usage ? tokensOf(usage, timings) : []],
    ["Made with", settings ? madeWith(message.model, settings) : []],
  ];
  return all.map(([heading, rows]) => [heading, rows.filter(([, value]) => value)]).filter(([, rows]) => rows.length);
}

/** How an answer went on at an engine that does not go on exactly. */
const WENT_ON = {
  tokens: ", went on from its next token",
  text: ", went on after its text",
};

function courseOf(message, timings) {
  const { status, reason, createdAt, restarts, exactness } = message;
  const how = [endText(status, reason) || "Complete", reasonText(reason)].filter(Boolean).join(", ");
  const times = (count) => `survived ${count} ${count === 1 ? "restart" : "restarts"}${WENT_ON[exactness] ?? ""}`;
  return [
    ["Asked", new Date(createdAt).toLocaleString(undefined, { dateStyle: "medium", timeStyle: "medium" })],
    ["Waited in line", timings.queue_ms !== undefined && duration(timings.queue_ms)],
    ["First token after", timings.ttft_ms !== undefined && duration(timings.ttft_ms)],
    ["In all", timings.total_ms !== undefined && duration(timings.total_ms)],
    ["End", how],
    ["Stop asked → engine released", released(timings)],
    ["Engine and worker", restarts > 0 && times(restarts)],
    ["Id", html`<code>${message.responseId ?? message.id}</code>`],
  ];
}

function released({ cancel_at: asked, aborted_at: done }) {
  return asked !== undefined && done !== undefined && duration(Math.max(0, done - asked));
}

function tokensOf({ input_tokens: read, cached_tokens: cached, output_tokens: written }, timings) {
  const count = (number) => number.toLocaleString("en");
  const fromCache = cached > 0 ? `, ${count(cached)} of them from the cache` : "";
  return [
    ["Read", count(read) + fromCache],
    ["Written", count(written)],
    ["Speed", timings.tokens_per_s && `${rate(timings.tokens_per_s)} tokens/s`],
  ];
}

function madeWith(model, settings) {
  const rows = SETTINGS.map(({ name, label }) => [label, settings[name]]);
  const shown = rows.filter(([, value]) => value !== undefined && value !== null);
  return [["Model", model], ...shown.map(([label, value]) => [label, [value].flat().join(", ") || "0"])];
}
