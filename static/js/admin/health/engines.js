/** The engines of each model on the host that answers: how they are, what they do, and what may be done with them. */

import { html } from "../../widgets/html.js";
import { OPERATE, WHY, ask, fill } from "../frame/dialog.js";
import { Table } from "../frame/table.js";
import { count } from "../frame/words.js";

const STATES = {
  ready: ["good", "ready"],
  connecting: ["warn", "connecting"],
  preparing: ["warn", "preparing"],
  paused: ["warn", "paused"],
  asleep: ["idle", "asleep"],
  not_loaded: ["idle", "not loaded"],
  stalled: ["bad", "stalled"],
  dead: ["bad", "away"],
  failed: ["bad", "failed"],
};
/** In these there is a process, which may be replaced. */
const RUNNING = new Set(["ready", "stalled", "paused"]);
/** What becomes of an answer when its engine dies. */
const EXACTNESS = {
  exact: "goes on bit for bit",
  tokens: "goes on from the next token",
  text: "goes on after its text",
  none: "ends, incomplete",
};

/**
 * @param {object} given
 * @param {object[]} given.engines of `/v1/admin/engines` @param {object | null} given.health for models with one alone
 */
export function Engines({ admin, engines, health }) {
  const rows = [...engines, ...single(engines, health)].map((engine, _, all) => ({ ...engine, called: calledIn(all, engine) }));
  return html`<section aria-labelledby="engines">
    <header class="section-head">
      <h2 id="engines">Engines</h2>
      ${engines.length > 0 &&
      html`<button type="button" class="plain small" onClick=${() => add(admin)}>Add an engine …</button>`}
    </header>
    <${Table} label="Engines" kind="of-engines" columns=${columnsOf(admin, engines)} rows=${rows} keyOf=${({ name, model }) => `${model} ${name}`} />
  </section>`;
}

/** Models that have one engine, of which less is known. */
function single(engines, health) {
  if (!health) return [];
  const named = new Set(engines.map(({ model }) => model));
  const worker = health.replicas.find(({ id }) => id === health.replica);
  return health.engines
    .filter(({ model }) => !named.has(model))
    .map((engine) => ({ kind: "native", ...engine, ...(engine.model === worker?.model && figuresOf(worker)), isAlone: true }));
}

const figuresOf = (worker) => ({
  running: worker.engine_running,
  waiting: worker.engine_waiting,
  kv_blocks: worker.kv_blocks_total,
  kv_blocks_free: worker.kv_blocks_free,
});

/** Its name, and whose it is where several models have an engine of that name. */
function calledIn(all, { name, model }) {
  return all.some((other) => other.name === name && other.model !== model) ? `${name} of ${model}` : name;
}

/** @returns {import("../frame/order.js").Column[]} */
function columnsOf(admin, engines) {
  const weightOf = (model) => engines.filter((one) => one.model === model && !one.draining).reduce((sum, { weight }) => sum + weight, 0);
  const shareOf = ({ model, weight, draining, isAlone }) => (isAlone ? 1 : draining ? 0 : weight / weightOf(model));
  const known = (value) => (value === undefined ? null : count(value));
  return [
    { id: "name", label: "Name", cell: (engine) => html`<${Name} engine=${engine} />` },
    { id: "state", label: "State", cell: (engine) => html`<${State} engine=${engine} />` },
    { id: "share", label: "Share", number: true, cell: (engine) => `${Math.round(100 * shareOf(engine))} %` },
    { id: "running", label: "Running", number: true, cell: ({ running }) => known(running) },
    { id: "waiting", label: "Waiting", number: true, cell: ({ waiting }) => known(waiting) },
    { id: "kv", label: "KV in use", number: true, cell: ({ kv_blocks: all, kv_blocks_free: free }) => (all ? `${Math.round((100 * (all - free)) / all)} %` : null) },
    { id: "sessions", label: "Sessions", number: true, cell: ({ sessions }) => known(sessions) },
    { id: "exactness", label: "If it dies, an answer", cell: ({ exactness }) => EXACTNESS[exactness] ?? null },
    { id: "deeds", label: "What can be done", isDeed: true, kind: "deeds", cell: (engine) => html`<${Deeds} admin=${admin} engine=${engine} />` },
  ];
}

