// A slider for each axis: its stops come from the server, with why one is refused.

import { AXES, OF_EXPERTS } from "./state.js";
import { at, element, list } from "./draw.js";

const shown = (value) => (value == null ? "usual" : String(value).replace("interleaved_", "int. "));
const rows = {};

export function makeSliders(moved, pinned) {
  for (const [axis, , name] of AXES) {
    const row = element("div", null, { className: "axis", id: `axis-${axis}` });
    const range = element("input", null, { type: "range", id: axis, min: 0, max: 0, step: 1 });
    const output = element("output", "", { htmlFor: axis });
    const dots = element("div", null, { className: "dots" });
    const label = element("label", name, { htmlFor: axis, className: "name" });
    row.append(label, range, output, pinOf(axis, name, pinned), dots);
    range.addEventListener("input", () => {
      const stop = rows[axis].stops[Number(range.value)];
      show(axis, stop);
      moved(axis, stop.value);
    });
    rows[axis] = { row, range, output, dots, stops: [] };
    at("sliders").append(row);
  }
}

function pinOf(axis, name, pinned) {
  const label = element("label", null, { className: "pin" });
  if (axis === "schedule") return label;
  const box = element("input", null, { type: "checkbox", id: `pin-${axis}` });
  box.setAttribute("aria-label", `Pin ${name}`);
  box.addEventListener("change", () => pinned(axis, box.checked));
  label.append(box, "pin");
  return label;
}

function show(axis, stop) {
  const { row, range, output } = rows[axis];
  output.textContent = shown(stop.value);
  range.setAttribute("aria-valuetext", stop.why ? `${shown(stop.value)}, refused: ${stop.why}` : shown(stop.value));
  row.classList.toggle("no", Boolean(stop.why));
  row.title = stop.why || "";
}

export function setSliders(stops, choice, pinned, isMoe) {
  for (const [axis] of AXES) {
    const { row, range, dots } = rows[axis];
    rows[axis].stops = stops[axis];
    const value = choice[axis] ?? null;
    const index = Math.max(0, stops[axis].findIndex((stop) => stop.value === value));
    range.max = stops[axis].length - 1;
    range.value = index;
    range.disabled = stops[axis].length < 2;
    show(axis, stops[axis][index]);
    dots.replaceChildren(...stops[axis].map((stop) => element("i", null, { className: stop.why ? "no" : "" })));
    row.hidden = OF_EXPERTS.includes(axis) && !isMoe;
    const box = at(`pin-${axis}`);
    if (box) box.checked = pinned.includes(axis);
  }
  list("whys", AXES.flatMap(([axis, , name]) => rows[axis].row.hidden ? [] :
    stops[axis].filter((stop) => stop.why).map((stop) => `${name} ${shown(stop.value)}: ${stop.why}`)));
}
