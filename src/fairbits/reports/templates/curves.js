// Damage against width, and predicted against measured damage.

function widthHover(row, bits, estimate) {
  const unit = UNITS[content.curves.unit]?.name ?? plain(content.curves.unit);
  return `<b>${plain(row.name)}</b>  ${plain(isolated(row))}<br>${bits} bits: ${withInterval(estimate)} ${unit}`;
}

/** Returns which of the shown languages lose most and least where the weights are coarsest. */
function extremes(visible) {
  const at = ([, i]) => content.curves.damage[i][0].value;
  const ordered = [...visible].sort((a, b) => at(b) - at(a));
  return new Map(ordered.length > 1 ? [[ordered[0][1], "after"], [ordered.at(-1)[1], "third"]] : ordered.map(([, i]) => [i, "after"]));
}

/** Returns the ends of the log axis, and the place of what it cannot show: all that is 0 or below stands there. */
function logRange(visible) {
  const values = visible.flatMap(([, i]) => content.curves.damage[i].map(({ value }) => value));
  const shown = [...values, content.curves.threshold].filter((value) => value > 0);
  const [least, most] = shown.length ? [Math.min(...shown), Math.max(...shown)] : [0.1, 1];
  const below = values.some((value) => value <= 0);
  const foot = below ? least / 2 : null;
  return { foot, least, most, bottom: below ? foot / 1.3 : least / 1.3, top: most * 1.4 };
}

/** Returns the line of one language; a point that a log axis cannot show is open, and stands at its foot. */
function widthTrace([row, index], { tint, foot }) {
  const { bits, damage: all } = content.curves;
  const shape = tint === "third" ? "square" : "circle";
  const size = tint ? 7 : 4;
  const either = (filled, open) => all[index].map(({ value }) => (value > 0 ? filled : open));
  return {
    type: "scatter",
    mode: "lines+markers",
    x: bits,
    y: all[index].map(({ value }) => (value > 0 ? value : foot)),
    line: { color: colour(tint ?? "line"), width: tint ? 2.4 : 1.2 },
    marker: {
      color: colour(tint ?? "line"),
      size: either(size, size + 2),
      symbol: either(shape, `${shape}-open`),
      line: { width: either(0, 1.4) }, // of points of several sizes, plotly would draw all with an outline
      opacity: 1,
    },
    text: all[index].map((estimate, i) => widthHover(row, bits[i], estimate)),
    hovertemplate: "%{text}<extra></extra>",
  };
}

/** Returns names at the left ends of the worst and the best line. */
function endLabels(visible, marked, foot) {
  return visible.flatMap(([row, i]) => {
    const { value } = content.curves.damage[i][0];
    if (!marked.has(i)) return [];
    return {
      text: plain(row.name), x: content.curves.bits[0], y: Math.log10(value > 0 ? value : foot), xanchor: "right", xshift: -9, showarrow: false,
      font: { size: 12.5, color: colour(marked.get(i)) },
    };
  });
}

/** Returns the range of widths, with room before the first for names, in pixels of all that there are. */
function widthRange(names, all) {
  const { bits } = content.curves;
  const span = (bits.at(-1) - bits[0] || 1) / Math.max(0.3, 1 - (names + 14) / all);
  return [bits[0] - (span * names) / all, bits.at(-1) + (span * 14) / all];
}

function widthsFigure(width = $("#fig-widths .plot").clientWidth) {
  const { bits, threshold, unit } = content.curves;
  const visible = visibleOf(content.curves.languages);
  if (!visible.length) return null;
  const marked = extremes(visible);
  // The marked lines are drawn last, on top.
  const lines = [...visible].sort((a, b) => marked.has(a[1]) - marked.has(b[1]));
  const names = visible.filter(([, i]) => marked.has(i)).map(([row]) => row.name);
  const place = (entry) => lines.indexOf(entry);
  const { foot, least, most, bottom, top } = logRange(visible);
  const ticks = logTicks(least, most);
  return {
    traces: lines.map((entry) => widthTrace(entry, { tint: marked.get(entry[1]), foot })),
    stops: visible.map((entry) =>
      bits.map((width, j) => stop(place(entry), j, widthHover(entry[0], width, content.curves.damage[entry[1]][j]))),
    ),
    layout: {
      height: 420,
      margin: { l: 74, r: 12, t: 16, b: 56 },
      xaxis: axis({ title: "bits per weight", tickvals: bits, range: widthRange(room(names) + 26, width - 86) }),
      yaxis: axis({
        title: `${UNITS[unit]?.title ?? plain(unit)}, log scale`, type: "log", showgrid: true,
        range: [Math.log10(bottom), Math.log10(top)],
        tickvals: foot ? [foot, ...ticks] : ticks,
        ticktext: [...(foot ? ["≤ 0"] : []), ...ticks.map(short)],
      }),
      shapes: threshold > 0
        ? [{ type: "line", xref: "paper", x0: 0, x1: 1, y0: threshold, y1: threshold, line: { color: colour("before"), width: 1.4, dash: "dash" } }]
        : [],
      annotations: [
        ...endLabels(visible, marked, foot),
        ...(threshold > 0
          ? [
              {
                text: `threshold ${short(threshold)}`, xref: "paper", x: 1, xanchor: "right", y: Math.log10(threshold),
                yanchor: "bottom", showarrow: false, font: { size: 12, color: colour("before") },
              },
            ]
          : []),
      ],
    },
  };
}

