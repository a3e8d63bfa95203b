/** The settings of the chat, for all its answers from now on and in all tabs; and settings under names. */

import { useSignal } from "@preact/signals";
import { useEffect, useRef } from "preact/hooks";

import { Dialog } from "../widgets/dialog.js";
import { html } from "../widgets/html.js";
import { SettingsFields, settingsOf } from "./settings-form.js";

const AGAIN_MS = 3000;

export function ChatSettings({ page, onClose }) {
  const form = useRef(null);
  const sessionId = useRef(page.chat.currentId).current; // another one may be on screen when it is saved
  const isNew = sessionId === null;
  const own = useSignal(page.settings.current);
  const chosen = useSignal(""); // the name of the preset that the form shows
  const isNaming = useSignal(false);
  const isTouched = useRef(false);
  const { presets } = page.settings.presets.value;
  const isKnown = isNew || page.chat.sessions.get(sessionId) !== undefined;
  useEffect(() => {
    if (isTouched.current || page.chat.currentId !== sessionId) return;
    own.value = page.settings.current; // the chat, or the default preset, may come late
  }, [presets, isKnown]);
  useEffect(() => keepLoading(page.settings), []);
  const name = chosen.value;
  const settings = presets.find((one) => one.name === name)?.settings ?? own.value;
  const save = (event) => {
    event.preventDefault();
    page.saveSettings(settingsOf(form.current, settings), sessionId);
    onClose();
  };
  const forget = () => {
    page.saveSettings({}, sessionId);
    onClose();
  };
  return html`<${Dialog} title=${isNew ? "Settings of new chats" : "Settings of this chat"} kind="side" onClose=${onClose}>
    ${presets.length > 0 &&
    html`<label class="field-row"><span>Preset</span>
      <select onChange=${({ currentTarget }) => (chosen.value = currentTarget.value)}>
        <option value="">as they are</option>
        ${presets.map((one) => html`<option value=${one.name} selected=${one.name === name}>${one.name}</option>`)}
      </select></label>`}
    <form ref=${form} key=${name + JSON.stringify(settings)} onSubmit=${save} onInput=${() => (isTouched.current = true)}>
      <${SettingsFields} settings=${settings} models=${page.settings.models.value} withSystem
        toolServers=${page.settings.toolServers.value} />
      <div class="dialog-foot">
        <button type="button" class="plain" disabled=${!isKnown} onClick=${forget}>Back to the defaults</button>
        <button type="submit" class="primary" disabled=${!isKnown}>Save</button>
      </div>
    </form>
    ${isNaming.value
      ? html`<${Naming} page=${page} form=${form} name=${name} onEnd=${() => (isNaming.value = false)} />`
      : html`<button type="button" class="plain" onClick=${() => (isNaming.value = true)}>Save as a preset…</button>`}
    ${name &&
    html`<button type="button" class="plain danger" onClick=${() => {
      page.deletePreset(name);
      chosen.value = "";
    }}>Delete “${name}”</button>`}
  <//>`;
}

/** Which tools there are; a server that is just starting is looked at again. @returns what ends that */
function keepLoading(settings) {
  let isOver = false;
  const load = async () => {
    await settings.loadTools();
    const isComing = settings.toolServers.value.some(({ status }) => status !== "ready");
    if (isComing && !isOver) setTimeout(() => isOver || load(), AGAIN_MS);
  };
  load();
  return () => (isOver = true);
}

/** Give what the form says a name, and perhaps begin new chats with it. */
function Naming({ page, form, name, onEnd }) {
  const isDefault = name !== "" && page.settings.presets.value.default === name;
  const keep = (event) => {
    event.preventDefault();
    if (!form.current.reportValidity()) return;
    const { name: field, isDefault: box } = event.currentTarget.elements;
    page.savePreset({ name: field.value.trim(), settings: settingsOf(form.current), default: box.checked });
    onEnd();
  };
  return html`<form class="naming" onSubmit=${keep}>
    <label class="field-row"><span>Name</span>
      <input name="name" type="text" required maxlength="60" pattern=".*\\S.*" autofocus defaultValue=${name} /></label>
    <label class="check"><input name="isDefault" type="checkbox" defaultChecked=${isDefault} />
      New chats begin with it</label>
    <div class="dialog-foot">
      <button type="button" class="plain" onClick=${onEnd}>Cancel</button>
      <button type="submit" class="primary">Save preset</button>
    </div>
  </form>`;
}
