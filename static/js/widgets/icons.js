/** The page's few icons, drawn on a grid of 20 with one stroke width; decoration only, never a label. */

import { html } from "./html.js";

const icon = (paths) =>
  html`<svg class="icon" viewBox="0 0 20 20" aria-hidden="true" focusable="false">${paths}</svg>`;

export const Menu = () => icon(html`<path d="M3.5 6h13M3.5 10h13M3.5 14h13" />`);
export const Close = () => icon(html`<path d="m5 5 10 10M15 5 5 15" />`);
export const Plus = () => icon(html`<path d="M10 4v12M4 10h12" />`);
export const More = () =>
  icon(html`<g class="solid"><circle cx="4.5" cy="10" r="1.4" /><circle cx="10" cy="10" r="1.4" /><circle cx="15.5" cy="10" r="1.4" /></g>`);
export const Send = () => icon(html`<path d="M10 16V4.5M5 9.2l5-4.9 5 4.9" />`);
export const Stop = () => icon(html`<rect class="solid" x="5.5" y="5.5" width="9" height="9" rx="1.6" />`);
export const Down = () => icon(html`<path d="M10 4v11.5M5 10.8l5 4.9 5-4.9" />`);
export const Chevron = () => icon(html`<path d="m5.5 8 4.5 4.5L14.5 8" />`);
export const Tick = () => icon(html`<path d="m4.5 10.5 3.8 3.8 7.2-8.3" />`);
export const Up = () => icon(html`<path d="m5.5 11.5 4.5-4.5 4.5 4.5" />`);
export const Steer = () => icon(html`<path d="M5 4v4.5a3 3 0 0 0 3 3h6.5M11 7.8l4 3.7-4 3.7" />`);
export const Pencil = () => icon(html`<path d="m4 16 .8-3.4L13 4.4l2.6 2.6-8.2 8.2L4 16Z" />`);
export const Bin = () => icon(html`<path d="M4 5.8h12M8 5.5V4h4v1.5M5.6 6l.7 10h7.4l.7-10" />`);
export const Pin = () => icon(html`<path d="M7 3.5h6M8 3.5v5L5.5 11.5h9L12 8.5v-5M10 11.5V17" />`);
export const Link = () =>
  icon(html`<path d="M8.5 11.5a3.2 3.2 0 0 0 4.6 0l2.5-2.5a3.2 3.2 0 0 0-4.6-4.6l-.9.9M11.5 8.5a3.2 3.2 0 0 0-4.6 0L4.4 11a3.2 3.2 0 0 0 4.6 4.6l.9-.9" />`);
export const File = () => icon(html`<path d="M5 3.5h6.5L15 7v9.5H5ZM11 3.5V7.5h4" />`);
export const Sliders = () =>
  icon(html`<path d="M3.5 6.5h6M14 6.5h2.5M3.5 13.5h2.5M10.5 13.5h6" /><circle cx="11.8" cy="6.5" r="2" /><circle cx="8.2" cy="13.5" r="2" />`);
export const Person = () => icon(html`<circle cx="10" cy="7" r="3" /><path d="M4 16.5c.8-3 3.1-4.5 6-4.5s5.2 1.5 6 4.5" />`);
export const People = () =>
  icon(html`<circle cx="7.5" cy="7.5" r="2.6" /><path d="M2.5 16c.6-2.7 2.5-4 5-4s4.4 1.3 5 4M12.5 5.1a2.6 2.6 0 0 1 0 4.8M14.2 12.4c1.7.5 2.8 1.7 3.3 3.6" />`);
export const Horn = () => icon(html`<path d="M4 8.3v3.4h2.6l7.4 3.6V4.7L6.6 8.3ZM7.6 12l.9 4h1.8l-.8-3M16.3 8.6v2.8" />`);
export const Find = () => icon(html`<circle cx="9" cy="9" r="5" /><path d="m12.8 12.8 3.7 3.7" />`);
export const Chats = () => icon(html`<path d="M3.5 5.5h13M3.5 10h13M3.5 14.5h8" />`);
export const Chart = () => icon(html`<path d="M3.5 4v12.5h13M6.5 12.5l3-4 2.5 2.2L16 5.5" />`);
export const Pulse = () => icon(html`<path d="M2.5 10.5h3.8l2-5.5 3.2 10 2-4.5h4" />`);
export const Sun = () =>
  icon(html`<circle cx="10" cy="10" r="3.2" /><path d="M10 2.8v1.6M10 15.6v1.6M2.8 10h1.6M15.6 10h1.6M4.9 4.9 6 6M14 14l1.1 1.1M15.1 4.9 14 6M6 14l-1.1 1.1" />`);
export const Moon = () => icon(html`<path d="M15.8 11.9A6.4 6.4 0 0 1 8.1 4.2a6.4 6.4 0 1 0 7.7 7.7Z" />`);
export const System = () => icon(html`<rect x="3" y="4" width="14" height="9.5" rx="1.6" /><path d="M7.5 16.5h5" />`);

/** The name mark: two voices, one facing the other. */
export const Mark = () =>
  html`<svg class="mark" viewBox="0 0 32 32" aria-hidden="true" focusable="false">
    <path class="first" d="M4 8.5A4.5 4.5 0 0 1 8.5 4h8A4.5 4.5 0 0 1 21 8.5v3a4.5 4.5 0 0 1-4.5 4.5H10l-4.6 3.6A.9.9 0 0 1 4 18.9Z" />
    <path class="second" d="M28 17.5A4.5 4.5 0 0 0 23.5 13.1V13c0 3.6-2.9 6.5-6.5 6.5h-4.3A4.5 4.5 0 0 0 16.5 24H22l4.6 3.6A.9.9 0 0 0 28 26.9Z" />
  </svg>`;
