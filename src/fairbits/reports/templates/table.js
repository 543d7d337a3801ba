// The table of languages, and every table as CSV. One list of columns serves the page, the order and the file.

const methodKey = (index) => ["after", "before"][index] ?? `method-${index}`;

/** Returns a column of estimates. */
function estimates(key, title, digits, of) {
  return { key, title, numeric: true, value: (row) => of(row)?.value ?? null, estimate: of, digits };
}

function words(key, title, value) {
  return { key, title, numeric: false, value, digits: null };
}

/** Returns what a width such as "5.2 [4.7, 5.6]", "<2" or ">8" is ordered by. */
function orderOfWidth(text) {
  const match = text.match(/[\d.]+/);
  return match && Number(match[0]) + (text.startsWith(">") ? 0.01 : text.startsWith("<") ? -0.01 : 0);
}

/** Returns a column of numbers that have no interval. */
function numbers(key, title, digits, value) {
  return { key, title, numeric: true, value, digits };
}

function counts(key, title, value) {
  return { key, title, numeric: true, value, digits: 0 };
}

/** Returns an estimate of a ratio from that of a difference relative to 1. */
function ratio(estimate) {
  const { value, low, high } = estimate;
  return { value: 1 + value, low: low === null ? null : 1 + low, high: high === null ? null : 1 + high };
}

const MAIN = ["name", "after", "before", "difference", "verdict", "changed_of_100", "sure_of_100", "equivalent_bits", "perplexity", "divergence_bits_per_byte"];
const ON_PHONE = ["name", "after", "changed_of_100", "perplexity", "divergence_bits_per_byte"];
const phone = matchMedia("(max-width: 46rem)");

/** Returns the columns that are shown: those that matter most, or all; the scale that is chosen has columns already. */
function shownColumns() {
  const listed = phone.matches ? ON_PHONE : MAIN;
  return columns().filter(({ key }) => key !== state.unit && (state.wide || listed.includes(key)));
}

/** Returns the columns that this report can fill. */
function columns() {
  const { title: unit, digits } = UNITS[state.unit];
  const label = !compared || (phone.matches && !state.wide) ? unit : undefined; // one method: no need to name it
  const widths = new Map(content.curves?.languages.map((code, i) => [code, content.curves.critical_width[i]]));
  return [
    words("name", "Language", (row) => row.name),
    ...content.methods.map((method, i) => ({ ...estimates(methodKey(i), `${method.name}, ${unit}`, digits, (row) => damage(row, i)), label })),
    ...(compared
      ? [
          estimates("difference", `difference, ${unit}`, digits, (row) => row.difference?.[state.unit]),
          words("verdict", "significant", (row) => verdict(row) || null),
        ]
      : []),
    estimates("changed_of_100", "changed, of 100 tokens", 1, (row) => row.methods[0].damage.changed_of_100),
    ...(content.languages.some((row) => row.methods[0].sure_of_100)
      ? [estimates("sure_of_100", "changed where the reference is sure, of 100", 1, (row) => row.methods[0].sure_of_100)]
      : []),
    ...(content.languages.some((row) => row.methods[0].equivalent_bits)
      ? [{ ...words("equivalent_bits", "equivalent bits", (row) => row.methods[0].equivalent_bits), order: orderOfWidth }]
      : []),
    estimates("perplexity", "perplexity, ×", 2, (row) => ratio(row.methods[0].relative_perplexity)),
    ...["divergence_bits_per_byte", "loss_bits_per_byte"].map((scale) => estimates(scale, UNITS[scale].title, 4, (row) => row.methods[0].damage[scale])),
    ...(content.curves ? [{ ...words("width", "B*, bits", (row) => widths.get(row.code) ?? ""), order: orderOfWidth }] : []),
    estimates("added_words", "added words, of 100", 1, (row) => row.methods[0].added_words),
    numbers("kl_p50", "KL median, nats", 4, (row) => row.methods[0].kl_p50),
    numbers("kl_p95", "KL 95 %", 3, (row) => row.methods[0].kl_p95),
    numbers("kl_p99", "KL 99 %", 3, (row) => row.methods[0].kl_p99),
    numbers("kl_p99_9", "KL 99.9 %", 3, (row) => row.methods[0].kl_p99_9),
    numbers("margin_p50", "margin median, nats", 3, (row) => row.methods[0].margin_p50),
    numbers("margin_p1", "margin 1 %", 2, (row) => row.methods[0].margin_p1),
    ...(content.languages.some((row) => row.predicted)
      ? [
          estimates("predicted", "predicted, nats per token", 4, (row) => row.predicted),
          ...(content.languages.some((row) => row.trusted === false)
            ? [words("trusted", "prediction", (row) => (row.trusted === false ? "not known to the model: do not trust" : null))]
            : []),
          estimates("loss", "loss of the reference, bits per byte", 2, (row) => row.reference_loss),
          estimates("length", "bytes per token", 2, (row) => row.bytes_per_token),
        ]
      : []),
    counts("documents", "documents", (row) => row.documents),
    counts("tokens", "tokens", (row) => row.tokens),
    words("script", "Script", (row) => scriptName(row.script)),
    words("family", "Family", (row) => row.family),
    words("code", "Code", (row) => row.code),
  ];
}

