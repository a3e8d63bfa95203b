/** Where an admin's token is asked for. */

import { useSignal } from "@preact/signals";

import { html } from "../../widgets/html.js";
import { Mark } from "../../widgets/icons.js";

export function SignIn({ admin }) {
  const token = useSignal("");
  const submit = (event) => {
    event.preventDefault();
    if (token.value.trim()) admin.signIn(token.value.trim());
  };
  return html`<main class="card-place">
    <form class="card sign-in" onSubmit=${submit} aria-labelledby="sign-in">
      <${Mark} />
      <h1 id="sign-in">Parley admin</h1>
      <label class="field">
        <span>Admin token</span>
        <input type="password" autocomplete="off" spellcheck="false" autofocus value=${token.value}
          aria-describedby="token-help" onInput=${(event) => (token.value = event.target.value)} />
      </label>
      ${admin.signInError.value && html`<p class="sign-in-error" role="alert">${admin.signInError.value}</p>`}
      <p class="muted" id="token-help">
        On the server it is in <code>admin-token</code> in the data directory. This tab forgets it when it is closed.
      </p>
      <button type="submit" class="primary" disabled=${admin.signingIn.value}>
        ${admin.signingIn.value ? "Signing in …" : "Sign in"}
      </button>
    </form>
  </main>`;
}
