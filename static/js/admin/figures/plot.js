/** One chart, drawn by uPlot, which is loaded with the first one. */

import { useEffect, useRef } from "preact/hooks";

import { html } from "../../widgets/html.js";
import { themeChanged } from "../../widgets/theme.js";
import { alone, axisMomentOf, momentOf, valuesOf } from "./charts.js";
import { drawSoon, forget } from "./frames.js";

const UPLOT = "/static/vendor/uplot-1.6.32/uplot.js";
const HEIGHT_PX = 152;
const TIP_GAP_PX = 12;
const SYNC = "parley";
const WHOLE = [0, 1, 2, 3, 4, 5].flatMap((power) => [1, 2, 5].map((digit) => digit * 10 ** power));

let loading = null;

/** @returns {Promise<Function>} uPlot; rejects where it cannot be loaded */
export function loadPlots() {
  loading ??= import(UPLOT).then((module) => module.default);
  loading.catch(() => (loading = null)); // the next one tries again
  return loading;
}

/** @param {{uPlot: Function, chart: import("./charts.js").Chart, stats: object, span: string, label: string}} given */
export function Plot({ uPlot, chart, stats, span, label }) {
  const place = useRef(null);
  const drawing = useRef(null);
  useEffect(() => {
    const key = {};
    drawSoon(key, () => {
      if (place.current) drawing.current = new Drawing(uPlot, place.current, chart, span, dataOf(chart, stats));
    });
    return () => {
      forget(key);
      drawing.current?.end();
      drawing.current = null;
    };
  }, [span]);
  useEffect(() => {
    drawing.current?.take(dataOf(chart, stats));
  }, [stats]);
  return html`<div class="plot" ref=${place} role="img" aria-label=${label}></div>`;
}

const dataOf = (chart, stats) => [stats.at.map((at) => at / 1000), ...chart.lines.map((line) => valuesOf(stats, line))];

class Drawing {
  #plot;
  #place;
  #chart;
  #span;
  #tip;
  #colors = {};
  #font = "";
  #resizes;
  #unfollow;

  constructor(uPlot, place, chart, span, data) {
    this.#place = place;
    this.#chart = chart;
    this.#span = span;
    this.#readColors();
    this.#tip = document.createElement("div");
    this.#tip.className = "tip";
    this.#tip.hidden = true;
    this.#plot = new uPlot(this.#options(), data, place);
    this.#plot.over.append(this.#tip);
    this.#resizes = new ResizeObserver(() => drawSoon(this.#resizes, () => this.#fit()));
    this.#resizes.observe(place);
    this.#unfollow = themeChanged(() => drawSoon(this, () => this.#recolor()));
  }

  take(data) {
    drawSoon(this.#plot, () => this.#plot.setData(data));
  }

  end() {
    for (const key of [this, this.#plot, this.#resizes]) forget(key);
    this.#unfollow();
    this.#resizes.disconnect();
    this.#plot.destroy();
  }

  #fit() {
    const width = this.#place.clientWidth;
    if (width && width !== this.#plot.width) this.#plot.setSize({ width, height: HEIGHT_PX });
  }

  #recolor() {
    this.#readColors();
    this.#plot.redraw(false, true);
  }

  /** A canvas knows no variables of a style sheet. */
  #readColors() {
    const card = this.#place.closest(".chart");
    const ofSwatch = (swatch) => getComputedStyle(swatch).color;
    const { color, borderTopColor, fontFamily } = getComputedStyle(this.#place);
    this.#colors = { lines: [...card.querySelectorAll(".swatch")].map(ofSwatch), ink: color, grid: borderTopColor };
    this.#font = `12px ${fontFamily}`;
  }

  #options() {
    const { lines, say, most, least = 1, isCount } = this.#chart;
    const ink = () => this.#colors.ink;
    const axis = { stroke: ink, font: this.#font, ticks: { show: false } };
    const grid = { stroke: () => this.#colors.grid, width: 1 };
    return {
      width: this.#place.clientWidth,
      height: HEIGHT_PX,
      padding: [8, 8, 0, 0],
      legend: { show: false },
      cursor: { y: false, drag: { x: false, y: false }, sync: { key: SYNC }, points: { size: 7 } },
      scales: { x: { time: true }, y: { range: (_, __, max) => [0, most ?? Math.max(least, (max ?? 0) * 1.08)] } },
      axes: [
        { ...axis, grid: { show: false }, size: 24, space: 72, gap: 4, values: (_, splits) => splits.map((at) => axisMomentOf(at * 1000, this.#span)) },
        { ...axis, grid, size: 56, gap: 8, space: 28, ...(isCount && { incrs: WHOLE }), values: (_, splits) => splits.map((value) => (value === null ? "" : say(value))) },
      ],
      series: [
        {},
        ...lines.map((_, place) => ({
          stroke: () => this.#colors.lines[place],
          width: 1.5,
          points: { show: true, size: 4, width: 0, fill: () => this.#colors.lines[place], filter: (plot, number) => alone(plot.data[number]) },
        })),
      ],
      hooks: { setCursor: [(plot) => this.#showTip(plot)] },
    };
  }

  /** Beside the cursor: the moment, and the value of each line there. */
  #showTip({ cursor: { idx, left }, data, over }) {
    const isOver = idx !== null && idx !== undefined && left >= 0;
    this.#tip.hidden = !isOver;
    if (!isOver) return;
    const { lines, say } = this.#chart;
    const said = lines.map(({ label }, place) => {
      const value = data[place + 1][idx];
      return [label, value === null || value === undefined ? "–" : say(value)];
    });
    this.#tip.replaceChildren(
      row("moment", momentOf(data[0][idx] * 1000, this.#span)),
      ...said.map(([label, value], place) => row(`line s${place + 1}`, label, value)),
    );
    const isRight = left > over.clientWidth / 2;
    this.#tip.style.insetInlineStart = isRight ? "auto" : `${left + TIP_GAP_PX}px`;
    this.#tip.style.insetInlineEnd = isRight ? `${over.clientWidth - left + TIP_GAP_PX}px` : "auto";
  }
}

function row(kind, ...texts) {
  const line = document.createElement("p");
  line.className = kind;
  line.append(
    ...texts.map((text) => {
      const word = document.createElement("span");
      word.textContent = text;
      return word;
    }),
  );
  return line;
}
