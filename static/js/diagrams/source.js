/** What can be said of a diagram by its source alone. */

export const LANGUAGE = "mermaid";
export const LONGEST = 20_000; // characters; what is longer stays as it was written

const CLOSED_FENCE = /^ {0,3}(`{3,}|~{3,})(?![`~])[^]*\n {0,3}\1[`~]*[ \t]*\n*$/;
const FRONT_MATTER = /^\s*---[ \t]*\n[^]*?\n---[ \t]*(?:\n|$)/;
const REMARKS = /^\s*%%.*$/gm;
const TITLE = /^[ \t]*(?:accTitle|title)[ \t]*:?[ \t]+(\S.*)$/m;
const KINDS = [
  [/^(?:graph|flowchart)/, "flowchart"],
  [/^sequenceDiagram/, "sequence diagram"],
  [/^classDiagram/, "class diagram"],
  [/^stateDiagram/, "state diagram"],
  [/^erDiagram/, "entity-relationship diagram"],
  [/^gantt/, "Gantt chart"],
  [/^pie/, "pie chart"],
  [/^mindmap/, "mind map"],
  [/^timeline/, "timeline"],
  [/^journey/, "user journey"],
  [/^gitGraph/, "Git graph"],
  [/^quadrantChart/, "quadrant chart"],
  [/^xychart/, "chart"],
];

/** Whether a fenced block of code, as it stands in Markdown, has its end: one that was cut off has none. */
export const isClosed = (raw) => CLOSED_FENCE.test(raw);

/** What a screen reader calls the picture. */
export function nameOf(source) {
  const body = source.replace(FRONT_MATTER, "").replace(REMARKS, "").trim();
  const kind = KINDS.find(([begins]) => begins.test(body))?.[1] ?? "diagram";
  const title = TITLE.exec(source)?.[1].trim().slice(0, 200);
  const name = kind[0].toUpperCase() + kind.slice(1);
  return title ? `${name}: ${title}` : name;
}