function element(tag, text, attributes = {}) {
  const node = document.createElement(tag);
  if (text !== undefined) node.textContent = text;
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
}

/** Returns the name of a language as people write it who speak it, and in English. */
function nameCell(row) {
  const cell = element("th", undefined, { scope: "row" });
  cell.append(element("span", row.name));
  if (row.autonym !== row.name) cell.append(" ", element("bdi", row.autonym, { lang: row.bcp47, dir: "auto" }));
  return cell;
}

function cellOf(column, row) {
  if (column.key === "name") return nameCell(row);
  const cell = element("td", undefined, column.numeric ? { class: "number" } : {});
  if (column.key === "verdict" && verdict(row)) {
    cell.append(element("span", `${SIGN[verdict(row)]} ${column.value(row)}`, { class: verdict(row) }));
  } else if (column.estimate && column.estimate(row)) {
    const estimate = column.estimate(row);
    cell.append(fixed(estimate.value, column.digits), element("small", limitsText(estimate, column.digits)));
  } else {
    const value = column.value(row);
    const shown = column.digits ? fixed(value, column.digits) : value?.toLocaleString("en");
    cell.textContent = (typeof value === "number" ? shown : value) ?? "";
  }
  return cell;
}

function headerOf(column) {
  const sorted = column.key === state.sort.key;
  const order = sorted ? (state.sort.descending ? "descending" : "ascending") : "none";
  const header = element("th", undefined, { scope: "col", "aria-sort": order });
  if (column.numeric) header.classList.add("number");
  const button = element("button", undefined, { type: "button", "data-key": column.key });
  // Names such as rtn:group=32 may be broken after the colon, paths after a slash.
  const parts = (column.label ?? column.title).split(/(?<=[:/])/);
  button.append(...parts.flatMap((part, i) => (i ? [element("wbr"), part] : [part])));
  header.append(button);
  return header;
}

/** Orders by a column; a second time, the other way round. Numbers begin with the largest, words with A. */
function sortBy(key) {
  const column = columns().find((candidate) => candidate.key === key);
  const again = state.sort.key === key;
  state.sort = { key, descending: again ? !state.sort.descending : column.numeric };
}

function drawTable() {
  const table = $("table#languages");
  const tableColumns = shownColumns();
  const focused = document.activeElement?.dataset?.key;
  const head = element("tr");
  head.append(...tableColumns.map(headerOf));
  table.tHead.replaceChildren(head);
  const lines = visibleRows().map((row) => {
    const line = element("tr", undefined, { "data-code": row.code });
    line.append(...tableColumns.map((column) => cellOf(column, row)));
    return line;
  });
  table.tBodies[0].replaceChildren(...lines);
  // The header was built anew: give the focus back to the button that was pressed.
  if (focused) table.querySelector(`button[data-key="${focused}"]`)?.focus();
}

