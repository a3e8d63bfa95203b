/** What the page has to say beside the conversation: an admin's notice, banner, toasts, the sign-in card, the spoken line. */

import { html } from "../widgets/html.js";
import { Mark } from "../widgets/icons.js";
import { visibleOutput } from "../widgets/visible.js";

/** What an admin says to all users: their words are text, and never markup. */
export function AnnouncementPlace({ page }) {
  const notice = page.announcement.shown.value;
  if (!notice) return null;
  return html`<div class=${`announcement ${notice.level === "warning" ? "warning" : "info"}`} role="note">
    <p dir="auto">${visibleOutput(notice.text)}</p>
    <button type="button" onClick=${() => page.announcement.dismiss()}>Dismiss</button>
  </div>`;
}

export function BannerPlace({ page }) {
  const banner = page.banner.shown.value;
  return html`<div class="banner-place" role="status">
    ${banner &&
    html`<p class=${`banner ${banner.tone}`}>
      <span>${banner.text}</span>
      ${banner.action && html`<button type="button" onClick=${banner.action.run}>${banner.action.label}</button>`}
    </p>`}
  </div>`;
}

export function Toasts({ page }) {
  return html`<div class="toasts" role="alert">
    ${page.toasts.shown.value.map((toast) => html`<${Toast} key=${toast} page=${page} toast=${toast} />`)}
  </div>`;
}

function Toast({ page, toast }) {
  const act = () => {
    page.toasts.dismiss(toast);
    toast.action.run();
  };
  return html`<p class="toast">
    <span>${toast.text}</span>
    ${toast.action && html`<button type="button" onClick=${act}>${toast.action.label}</button>`}
  </p>`;
}

export function Spoken({ page }) {
  return html`<p class="visually-hidden" role="status">${page.speech.spoken.value}</p>`;
}

export function SignedOut({ page }) {
  return html`<main class="card-place">
    <section class="card" aria-labelledby="sign-in">
      <${Mark} />
      <h1 id="sign-in">You are not signed in</h1>
      <p>Open the login URL that <code>parley serve</code> printed, or run <code>parley login</code> for a new one.</p>
      <p class="muted">This page goes on by itself when you come back to it.</p>
      <button type="button" class="primary" onClick=${() => page.reconnect()}>Try again</button>
    </section>
  </main>`;
}
