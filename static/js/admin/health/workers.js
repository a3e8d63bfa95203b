/** The workers of all hosts, with what each said of itself last. */

import { html } from "../../widgets/html.js";
import { Table } from "../frame/table.js";
import { count, duration, shortReplica } from "../frame/words.js";
import { QUIET_MS } from "./rules.js";
import { everybody } from "./vitals.js";

export function WorkersTable({ workers, now }) {
  return html`<section aria-labelledby="workers">
    <h2 id="workers">Workers</h2>
    <${Table} label="Workers" kind="of-workers" columns=${columnsOf(workers, now)} rows=${everybody(workers)} keyOf=${({ id }) => id} />
  </section>`;
}

function columnsOf(workers, now) {
  return [
    { id: "name", label: "Name", cell: ({ id }) => html`<span class="name" title=${id}>${shortReplica(id)}</span>` },
    { id: "version", label: "Version", cell: ({ version }) => version },
    { id: "state", label: "State", cell: (worker) => html`<${State} worker=${worker} age=${workers.age(worker, now)} />` },
    { id: "engine", label: "Its engine", cell: (worker) => html`<${Engine} engine=${workers.engineOf(worker, now)} />` },
    { id: "answers", label: "Answers", number: true, cell: ({ active_responses: number }) => count(number) },
    { id: "waiting", label: "Waiting", number: true, cell: ({ queued_responses: number }) => count(number ?? 0) },
    { id: "connections", label: "Connections", number: true, cell: ({ connections }) => count(connections) },
    { id: "since", label: "Running for", number: true, cell: ({ started_at: at }) => (at ? duration(now - workers.here(at)) : null) },
    { id: "seen", label: "Last report", number: true, cell: (worker) => `${duration(workers.age(worker, now))} ago` },
  ];
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
