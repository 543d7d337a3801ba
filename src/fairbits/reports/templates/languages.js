// What every language lost: one line per language, one mark per method, the interval around it.

const labelOf = (row) => (row.autonym === row.name ? row.name : `${row.autonym}   ${row.name}`);

/** Returns a language whose names fit beside a figure; in full they stand in the label of every point. */
function fitting(row, narrow) {
  const most = narrow ? 20 : 26;
  const cut = (text) => ([...text].length > most ? `${[...text].slice(0, most - 1).join("")}…` : text);
  return { ...row, name: cut(row.name), autonym: cut(row.autonym) };
}

/** Returns the label of a row: on a phone the two names stand one below the other. */
function languageLabel(language, narrow) {
  const row = fitting(language, narrow);
  const name = plain(row.name);
  if (row.autonym === row.name) return name;
  const autonym = `<span style="color:${colour("muted")}">${plain(isolated(row))}</span>`;
  return narrow ? `${name}<br>${autonym}` : `${autonym}   ${name}`;
}

function languageRoom(all, narrow) {
  const rows = all.map((row) => fitting(row, narrow));
  const texts = narrow ? rows.flatMap((row) => [row.name, row.autonym]) : rows.map(labelOf);
  return Math.min(room(texts), narrow ? 140 : 300) + 18;
}

function languageHover(row, method) {
  const { name, digits } = UNITS[state.unit];
  const significance = verdict(row) && method === 0 ? `<br>significantly ${verdict(row)} than with ${plain(content.methods[1].name)}` : "";
  return (
    `<b>${plain(row.name)}</b>  ${plain(isolated(row))}<br>${plain(content.methods[method].name)}: ` +
    `${withInterval(damage(row, method), digits)} ${name}<br>` +
    `${plain(scriptName(row.script))} script, ${plain(row.family)}${significance}`
  );
}

/** Returns the marks of one method; `lift` keeps the intervals of two methods apart. */
function methodTrace(rows, method, lift) {
  const rowDamage = rows.map((row) => damage(row, method));
  const { color, symbol } = look(method);
  return {
    type: "scatter",
    mode: "markers",
    x: rowDamage.map(({ value }) => value),
    y: rows.map((_, index) => index + lift),
    marker: { color, symbol, size: method === 0 ? 10 : 9, line: { width: method === 0 ? 0 : 1.8, color } },
    error_x: {
      visible: state.intervals,
      symmetric: false,
      array: rowDamage.map((estimate) => endsOf(estimate)[1] - estimate.value),
      arrayminus: rowDamage.map((estimate) => estimate.value - endsOf(estimate)[0]),
      color,
      thickness: 1.2,
      width: 0,
    },
    text: rows.map((row) => languageHover(row, method)),
    hovertemplate: "%{text}<extra></extra>",
    cliponaxis: false,
  };
}

/** Returns the thin lines between the marks of the baseline and of the model. */
function connectors(rows, lifts) {
  return {
    type: "scatter",
    mode: "lines",
    x: rows.flatMap((row) => [damage(row, 1).value, damage(row, 0).value, null]),
    y: rows.flatMap((_, index) => [index + lifts.get(1), index + lifts.get(0), null]),
    line: { color: colour("line"), width: 1.2 },
    hoverinfo: "skip",
  };
}

/** Returns what is significant, in words at the end of each line; nothing where one of the two is not shown. */
function verdictMarks(rows, narrow) {
  if (!state.shown.has(0) || !state.shown.has(1)) return [];
  return rows.flatMap((row, index) => {
    const direction = verdict(row);
    if (!direction) return [];
    return {
      text: narrow ? SIGN[direction] : `${SIGN[direction]} ${direction}`,
      x: 1,
      xref: "paper",
      y: index,
      xanchor: "left",
      xshift: 8,
      showarrow: false,
      font: { size: 12, color: colour(direction === "less" ? "better" : "worse") },
    };
  });
}

function languagesFigure(width) {
  const rows = visibleRows();
  if (!rows.length) return null;
  const narrow = width < NARROW;
  const methods = content.methods.map((_, index) => index).filter((index) => state.shown.has(index));
  const spread = methods.length > 1 ? 0.22 : 0;
  const lifts = new Map(methods.map((method, place) => [method, (place - (methods.length - 1) / 2) * spread]));
  const marks = methods.map((method) => methodTrace(rows, method, lifts.get(method)));
  const joined = lifts.has(0) && lifts.has(1) ? [connectors(rows, lifts)] : [];
  const step = narrow ? 42 : rows.length > 40 ? 23 : 30;
  const stops = rows.map((row, index) =>
    methods.map((method, place) => stop(place + joined.length, index, languageHover(row, method))),
  );
  return {
    traces: [...joined, ...marks],
    stops: methods.length ? stops : [],
    layout: {
      height: rows.length * step + 78,
      margin: { l: languageRoom(rows, narrow), r: compared ? (narrow ? 26 : 62) : 16, t: 66, b: 12 },
      xaxis: axis({
        title: UNITS[state.unit].title,
        rangemode: "tozero",
        showgrid: true,
        zeroline: true,
        zerolinecolor: colour("ink"),
        zerolinewidth: 1,
        side: "top", // read first, also where the list is long
        nticks: narrow ? 5 : 8,
      }),
      yaxis: axis({
        range: [rows.length - 0.4, -0.6],
        showgrid: true,
        tickmode: "array",
        tickvals: rows.map((_, index) => index),
        ticktext: rows.map((row) => languageLabel(row, narrow)),
        tickfont: { size: 13, color: colour("ink") },
      }),
      annotations: verdictMarks(rows, narrow),
    },
  };
}
