/** The workers of all hosts, with what each said of itself last. */

import { html } from "../../widgets/html.js";
import { OPERATE, WHY, ask, fill } from "../frame/dialog.js";
import { Table } from "../frame/table.js";
import { count, duration, shortReplica } from "../frame/words.js";
import { QUIET_MS } from "./rules.js";
import { everybody } from "./vitals.js";

const LEVELS = [
  ["debug", "debug: everything"],
  ["info", "info"],
  ["warning", "warning"],
  ["error", "error: only what fails"],
];

export function WorkersTable({ admin, workers, now }) {
  return html`<section aria-labelledby="workers">
    <h2 id="workers">Workers</h2>
    <${Table} label="Workers" kind="of-workers" columns=${columnsOf(admin, workers, now)} rows=${everybody(workers)} keyOf=${({ id }) => id} />
  </section>`;
}

function columnsOf(admin, workers, now) {
  const present = new Set(workers.present);
  return [
    { id: "name", label: "Name", cell: ({ id }) => html`<span class="name" title=${id}>${shortReplica(id)}</span>` },
    { id: "version", label: "Version", cell: ({ version }) => version },
    { id: "state", label: "State", cell: (worker) => html`<${State} worker=${worker} age=${workers.age(worker, now)} />` },
    { id: "engine", label: "Its engine", cell: (worker) => html`<${Engine} engine=${workers.engineOf(worker, now)} />` },
    { id: "answers", label: "Answers", number: true, cell: ({ active_responses: number }) => count(number) },
    { id: "waiting", label: "Waiting", number: true, cell: ({ queued_responses: number }) => count(number ?? 0) },
    { id: "connections", label: "Connections", number: true, cell: ({ connections }) => count(connections) },
    { id: "log", label: "Log", cell: ({ log_level: level }) => level ?? null },
    { id: "since", label: "Running for", number: true, cell: ({ started_at: at }) => (at ? duration(now - workers.here(at)) : null) },
    { id: "seen", label: "Last report", number: true, cell: (worker) => `${duration(workers.age(worker, now))} ago` },
    {
      id: "deeds",
      label: "What can be done",
      isDeed: true,
      kind: "deeds",
      cell: (worker) => present.has(worker) && html`<${Deeds} admin=${admin} worker=${worker} />`,
    },
  ];
}

function Deeds({ admin, worker }) {
  const { id, draining } = worker;
  const name = shortReplica(id);
  const button = (word, deed, label = `${word} ${name}`) =>
    html`<button type="button" class="plain small" aria-label=${label} onClick=${() => deed(admin, worker)}>${word} …</button>`;
  return html`${admin.may(OPERATE) && button("Log level", setLogLevel, `Log level of ${name}`)}
    ${!draining && button("Drain", drain)}
    ${admin.may(OPERATE) && button("Restart", restart)}`;
}

const pathOf = ({ id }) => `/replicas/${encodeURIComponent(id)}`;

function setLogLevel(admin, worker) {
  fill(admin, {
    title: `What ${shortReplica(worker.id)} logs`,
    text: "It holds until the worker ends.",
    deed: "Set",
    fields: [
      { name: "level", label: "Level", kind: "choice", value: worker.log_level ?? "info", choices: LEVELS },
      { name: "reason", max: 200, ...WHY },
    ],
    act: (values) => admin.act((api) => api.post(`${pathOf(worker)}/log-level`, values), ({ level }) => `It logs ${level} from now on.`),
  });
}

function drain(admin, worker) {
  ask(admin, {
    title: `Drain ${shortReplica(worker.id)}`,
    text: "It takes nothing new, lets its answers finish for a while, hands over the rest, and restarts.",
    reason: WHY,
    deed: "Drain",
    act: (why) => admin.act((api) => api.post(`${pathOf(worker)}/drain`, why), "It is draining."),
  });
}

function restart(admin, worker) {
  ask(admin, {
    title: `Restart ${shortReplica(worker.id)}`,
    text: "Its answers go on at another worker at once, or end incomplete where there is none. Its connections are closed, and come back.",
    reason: WHY,
    deed: "Restart",
    danger: true,
    act: (why) => admin.act((api) => api.post(`${pathOf(worker)}/restart`, why), "It restarts."),
  });
}

const ENGINES = { ok: ["good", "ready"], stalled: ["bad", "stalled"], silent: ["bad", "silent"], unavailable: ["bad", "away"] };

function Engine({ engine }) {
  const [tone, word] = ENGINES[engine] ?? ["idle", engine];
  return html`<span class=${`state ${tone}`}>${word}</span>`;
}

function State({ worker, age }) {
  if (age > QUIET_MS) return html`<span class="state bad">silent</span>`;
  return worker.draining ? html`<span class="state warn">draining</span>` : html`<span class="state good">running</span>`;
}
