/**
 * What is drawn of the recent past, and how its values are said. `series` are those of `/v1/admin/stats`.
 *
 * @typedef {object} Line
 * @property {string} series
 * @property {string} label
 * @property {number} [scale] by which the server's value is multiplied
 */
/** @typedef {{id: string, title: string, lines: Line[], say: (value: number) => string, most?: number, least?: number, isCount?: boolean}} Chart */

/** Three figures, and no more. */
const short = (number) => {
  if (number >= 100_000) return `${Math.round(number / 1000).toLocaleString("en")}k`;
  if (number >= 100 || Number.isInteger(number)) return Math.round(number).toLocaleString("en");
  return number.toPrecision(number < 1 ? 1 : 2);
};
const time = (ms) => (ms < 1000 ? `${short(ms)} ms` : `${short(ms / 1000)} s`);
const share = (percent) => `${short(percent)} %`;

/** @type {Chart[]} `least` is the height of the scale where all values are less; `most` is its end */
export const CHARTS = [
  {
    id: "tokens",
    title: "Tokens per second",
    lines: [
      { series: "decode_tokens_per_s", label: "generated" },
      { series: "prefill_tokens_per_s", label: "read" },
    ],
    say: short,
    least: 10,
  },
  {
    id: "answers",
    title: "Answers",
    lines: [
      { series: "active_responses", label: "running" },
      { series: "queued_responses", label: "waiting" },
    ],
    say: short,
    least: 4,
    isCount: true,
  },
  {
    id: "first-token",
    title: "Time to first token",
    lines: [
      { series: "ttft_ms.p50", label: "median" },
      { series: "ttft_ms.p95", label: "95 %" },
      { series: "ttft_ms.p99", label: "99 %" },
    ],
    say: time,
    least: 100,
  },
  {
    id: "stop",
    title: "From stop to end",
    lines: [
      { series: "stop_ms.p50", label: "median" },
      { series: "stop_ms.p99", label: "99 %" },
    ],
    say: time,
    least: 10,
  },
  {
    id: "kv",
    title: "KV cache in use",
    lines: [{ series: "kv_usage", label: "of all blocks", scale: 100 }],
    say: share,
    most: 100,
  },
  {
    id: "hits",
    title: "Prefix cache hits",
    lines: [{ series: "cache_hit_ratio", label: "of prompt tokens", scale: 100 }],
    say: share,
    most: 100,
  },
  {
    id: "errors",
    title: "Errors",
    lines: [
      { series: "responses.failed", label: "failed answers" },
      { series: "errors", label: "sent to clients" },
    ],
    say: short,
    least: 4,
    isCount: true,
  },
  {
    id: "connections",
    title: "Connections",
    lines: [{ series: "connections", label: "open" }],
    say: short,
    least: 4,
    isCount: true,
  },
];

export const SPANS = [
  ["15m", "15 min"],
  ["24h", "24 hours"],
  ["7d", "7 days"],
  ["30d", "30 days"],
];

/**
 * Counts that no worker has sent are none where anything was measured at all.
 * @param {{at: number[], series: Record<string, (number | null)[]>}} stats @param {Line} line
 * @returns {(number | null)[]} one for each moment
 */
export function valuesOf({ at, series }, { series: name, scale = 1 }) {
  const values = series[name];
  if (values && !isCount(name)) return values.map((value) => (value === null ? null : value * scale));
  const measured = series.connections ?? [];
  return at.map((_, place) => values?.[place] ?? (isCount(name) && measured[place] != null ? 0 : null));
}

const isCount = (name) => name === "errors" || name.startsWith("responses.");

/** The last value that there is; null: none. @param {(number | null)[]} values */
export const lastOf = (values) => values.findLast((value) => value !== null) ?? null;

/** Places of values that no line leads to: they are drawn as points. @param {(number | null)[]} values */
export function alone(values) {
  const is = (place) => values[place] !== null && values[place] !== undefined;
  return values.map((_, place) => place).filter((place) => is(place) && !is(place - 1) && !is(place + 1));
}

/** What a chart shows, for who does not see it. @param {Chart} chart @param {object} stats */
export function told(chart, stats) {
  const lines = chart.lines.map((line) => {
    const values = valuesOf(stats, line).filter((value) => value !== null);
    if (!values.length) return `${line.label}: nothing measured`;
    const [last, most] = [values.at(-1), values.reduce((one, other) => Math.max(one, other))];
    return `${line.label} ${chart.say(last)} at the end, ${chart.say(most)} at most`;
  });
  return `${chart.title}: ${lines.join("; ")}`;
}

/** A moment as a span of that length needs it. @param {number} at in ms @param {string} span */
export function momentOf(at, span) {
  const moment = new Date(at);
  const clock = moment.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit", ...(span === "15m" && { second: "2-digit" }) });
  if (span === "15m" || span === "24h") return clock;
  return `${moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" })}, ${clock}`;
}

/** The same where there is little room: on an axis. */
export function axisMomentOf(at, span) {
  const moment = new Date(at);
  if (span === "15m" || span === "24h") return moment.toLocaleTimeString("en-GB", { hour: "2-digit", minute: "2-digit" });
  return moment.toLocaleDateString("en-GB", { day: "numeric", month: "short" });
}