/** Returns the languages as a table for a file: estimates with their limits, numbers in full. */
function languageTable() {
  const tableColumns = columns();
  const head = tableColumns.flatMap(({ title, estimate }) => (estimate ? [title, `${title}, low`, `${title}, high`] : [title]));
  const line = (row) =>
    tableColumns.flatMap((column) => {
      if (!column.estimate) return [column.value(row)];
      const estimate = column.estimate(row);
      return estimate ? [estimate.value, estimate.low, estimate.high] : [null, null, null];
    });
  return [[...head, "Autonym"], ...visibleRows().map((row) => [...line(row), row.autonym])];
}

/** Returns languages by blocks (or widths) as a table for a file. */
function gridTable({ languages, values, heads }) {
  return [["Language", "Code", ...heads], ...visibleOf(languages).map(([row, i]) => [row.name, row.code, ...values[i]])];
}

/** Returns the tables that the buttons offer. */
const tables = {
  languages: languageTable,
  kappa: () => [
    ["block", "kappa", "sigma", "largest"],
    ...content.blocks.blocks.map(({ block, kappa, sigma, largest }) => [block, kappa, sigma, largest]),
  ],
  patterns: () => gridTable({ ...content.patterns, values: content.patterns.share, heads: content.patterns.blocks }),
  causes: () => gridTable({ ...content.causes, values: content.causes.damage, heads: content.causes.blocks }),
  experts: () => {
    const { blocks, least, languages, few, empty } = content.experts;
    const heads = blocks.flatMap((block) => [`block ${block}, under ${least}`, `block ${block}, none`]);
    return gridTable({ languages, heads, values: few.map((line, i) => line.flatMap((count, j) => [count, empty[i][j]])) });
  },
  bits: () => [
    ["role", ...content.allocation.blocks],
    ...content.allocation.roles.map((role, i) => [role, ...content.allocation.bits[i]]),
    ...(content.allocation.bytes ? [["bytes", ...content.allocation.bytes]] : []),
  ],
  widths: () =>
    gridTable({
      languages: content.curves.languages,
      heads: content.curves.bits.flatMap((bits) => [`${bits} bits`, `${bits} bits, low`, `${bits} bits, high`]),
      values: content.curves.damage.map((line) => line.flatMap(({ value, low, high }) => [value, low, high])),
    }),
  prediction: () =>
    gridTable({
      languages: content.prediction.languages,
      heads: ["predicted", "predicted, low", "predicted, high", "measured", "measured, low", "measured, high"],
      values: content.prediction.predicted.map((estimate, i) =>
        [estimate, content.prediction.measured[i]].flatMap(({ value, low, high }) => [value, low, high]),
      ),
    }),
};

/** Returns a cell of a CSV file. A spreadsheet would run text that begins with = + - @ as a formula: ' stops it.
 *  In many countries it splits cells at semicolons, so text that holds one is quoted too. */
function csvCell(value) {
  if (value === null || value === undefined) return "";
  if (typeof value === "number") return String(value);
  const text = /^[=+\-@\t\r]/.test(value) ? `'${value}` : value;
  return /[",;\t\n\r]/.test(text) ? `"${text.replace(/"/g, '""')}"` : text;
}

function download(name) {
  const text = tables[name]().map((line) => line.map(csvCell).join(",")).join("\r\n");
  // The mark tells spreadsheets that this is UTF-8.
  const address = URL.createObjectURL(new Blob(["\ufeff" + text + "\r\n"], { type: "text/csv" }));
  const link = element("a", undefined, { href: address, download: `fairbits-${name}.csv` });
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 1000);
  announce(`saved fairbits-${name}.csv`);
}
