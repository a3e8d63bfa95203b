/** The page's colours and type, under Mermaid's names: a diagram looks like the page around it, light or dark. */

const HUES = ["--accent", "--code-number", "--code-title", "--code-keyword", "--code-string", "--danger"];
const NUM_PARTS = 12; // slices, branches, sections, after which Mermaid begins again
const AXIS_PARTS = ["titleColor", "dataLabelColor"].concat(
  ["x", "y"].flatMap((axis) => ["Label", "Title", "Tick", "Line"].map((part) => `${axis}Axis${part}Color`)),
);
const LINE_SHARE = 0.6; // of a hue in a line; the rest is the ground
const FILL_SHARE = 0.25; // where ink stands on it

/** @param {boolean} dark */
export function look(dark) {
  const page = getComputedStyle(document.documentElement);
  const color = (name) => half(page.getPropertyValue(name), dark);
  const ground = color("--ground-code");
  const ink = color("--ink");
  const hues = HUES.map(color);
  return {
    dark,
    fontFamily: getComputedStyle(document.body).fontFamily,
    themeVariables: {
      background: ground,
      primaryColor: color("--ground-soft"),
      primaryTextColor: ink,
      primaryBorderColor: color("--accent-second"),
      secondaryColor: color("--ground-hover"),
      tertiaryColor: color("--ground-side"),
      clusterBorder: color("--line-strong"),
      edgeLabelBackground: ground,
      lineColor: color("--ink-soft"),
      textColor: ink,
      noteBkgColor: color("--warn-ground"),
      noteTextColor: ink,
      noteBorderColor: color("--warn"),
      pieStrokeColor: ground,
      pieOuterStrokeWidth: "0",
      pieOpacity: "1",
      xyChart: {
        backgroundColor: ground,
        plotColorPalette: hues.map((hue) => mixed(hue, ground, LINE_SHARE)).join(","),
        ...Object.fromEntries(AXIS_PARTS.map((part) => [part, ink])),
      },
      ...numbered(hues, (hue, index) => [
        [`pie${index + 1}`, mixed(hue, ground, FILL_SHARE)],
        [`cScale${index}`, mixed(hue, ground, FILL_SHARE)],
        [`cScaleLabel${index}`, ink],
        [`cScalePeer${index}`, mixed(hue, ground, LINE_SHARE)],
        [`cScaleInv${index}`, mixed(hue, ground, LINE_SHARE)],
        [`git${index}`, mixed(hue, ground, LINE_SHARE)],
        [`gitBranchLabel${index}`, color("--accent-ink")],
      ]),
    },
  };
}

function numbered(hues, entries) {
  const parts = Array.from({ length: NUM_PARTS }, (_, index) => entries(hues[index % hues.length], index));
  return Object.fromEntries(parts.flat());
}

/** The light or the dark half of `light-dark(#aabbcc, #ddeeff)`. */
export const half = (pair, dark) => pair.match(/#[0-9a-f]{6}/gi)?.[dark ? 1 : 0] ?? "#808080";

/** `share` of a colour, and the rest of the ground. */
export function mixed(color, ground, share) {
  const parts = [1, 3, 5].map((place) => {
    const [over, below] = [color, ground].map((hex) => Number.parseInt(hex.slice(place, place + 2), 16));
    return Math.round(below + (over - below) * share);
  });
  return `#${parts.map((part) => part.toString(16).padStart(2, "0")).join("")}`;
}