function Name({ engine: { name, model, kind, url, problem } }) {
  return html`<span class="name">${name}</span>
    <small>${model} · ${kind}</small>
    ${url && html`<small>${url}</small>`}
    ${problem && html`<p class="problem">${problem}</p>`}`;
}

function State({ engine: { state, draining } }) {
  const [tone, word] = STATES[state] ?? ["idle", state];
  return html`<span class=${`state ${draining && tone === "good" ? "warn" : tone}`}>${draining ? `${word}, draining` : word}</span>`;
}

function Deeds({ admin, engine }) {
  const { called, state, url, isAlone } = engine;
  const canRestart = !url && RUNNING.has(state) && admin.may(OPERATE);
  return html`${!isAlone && html`<${Draining} admin=${admin} engine=${engine} />`}
    ${canRestart && html`<button type="button" class="plain small" aria-label=${`Restart ${called}`} onClick=${() => restart(admin, engine)}>Restart …</button>`}
    ${!isAlone && html`<button type="button" class="plain small danger" aria-label=${`Remove ${called}`} onClick=${() => remove(admin, engine)}>Remove …</button>`}`;
}

/** One button, which keeps the focus. */
function Draining({ admin, engine }) {
  const [word, dots, deed] = engine.draining ? ["Undrain", "", resume] : ["Drain", " …", drain];
  return html`<button type="button" class="plain small drain" aria-label=${`${word} ${engine.called}`} onClick=${() => deed(admin, engine)}>${word}${dots}</button>`;
}

const pathOf = ({ name }) => `/engines/${encodeURIComponent(name)}`;

function resume(admin, engine) {
  const { model, called } = engine;
  return admin.act((api) => api.post(`${pathOf(engine)}/resume`, { model }), `${called} takes new answers.`);
}

function drain(admin, engine) {
  const { model, called } = engine;
  ask(admin, {
    title: `Drain ${called}`,
    text: "It takes no new answers. Those that it has end there.",
    check: "Have them go on at other engines at once",
    deed: "Drain",
    act: ({ isChecked: move }) => admin.act((api) => api.post(`${pathOf(engine)}/drain`, { move, model }), `${called} is draining.`),
  });
}

function restart(admin, engine) {
  const { model, called } = engine;
  ask(admin, {
    title: `Restart ${called}`,
    text: "Its answers stand still until it is ready, then go on with the same text: seconds for a small model, minutes for a large one.",
    reason: WHY,
    deed: "Restart",
    danger: true,
    act: ({ reason }) => admin.act((api) => api.post(`${pathOf(engine)}/restart`, { model, reason }), `${called} starts again.`),
  });
}

function remove(admin, engine) {
  const { model, called } = engine;
  ask(admin, {
    title: `Remove ${called}`,
    text: "Its answers go on at other engines. Five seconds later its process ends, if it is ours.",
    deed: "Remove",
    danger: true,
    act: () => admin.act((api) => api.delete(`${pathOf(engine)}?model=${encodeURIComponent(model)}`), `${called} is being removed.`),
  });
}

function add(admin) {
  fill(admin, {
    title: "Add an engine",
    text: html`One of ours is <code>native</code>, others <code>vllm=https://gpu1:8000;weight=2</code> and so on. Who runs
      an engine at an address reads what users write.`,
    deed: "Add",
    fields: [
      {
        name: "engine",
        label: html`As in <code>PARLEY_ENGINES</code>`,
        hint: "native;name=third",
        isNeeded: true,
        max: 1000,
      },
    ],
    act: ({ engine }) => admin.act((api) => api.post("/engines", { engine }), ({ name }) => `${name} is being made ready.`),
  });
}
