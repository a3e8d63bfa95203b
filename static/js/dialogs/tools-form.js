/** Which of the server's tools a chat offers to its model: a box for each, and one for all of a server. */

import { useEffect, useRef } from "preact/hooks";

import { html } from "../widgets/html.js";
import { visibleName, visibleOutput } from "../widgets/visible.js";

const NAME = "tools"; // of the boxes, and of the setting
const CONSENT_TEXTS = {
  always: "asks before each call",
  once: "asks, until you allow it in the chat",
  never: "runs without asking",
};

/**
 * @param {object} properties
 * @param {object[]} properties.servers as `GET /v1/tools` lists them @param {object[]} [properties.offered] the setting
 */
export function ToolFields({ servers, offered = [] }) {
  if (servers.length === 0) return null;
  return html`<fieldset class="tool-servers">
    <legend>Tools<small>what the model may call on this server</small></legend>
    ${servers.map((server) => html`<${Server} key=${server.server_label} server=${server} offered=${offered} />`)}
  </fieldset>`;
}

function Server({ server, offered }) {
  const group = useRef(null);
  const all = useRef(null);
  const { server_label: label, tools, status, message } = server;
  const entry = offered.find((one) => one.type === "mcp" && one.server_label === label);
  const isOffered = ({ name, title }) =>
    entry !== undefined && (entry.allowed_tools === undefined || entry.allowed_tools.some((one) => one === name || one === title));
  const boxes = () => [...group.current.querySelectorAll(`[name="${NAME}"]`)];
  const tell = () => {
    const count = boxes().filter(({ checked }) => checked).length;
    all.current.checked = count > 0 && count === tools.length;
    all.current.indeterminate = count > 0 && count < tools.length;
  };
  useEffect(tell, [tools.length, offered]);
  const setAll = ({ currentTarget }) => {
    for (const box of boxes()) box.checked = currentTarget.checked;
  };
  const words = status === "unavailable" ? "is not up" : `${tools.length} ${tools.length === 1 ? "tool" : "tools"}`;
  return html`<div class="tool-server" ref=${group} role="group" aria-label=${`Tools of ${visibleName(label)}`}>
    <label class="check"><input type="checkbox" ref=${all} disabled=${tools.length === 0} onChange=${setAll} />
      <span>${visibleName(label)}<small>${words}</small></span></label>
    ${message && html`<p class="hint">${visibleOutput(message)}</p>`}
    ${tools.length > 0 &&
    html`<details>
      <summary>Choose among its tools</summary>
      ${tools.map((tool) => html`<${Tool} key=${tool.name} tool=${tool} label=${label} checked=${isOffered(tool)} onChange=${tell} />`)}
    </details>`}
  </div>`;
}

/** Its description is a stranger's: shown as text, and not too much of it. */
function Tool({ tool, label, checked, onChange }) {
  const { name, title, description, consent, read_only: readsOnly } = tool;
  return html`<label class="check">
    <input type="checkbox" name=${NAME} value=${name} data-server=${label} defaultChecked=${checked} onChange=${onChange} />
    <span><code>${visibleName(title)}</code>
      ${description && html`<small class="described" dir="auto" title=${visibleOutput(description)}>${visibleOutput(description)}</small>`}
      <small>${CONSENT_TEXTS[consent] ?? CONSENT_TEXTS.always}${readsOnly && " · only reads, as its server says"}</small>
    </span></label>`;
}

/**
 * What the boxes of a form say. Tools that have no box stay: functions of programs, and servers that are not up.
 * @param {HTMLFormElement} form @param {object[]} [before] the setting as it was @returns {object[]}
 */
export function toolsOf(form, before = []) {
  const boxes = [...form.elements].filter(({ name }) => name === NAME);
  const labels = [...new Set(boxes.map(({ dataset }) => dataset.server))];
  const kept = before.filter(({ type, server_label: label }) => type !== "mcp" || !labels.includes(label));
  const chosen = labels.map((server_label) => {
    const theirs = boxes.filter(({ dataset }) => dataset.server === server_label);
    const allowed_tools = theirs.filter(({ checked }) => checked).map(({ value }) => value);
    return { type: "mcp", server_label, ...(allowed_tools.length < theirs.length && { allowed_tools }) };
  });
  return [...kept, ...chosen.filter(({ allowed_tools }) => allowed_tools?.length !== 0)];
}
