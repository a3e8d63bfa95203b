/** The recent past of the whole server: plots, and the same figures as a table. */

import { useEffect } from "preact/hooks";
import { useSignal } from "@preact/signals";

import { html } from "../../widgets/html.js";
import { Chart as Icon } from "../../widgets/icons.js";
import { AsOf, Empty, Read, Segments } from "../frame/parts.js";
import { Reading } from "../frame/reading.js";
import { CHARTS, SPANS, lastOf, momentOf, told, valuesOf } from "./charts.js";
import { Table } from "../frame/table.js";
import { Plot, loadPlots } from "./plot.js";

const EVERY_MS = { "15m": 5000, "24h": 30_000, "7d": 60_000, "30d": 60_000 }; // each is a part of a step

class Figures {
  #asked = null;

  /** @param {import("../frame/console.js").Console} admin */
  constructor(admin) {
    this.admin = admin;
    this.stats = new Reading((api) => api.get("/stats", { range: this.span }));
    this.close = admin.route.place.subscribe(({ tab }) => {
      if (tab !== TAB.id || this.span === this.#asked) return;
      this.#asked = this.span;
      this.stats.everyMs = EVERY_MS[this.span];
      this.stats.renew();
    });
  }

  readings() {
    return [this.stats];
  }

  get span() {
    const { span } = this.admin.route.params;
    return span in EVERY_MS ? span : "15m";
  }

  get isTable() {
    return this.admin.route.params.view === "table";
  }
}

export const TAB = { id: "figures", label: "Figures", icon: Icon, open: (admin) => new Figures(admin), View };

function View({ admin, state }) {
  const pick = (name, first) => (value) => admin.route.set({ [name]: value === first ? null : value });
  return html`<div class="tab">
    <main class="admin-main">
      <div class="filters">
        <${Segments} label="How far back" value=${state.span} choices=${SPANS} onPick=${pick("span", "15m")} />
        <${Segments} label="Shown as" value=${state.isTable ? "table" : "plots"}
          choices=${[["plots", "Plots"], ["table", "Table"]]} onPick=${pick("view", "plots")} />
        <${AsOf} admin=${admin} reading=${state.stats} />
      </div>
      <${Read} reading=${state.stats}>
        ${(stats) =>
          state.isTable
            ? html`<${FiguresTable} stats=${stats} span=${state.span} />`
            : html`<${Plots} key=${state.span} stats=${stats} span=${state.span} />`}
      <//>
    </main>
  </div>`;
}

function Plots({ stats, span }) {
  const uPlot = useSignal(null);
  const hasFailed = useSignal(false);
  useEffect(() => {
    loadPlots().then((loaded) => (uPlot.value = () => loaded), () => (hasFailed.value = true));
  }, []);
  if (hasFailed.value) return html`<${Empty}>The plots could not be loaded. The table has the same figures.<//>`;
  return html`<div class="charts">
    ${CHARTS.map((chart) => html`<${Card} key=${chart.id} chart=${chart} stats=${stats} span=${span} uPlot=${uPlot.value?.()} />`)}
  </div>`;
}

function Card({ chart, stats, span, uPlot }) {
  return html`<section class="chart" aria-labelledby=${`chart-${chart.id}`}>
    <header>
      <h2 id=${`chart-${chart.id}`}>${chart.title}</h2>
      <ul class="lines">
        ${chart.lines.map((line, place) => {
          const last = lastOf(valuesOf(stats, line));
          return html`<li key=${line.series}>
            <span class=${`swatch s${place + 1}`}></span>${line.label} <b>${last === null ? "–" : chart.say(last)}</b>
          </li>`;
        })}
      </ul>
    </header>
    ${uPlot ? html`<${Plot} uPlot=${uPlot} chart=${chart} stats=${stats} span=${span} label=${told(chart, stats)} />` : html`<div class="plot"></div>`}
  </section>`;
}

/** The newest first; moments of which nothing is known are left out. */
function FiguresTable({ stats, span }) {
  const lines = CHARTS.flatMap((chart) => chart.lines.map((line) => ({ chart, line, values: valuesOf(stats, line) })));
  const rows = stats.at
    .map((at, place) => ({ at, place }))
    .filter(({ place }) => lines.some(({ values }) => values[place] !== null))
    .reverse();
  if (!rows.length) return html`<${Empty}>Nothing was measured yet.<//>`;
  const columns = [
    { id: "moment", label: "Time", cell: ({ at }) => momentOf(at, span) },
    ...lines.map(({ chart, line, values }) => ({
      id: line.series,
      label: `${chart.title}, ${line.label}`,
      number: true,
      cell: ({ place }) => (values[place] === null ? null : chart.say(values[place])),
    })),
  ];
  return html`<${Table} label="Figures" kind="of-figures" columns=${columns} rows=${rows} keyOf=${({ at }) => String(at)} />`;
}
