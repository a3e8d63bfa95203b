/** The model that answers in the chat on screen; where there are several, a button that chooses another one. */

import { modelState } from "../connection/protocol.js";
import { html } from "../widgets/html.js";
import { Chevron } from "../widgets/icons.js";
import { openMenu } from "../widgets/menu.js";

export function ModelName({ page }) {
  page.tick.value;
  const { modelName: name, models } = page.settings;
  if (!name) return null;
  if (models.value.length < 2) return html`<span class="model" title="The model that answers">${name}</span>`;
  const look = () => page.settings.loadModels(); // so that the menu says how they are now
  const choose = (event) =>
    openMenu(
      event,
      models.value.map((model) => ({
        label: model.id,
        note: modelState(model),
        checked: model.id === name,
        act: () => model.id !== name && page.chooseModel(model.id),
      })),
      "Who answers in this chat",
    );
  return html`<button type="button" class="model choose" aria-haspopup="menu" aria-label=${`Model: ${name}. Choose another`}
    title="The model that answers" onPointerEnter=${look} onFocus=${look} onClick=${choose}>
    <span>${name}</span><${Chevron} /></button>`;
}
