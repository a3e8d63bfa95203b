import assert from "node:assert/strict";
import { test } from "node:test";

import { isClosed, nameOf } from "../../../static/js/diagrams/source.js";

for (const [raw, closed] of [
  ["```mermaid\npie\n```", true],
  ["```mermaid\npie\n```\n\n", true],
  ["~~~~mermaid\npie\n~~~~", true],
  ["```mermaid\npie\n`````", true],
  ["   ```mermaid\npie\n   ```", true],
  ["```mermaid\npie", false],
  ["```mermaid\npie\n", false],
  ["```mermaid", false],
  ["````mermaid\npie\n```", false],
  ["```mermaid\npie\n~~~", false],
  ["```mermaid\npie ```", false],
]) {
  test(`${JSON.stringify(raw)} is ${closed ? "closed" : "still open"}`, () => assert.equal(isClosed(raw), closed));
}

for (const [source, name] of [
  ["graph TD\n A --> B", "Flowchart"],
  ["flowchart LR\n A --> B", "Flowchart"],
  ["\n  sequenceDiagram\n A->>B: hi", "Sequence diagram"],
  ["stateDiagram-v2\n [*] --> A", "State diagram"],
  ["pie title Pets\n \"Dogs\" : 3", "Pie chart"],
  ["gantt\n title The plan\n section A", "Gantt chart: The plan"],
  ["---\ntitle: From the front\n---\nerDiagram\n A ||--|| B : x", "Entity-relationship diagram: From the front"],
  ["%%{init: {}}%%\n%% a remark\nflowchart TD\n accTitle: Who asks whom\n A --> B", "Flowchart: Who asks whom"],
  ["something else", "Diagram"],
  ["", "Diagram"],
]) {
  test(`${JSON.stringify(source)} is called ${name}`, () => assert.equal(nameOf(source), name));
}

test("a name has a bound", () => assert.ok(nameOf(`gantt\ntitle ${"x".repeat(5000)}`).length < 250));

test("what a name is made of is read in a time that grows with the text alone", () => {
  for (const piece of ["---\n", "%%", " ", "\n", "title ", "`".repeat(3)]) {
    const text = piece.repeat(20_000 / piece.length);
    const began = process.cpuUsage();
    nameOf(text);
    isClosed(text);
    const { user, system } = process.cpuUsage(began); // microseconds; the clock also counts who else works
    assert.ok(user + system < 1e6, JSON.stringify(piece));
  }
});
