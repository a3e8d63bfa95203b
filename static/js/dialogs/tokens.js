/** The tokens of an answer, shaded by how likely each was, and what could have stood in place of the least likely. */

import { html } from "../widgets/html.js";

const MAX_DOUBTFUL = 12;
const PERCENT = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });

export function Tokens({ tokens }) {
  if (tokens.length === 0) return null;
  return html`<h3>Likelihood</h3>
    <p class="tokens" dir="auto">${tokens.map((token) => html`<span class=${shade(token)} title=${words(token)}>${token.token}</span>`)}</p>
    <p class="hint">The darker, the less likely the token was. Of the text that came to this page.</p>
    ${tokens.some(({ top }) => top.length > 0) &&
    html`<dl class="pairs">
      ${doubtful(tokens).map((token) => html`<dt><code>${visible(token.token)}</code> ${percent(token)}</dt><dd>${others(token)}</dd>`)}
    </dl>`}`;
}

/** The least likely tokens, in the order of the text. */
export function doubtful(tokens) {
  const least = [...tokens].sort((one, other) => one.logprob - other.logprob).slice(0, MAX_DOUBTFUL);
  return tokens.filter((token) => least.includes(token));
}

/** One of five classes: styles of single elements are forbidden to the page. */
export function shade({ logprob }) {
  const probability = Math.exp(logprob);
  const level = [0.9, 0.6, 0.3, 0.1].findIndex((bound) => probability >= bound);
  return `doubt-${level < 0 ? 4 : level}`;
}

const percent = ({ logprob }) => (Math.exp(logprob) < 0.001 ? "< 0.1%" : PERCENT.format(Math.exp(logprob)));
const visible = (token) => token.replaceAll(" ", "␣").replaceAll("\n", "↵");
const words = (token) => `${visible(token.token)} ${percent(token)}${others(token) && `; ${others(token)}`}`;
const others = ({ token, top }) =>
  top.filter((other) => other.token !== token).map((other) => `${visible(other.token)} ${percent(other)}`).join(", ");
