// Maps of blocks by languages: how much a language uses a block, how much of its damage arises there, and which
// experts get little of its text.

const MAP_ROW = 24;

function meanOf(lines) {
  return lines[0].map((_, block) => lines.reduce((sum, line) => sum + line[block], 0) / lines.length);
}

/** Returns a colour scale from the theme: two-sided around nothing, or from nothing up. */
function scale(twoSided) {
  const names = twoSided ? ["below-2", "below-1", "scale-0", "above-1", "above-2"] : ["scale-0", "scale-1", "scale-2"];
  return names.map((name, index) => [index / (names.length - 1), colour(name)]);
}

/** Returns a map. `values` is one line per language; `words` says a value, given its places in the figure's data; `twoSided` puts nothing in the middle.
 *  The scale of colours ends at `floor` or above. */
function mapFigure({ width, visible, blocks, values, words, twoSided, title, suffix = "", floor = 1e-12 }) {
  const narrow = width < NARROW;
  const rows = visible.map(([row]) => row);
  const hover = rows.map((row, i) =>
    blocks.map((block, j) => `<b>${plain(row.name)}</b>  ${plain(isolated(row))}<br>block ${block}: ${words(values[i][j], visible[i][1], j)}`),
  );
  const most = Math.max(floor, ...values.flat().map(Math.abs));
  const labels = rows.map((row) => (narrow ? plain(fitting(row, true).name) : languageLabel(row, false)));
  return {
    traces: [
      {
        type: "heatmap",
        x: blocks,
        y: rows.map((_, index) => index),
        z: values,
        zmin: twoSided ? -most : 0,
        zmax: most,
        colorscale: scale(twoSided),
        xgap: blocks.length > 40 || narrow ? 0.5 : 1.5,
        ygap: 1.5,
        customdata: hover,
        hovertemplate: "%{customdata}<extra></extra>",
        colorbar: { ...flatBar(narrow, title), ticksuffix: suffix },
      },
    ],
    stops: hover.map((line, i) => line.map((text, j) => stop(0, [blocks[j], i], text))),
    layout: {
      height: rows.length * MAP_ROW + 148,
      margin: { l: narrow ? room(rows.map((row) => fitting(row, true).name)) + 18 : languageRoom(rows, false), r: 12, t: 86, b: 62 },
      xaxis: axis({ tickvals: blockTicks(blocks, width - 120) }),
      // A note, not the title of the axis: with a scale of colours, plotly pushes that into the numbers.
      annotations: [
        {
          text: "block", xref: "paper", x: 0.5, yref: "paper", y: 0, yshift: -30, yanchor: "top", showarrow: false,
          font: { size: 12.5, color: colour("muted") },
        },
      ],
      yaxis: axis({
        range: [rows.length - 0.5, -0.5],
        tickmode: "array",
        tickvals: rows.map((_, index) => index),
        ticktext: labels,
        tickfont: { size: 13, color: colour("ink") },
      }),
    },
  };
}

function patternsFigure(width) {
  const { blocks, languages, share } = content.patterns;
  const visible = visibleOf(languages);
  if (!visible.length) return null;
  // The mean is that of all languages of the report, whichever of them are shown.
  const mean = meanOf(share);
  const values = visible.map(([, i]) => share[i].map((fraction, j) => 100 * (state.relative ? fraction / mean[j] - 1 : fraction)));
  return mapFigure({
    width, visible, blocks, values, twoSided: state.relative, suffix: " %",
    title: state.relative ? "relative to the mean of languages" : "share of the activation",
    words: (value) =>
      state.relative ? `${fixed(Math.abs(value), 1)} % ${value < 0 ? "below" : "above"} the mean of languages` : `${fixed(value, 2)} % of the activation`,
  });
}

function causesFigure(width) {
  const { blocks, languages, damage: parts } = content.causes;
  const visible = visibleOf(languages);
  if (!visible.length) return null;
  const total = (line) => line.reduce((sum, part) => sum + part, 0) || 1;
  const values = visible.map(([, i]) => parts[i].map((part) => (state.absolute ? part : (100 * part) / total(parts[i]))));
  return mapFigure({
    width, visible, blocks, values, twoSided: values.flat().some((value) => value < 0), suffix: state.absolute ? "" : " %",
    title: state.absolute ? "predicted damage, nats per token" : "share of its predicted damage",
    words: (value) => (state.absolute ? `${fixed(value, 5)} nats per token` : `${fixed(value, 1)} % of its predicted damage`),
  });
}

function expertsFigure(width) {
  const { blocks, languages, experts, few, empty, mean, least } = content.experts;
  const visible = visibleOf(languages);
  if (!visible.length) return null;
  const counts = state.empty ? empty : few;
  const values = visible.map(([, i]) => counts[i].map((count, j) => (100 * count) / experts[j]));
  return mapFigure({
    width, visible, blocks, values, twoSided: false, suffix: " %", floor: 1,
    title: state.empty ? "experts without any text" : `experts with fewer than ${least} positions`,
    words: (_, i, j) =>
      `${few[i][j]} of ${experts[j]} experts below ${least} positions,<br>${empty[i][j]} without text; mean ${short(mean[i][j])} positions`,
  });
}
