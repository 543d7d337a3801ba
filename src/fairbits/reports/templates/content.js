"use strict";
// What the report says, what the reader asked to see of it, and how numbers and names are written.

const content = JSON.parse(document.getElementById("content").textContent);
const rowOf = new Map(content.languages.map((row) => [row.code, row]));
const compared = content.methods.length > 1;

const UNITS = {
  changed_of_100: { name: "of 100 tokens", title: "changed, of 100 tokens", digits: 1 },
  divergence_bits_per_byte: { name: "bits per byte", title: "divergence, bits per byte", digits: 4 },
  divergence_nats_per_token: { name: "nats per token", title: "divergence, nats per token", digits: 4 },
  divergence_nats_per_section: { name: "nats per section", title: "divergence, nats per section", digits: 2 },
  loss_bits_per_byte: { name: "bits per byte", title: "added loss, bits per byte", digits: 4 },
  loss_nats_per_token: { name: "nats per token", title: "added loss, nats per token", digits: 4 },
  loss_nats_per_section: { name: "nats per section", title: "added loss, nats per section", digits: 2 },
};

const state = {
  unit: content.units[0],
  sort: { key: "after", descending: true },
  search: "",
  script: "",
  family: "",
  intervals: true,
  wide: false,
  // The first two methods are the story; the others are there when asked for.
  shown: new Set(content.methods.map((_, index) => index).filter((index) => index < 2)),
  relative: true,
  absolute: true,
  empty: false,
};

const $ = (selector) => document.querySelector(selector);

/** Returns a number with fixed digits and a true minus. */
function fixed(value, digits = 4) {
  return value === null || value === undefined ? "" : value.toFixed(digits).replace("-", "−");
}

/** Returns a number with three significant digits, for axes and remarks. */
function short(value) {
  return Number(value.toPrecision(3)).toString().replace("-", "−");
}

/** Returns "low to high"; some estimates have no interval. */
function limitsText({ low, high }, digits = 4) {
  return low === null ? "no interval" : `${fixed(low, digits)} to ${fixed(high, digits)}`;
}

/** Returns "value (low to high)". */
function withInterval(estimate, digits = 4) {
  return `${fixed(estimate.value, digits)} (${limitsText(estimate, digits)})`;
}

/** Returns the ends of the line that shows an interval; a point where there is none. */
function endsOf({ value, low, high }) {
  return low === null ? [value, value] : [low, high];
}

/** Returns a number of bytes for people. */
function bytes(count) {
  const [unit, size] = count >= 1e9 ? ["GB", 1e9] : count >= 1e6 ? ["MB", 1e6] : ["kB", 1e3];
  return `${short(count / size)} ${unit}`;
}

/** Returns text that plotly shows as it is: it would read < and & as markup. */
function plain(text) {
  return String(text).replace(/&/g, "&amp;").replace(/</g, "&lt;").replace(/>/g, "&gt;");
}

/** Returns an autonym that keeps its direction to itself, so that the words around it stay where they are. */
function isolated(row) {
  return (row.right_to_left ? "\u2067" : "\u2068") + row.autonym + "\u2069";
}

// By themselves the browser calls them "Simplified" and "Traditional".
const HAN = { Hans: "Simplified Han", Hant: "Traditional Han" };

const scripts = new Intl.DisplayNames(["en"], { type: "script" });

/** Returns the English name of a script, where the browser knows it. */
function scriptName(code) {
  if (HAN[code]) return HAN[code];
  try {
    return scripts.of(code);
  } catch {
    return code; // not a code of four letters
  }
}

function damage(row, method) {
  return row.methods[method].damage[state.unit];
}

/** Returns "less", "more" or "": what is significant after Holm's correction, on the scale that is shown. */
function verdict(row) {
  return row.verdict?.[state.unit] ?? "";
}

const SIGN = { less: "▼", more: "▲" };

function matches(row) {
  const words = [row.name, row.autonym, row.code, row.bcp47, row.script, scriptName(row.script), row.family];
  const text = words.join(" ").normalize("NFC").toLowerCase();
  const asked = state.search.normalize("NFC").toLowerCase().split(/\s+/);
  return (
    asked.every((word) => text.includes(word)) &&
    (!state.script || row.script === state.script) &&
    (!state.family || row.family === state.family)
  );
}

/** Returns the languages that the reader asked for, in the order asked for; those without a value come last. */
function visibleRows() {
  const column = columns().find(({ key }) => key === state.sort.key);
  const sign = state.sort.descending ? -1 : 1;
  const rank = column.order ?? ((value) => value);
  const order = (a, b) => {
    const [left, right] = [rank(column.value(a)), rank(column.value(b))];
    if (left === null || right === null) return (left === null) - (right === null);
    return sign * (typeof left === "string" ? left.localeCompare(right, "en") : left - right);
  };
  return content.languages.filter(matches).sort(order);
}

/** Returns the visible languages of a figure, as [row, index within the figure]. */
function visibleOf(codes) {
  const place = new Map(codes.map((code, index) => [code, index]));
  return visibleRows().filter((row) => place.has(row.code)).map((row) => [row, place.get(row.code)]);
}

function announce(text) {
  $("#status").textContent = text;
}
