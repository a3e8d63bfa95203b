/** Light, dark, or as the system says. The stylesheet does the rest through `data-theme`. */

import { signal } from "@preact/signals";

import { html } from "./html.js";
import * as icons from "./icons.js";

const NAME = "parley.theme";
const CHOICES = [
  { theme: "light", label: "Light", icon: icons.Sun },
  { theme: "system", label: "As the system", icon: icons.System },
  { theme: "dark", label: "Dark", icon: icons.Moon },
];

const chosen = signal(document.documentElement.dataset.theme ?? "system");

const system = matchMedia("(prefers-color-scheme: dark)");

export const isDark = () => (chosen.value === "system" ? system.matches : chosen.value === "dark");

/** `listener` is called when another theme is chosen, and when the system's changes. @returns {() => void} ends that */
export function themeChanged(listener) {
  system.addEventListener("change", listener);
  const forget = chosen.subscribe(listener);
  return () => {
    system.removeEventListener("change", listener);
    forget();
  };
}

function choose(store, theme) {
  chosen.value = theme;
  if (theme === "system") {
    delete document.documentElement.dataset.theme;
    store.remove(NAME);
  } else {
    document.documentElement.dataset.theme = theme;
    store.set(NAME, theme);
  }
}

export function ThemeSwitch({ store }) {
  return html`<div class="themes" role="group" aria-label="Colours">
    ${CHOICES.map(
      ({ theme, label, icon }) =>
        html`<button
          type="button"
          aria-label=${label}
          title=${label}
          aria-pressed=${String(chosen.value === theme)}
          onClick=${() => choose(store, theme)}
        >
          <${icon} />
        </button>`,
    )}
  </div>`;
}