/** Lifts one line out of the others; none where there is no such line. */
function lift(plot, curve) {
  if (plot.lifted === curve) return;
  plot.lifted = curve;
  const base = widthsFigure().traces;
  const pick = (part, property, lifted) => base.map((trace, i) => (i === curve ? lifted : trace[part][property]));
  Plotly.restyle(plot, {
    "line.color": pick("line", "color", colour("ink")),
    "line.width": pick("line", "width", 3),
    "marker.color": pick("marker", "color", colour("ink")),
  });
}

/** Lifts the line under the pointer. */
function highlightLines(plot) {
  plot.on("plotly_hover", ({ points }) => lift(plot, points[0].curveNumber));
  plot.on("plotly_unhover", () => lift(plot, null));
  plot.onstep = (curve) => lift(plot, curve);
}

function predictionHover(row, i) {
  const { predicted, measured, trusted } = content.prediction;
  return (
    `<b>${plain(row.name)}</b>  ${plain(isolated(row))}<br>predicted ${withInterval(predicted[i])}<br>` +
    `measured ${withInterval(measured[i])}<br>nats per token` +
    (trusted[i] ? "" : "<br>not known to the model: do not trust the prediction")
  );
}

function errorBars(values) {
  return {
    type: "data", symmetric: false, array: values.map((estimate) => endsOf(estimate)[1] - estimate.value),
    arrayminus: values.map((estimate) => estimate.value - endsOf(estimate)[0]),
    color: colour("line"), thickness: 1, width: 0, visible: state.intervals,
  };
}

/** Returns where each label stands: beside its point, at the first corner that no point and no earlier label has taken. */
function corners(points, texts) {
  const taken = points.map(({ x, y }) => ({ x, y, w: 8 }));
  const clash = (a) => taken.some((b) => Math.abs(a.x - b.x) < (a.w + b.w) / 2 && Math.abs(a.y - b.y) < 13);
  return points.map(({ x, y }, index) => {
    const w = room([texts[index]], 12) + 4;
    const at = (name) => ({ name, w, x: x + (name.endsWith("right") ? 1 : -1) * (w / 2 + 5), y: y + (name.startsWith("top") ? -9 : 9) });
    const options = ["top right", "bottom right", "top left", "bottom left"].map(at);
    const chosen = options.find((option) => !clash(option)) ?? options[0];
    taken.push(chosen);
    return chosen.name;
  });
}

function predictionFigure(width) {
  const { languages, predicted, measured, trusted } = content.prediction;
  const visible = visibleOf(languages).sort((a, b) => predicted[a[1]].value - predicted[b[1]].value);
  if (!visible.length) return null;
  const narrow = width < NARROW;
  const [xs, ys] = [visible.map(([, i]) => predicted[i]), visible.map(([, i]) => measured[i])];
  const ends = [...xs, ...ys].flatMap(endsOf);
  const line = [Math.min(0, ...ends), Math.max(...ends)];
  const spread = (all) => [Math.min(0, ...all.flatMap(endsOf)), Math.max(...all.flatMap(endsOf))];
  const names = visible.map(([row]) => (narrow || visible.length > 12 ? row.bcp47 || row.code : row.name));
  const padded = ([low, high]) => [low - 0.04 * (high - low), high + 0.06 * (high - low)];
  const height = narrow ? 380 : 480;
  const [xRange, yRange] = [padded(spread(xs)), padded(spread(ys))];
  const pixel = (value, [low, high], size) => (size * (value - low)) / (high - low);
  const places = visible.map((_, i) => ({ x: pixel(xs[i].value, xRange, width - 82), y: -pixel(ys[i].value, yRange, height - 72) }));
  return {
    traces: [
      { type: "scatter", mode: "lines", x: line, y: line, line: { color: colour("muted"), width: 1, dash: "dot" }, hoverinfo: "skip" },
      {
        type: "scatter",
        mode: visible.length <= 40 ? "markers+text" : "markers",
        x: xs.map(({ value }) => value),
        y: ys.map(({ value }) => value),
        error_x: errorBars(xs),
        error_y: errorBars(ys),
        marker: { color: colour("after"), size: 9, symbol: visible.map(([, i]) => (trusted[i] ? "circle" : "circle-open")) },
        text: names.map(plain),
        textposition: corners(places, names),
        textfont: { size: 12, color: colour("ink") },
        customdata: visible.map(([row, i]) => predictionHover(row, i)),
        hovertemplate: "%{customdata}<extra></extra>",
      },
    ],
    stops: [visible.map(([row, i], index) => stop(1, index, predictionHover(row, i)))],
    layout: {
      height,
      margin: { l: 66, r: 16, t: 16, b: 56 },
      xaxis: axis({ title: "predicted, nats per token", showgrid: true, range: xRange, nticks: 6 }),
      yaxis: axis({ title: "measured, nats per token", showgrid: true, range: yRange, nticks: 6 }),
    },
  };
}
