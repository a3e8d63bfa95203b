/** What answers are made with: the settings of the chat on screen and of new ones, presets, the models there are. */

import { signal } from "@preact/signals";

import * as api from "../connection/api.js";

const NEW = "parley.settings.new"; // of new chats, as far as this browser knows

export class Settings {
  /** @type {import("@preact/signals").Signal<{id: string}[]>} the first one answers by default */
  models = signal([]);
  /** @type {import("@preact/signals").Signal<{presets: object[], default: string | null}>} the user's */
  presets = signal({ presets: [], default: null });
  /** @type {import("@preact/signals").Signal<object[]>} that run tools, as far as it is known */
  toolServers = signal([]);
  #store;
  #chat;

  /** @param {import("../connection/storage.js").Store} store @param {import("./chat.js").Chat} chat */
  constructor(store, chat) {
    this.#store = store;
    this.#chat = chat;
  }

  /** Read what the server has. Where that fails, what is known stays. */
  load() {
    api.listPresets().then((presets) => (this.presets.value = presets), () => {});
    this.loadModels();
  }

  /** Which there are, and how they are now. */
  loadModels() {
    api.listModels().then((models) => (this.models.value = models), () => {});
  }

  /** Which tools the server runs now; what is known stays where that cannot be read. */
  loadTools() {
    return api.listTools().then((servers) => (this.toolServers.value = servers), () => {});
  }

  /** Those of the chat on screen; a new one will begin with them. */
  get current() {
    const { currentId, sessions } = this.#chat;
    if (currentId === null) return this.#store.get(NEW) ?? this.#ofDefaultPreset;
    return sessions.get(currentId)?.session.settings ?? {};
  }

  /** The name of the model that answers in the chat on screen; empty until it is known. */
  get modelName() {
    const begunWith = this.#chat.sessions.get(this.#chat.currentId)?.session.model;
    const names = this.models.value.map(({ id }) => id);
    return this.current.model ?? (names.includes(begunWith) ? begunWith : names[0]) ?? "";
  }

  /** @param {string} name of one of the models, for the chat on screen */
  chooseModel(name) {
    this.save({ ...this.current, model: name }, this.#chat.currentId);
  }

  /** @param {object} settings all of them @param {string | null} sessionId null: of new chats */
  save(settings, sessionId) {
    if (sessionId === null) this.#store.set(NEW, settings);
    else this.#chat.configure(sessionId, settings);
  }

  /** @param {{name: string, settings: object, default: boolean}} preset */
  async putPreset(preset) {
    this.presets.value = await api.putPreset(preset);
    if (preset.default) this.#store.remove(NEW); // it is what new chats begin with
  }

  async deletePreset(name) {
    await api.deletePreset(name);
    this.presets.value = await api.listPresets();
  }

  get #ofDefaultPreset() {
    const { presets, default: name } = this.presets.value;
    return presets.find((preset) => preset.name === name)?.settings ?? {};
  }
}
