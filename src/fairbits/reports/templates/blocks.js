// The weights: κ of every block, and the bits and bytes that each was given.

const LOG_FROM = 20; // Beyond this spread, small blocks would vanish on a linear axis.

/** Returns which rules call a block an outlier, in words. */
function outlierRules(block) {
  const { research_notes, robust } = content.blocks.outliers;
  const rules = [
    research_notes.blocks.includes(block) ? "rule of the notes" : "",
    robust.blocks.includes(block) ? "robust rule" : "",
  ];
  return rules.filter(Boolean).join(", ");
}

function kappaHover({ block, kappa, sigma, largest }) {
  const rules = outlierRules(block);
  return (
    `<b>block ${block}</b><br>κ ${short(kappa)}<br>σ ${short(sigma)}, largest weight ${short(largest)}` +
    (rules ? `<br>outlier by the ${rules}` : "")
  );
}

/** Returns the lines of the thresholds that fall within the figure; far above it, they are named below it. */
function thresholds([bottom, top], log) {
  const { research_notes, robust } = content.blocks.outliers;
  const rules = [["rule of the notes", research_notes.threshold], ["robust rule", robust.threshold]];
  return rules
    .filter(([, at]) => at !== null && at >= bottom && at <= top)
    .map(([name, at]) => ({ name, at, place: log ? Math.log10(at) : at }));
}

/** Returns a dot on a stem for each block; those that stand out have another colour and another shape. */
function kappaTraces(blocks, foot) {
  const tint = blocks.map(({ block }) => colour(outlierRules(block) ? "before" : "after"));
  return [
    {
      type: "scatter",
      mode: "lines",
      x: blocks.flatMap(({ block }) => [block, block, null]),
      y: blocks.flatMap(({ kappa }) => [foot, kappa, null]),
      line: { color: colour("line"), width: 1.4 },
      hoverinfo: "skip",
    },
    {
      type: "scatter",
      mode: "markers",
      x: blocks.map(({ block }) => block),
      y: blocks.map(({ kappa }) => kappa),
      marker: { color: tint, size: blocks.length > 40 ? 8 : 11, symbol: blocks.map(({ block }) => (outlierRules(block) ? "diamond" : "circle")) },
      text: blocks.map(kappaHover),
      hovertemplate: "%{text}<extra></extra>",
      cliponaxis: false,
    },
  ];
}

/** Returns names for thresholds and outliers; of many outliers the shapes alone must do. */
function kappaLabels(blocks, lines, log) {
  const outliers = blocks.filter(({ block }) => outlierRules(block));
  const over = { showarrow: false, yanchor: "bottom" };
  return [
    ...lines.map(({ name, place }) => ({
      ...over, text: name, xref: "paper", x: 1, xanchor: "right", y: place, font: { size: 11.5, color: colour("muted") },
    })),
    ...(outliers.length > 12 ? [] : outliers).map(({ block, kappa }) => ({
      ...over, text: `block ${block}`, x: block, y: log ? Math.log10(kappa) : kappa, yshift: 9,
      font: { size: 12, color: colour("ink") },
    })),
  ];
}

/** Returns 1, 2 and 5 times the powers of ten that lie between two numbers. */
function logTicks(least, most) {
  const powers = Array.from({ length: 40 }, (_, i) => 10 ** (i - 20));
  const ticks = powers.flatMap((power) => [power, 2 * power, 5 * power]).filter((tick) => tick >= least && tick <= most);
  return ticks.length > 9 ? ticks.filter((tick) => Number.isInteger(Math.log10(tick))) : ticks;
}

/** Returns the ends of a linear axis that holds some values and 0, with room for names above them. */
function withZero(least, most) {
  const [bottom, top] = [Math.min(0, least * 1.1), Math.max(0, most * 1.2)];
  return bottom === top ? [0, 1] : [bottom, top];
}

function kappaFigure(width) {
  const blocks = content.blocks.blocks;
  const values = blocks.map(({ kappa }) => kappa);
  const [least, most] = [Math.min(...values), Math.max(...values)];
  const log = least > 0 && most / least > LOG_FROM;
  const [bottom, top] = log ? [least / 1.8, most * 2] : withZero(least, most);
  const lines = thresholds([bottom, top], log);
  return {
    traces: kappaTraces(blocks, log ? bottom : 0),
    stops: [blocks.map((block, index) => stop(1, index, kappaHover(block)))],
    layout: {
      height: 300,
      margin: { l: 56, r: 12, t: 16, b: 56 },
      xaxis: axis({ title: "block", tickvals: blockTicks(blocks.map(({ block }) => block), width) }),
      yaxis: axis({
        title: log ? "κ, log scale" : "κ",
        type: log ? "log" : "linear",
        range: log ? [Math.log10(bottom), Math.log10(top)] : [bottom, top],
        showgrid: true,
        zeroline: !log,
        zerolinecolor: colour("ink"),
        ...(log ? { tickvals: logTicks(bottom, top) } : { nticks: 5 }),
      }),
      shapes: lines.map(({ at }) => ({
        type: "line", xref: "paper", x0: 0, x1: 1, y0: at, y1: at, line: { color: colour("muted"), width: 1, dash: "dot" },
      })),
      annotations: kappaLabels(blocks, lines, log),
    },
  };
}

function bitsHover(role, block, bits) {
  return `<b>block ${block}</b>, ${plain(role)}<br>${bits === null ? "not quantized" : `${bits} bits`}`;
}

/** Returns whether there is room for a number in every cell; where there is none, a scale must do. */
const numbersFit = (width) => content.allocation.blocks.length * 18 < width - 140;

/** Returns the heat map of bits: light for few, dark for many, grey for what was kept. */
function bitsTraces(width) {
  const { blocks, roles, bits } = content.allocation;
  const bitWidths = bits.flat().filter((value) => value !== null);
  const shared = {
    type: "heatmap", x: blocks, y: roles.map((_, index) => index), xgap: 2, ygap: 2, showscale: false,
    customdata: bits.map((line, i) => line.map((value, j) => bitsHover(roles[i], blocks[j], value))),
    hovertemplate: "%{customdata}<extra></extra>", hoverongaps: false,
  };
  const written = numbersFit(width);
  const ticks = [...new Set(bitWidths)].sort((a, b) => a - b);
  const kept = bits.map((line) => line.map((value) => (value === null ? 0 : null)));
  return [
    {
      ...shared, z: bits, zmin: Math.min(1, ...bitWidths), zmax: Math.max(8, ...bitWidths),
      colorscale: [[0, colour("scale-0")], [1, colour("scale-2")]],
      text: bits.map((line) => line.map((value) => value ?? "")), texttemplate: written ? "%{text}" : "",
      showscale: !written && bitWidths.length > 0,
      colorbar: { ...flatBar(width < NARROW, "bits"), tickvals: ticks },
    },
    { ...shared, z: kept, colorscale: [[0, colour("line")], [1, colour("line")]] },
  ];
}

function bitsFigure(width) {
  const { blocks, roles, bits, bytes: sizes } = content.allocation;
  const split = sizes ? 90 : 0;
  const top = numbersFit(width) ? 8 : 60;
  const height = roles.length * 30 + split + 70 + top;
  const inner = height - 52 - top;
  const bars = sizes && {
    type: "bar", x: blocks, y: sizes, yaxis: "y2", width: 0.62, marker: { color: colour("line") },
    text: sizes.map((size, i) => `<b>block ${blocks[i]}</b><br>${bytes(size)}`), textposition: "none",
    hovertemplate: "%{text}<extra></extra>",
  };
  const at = (i, j) => (bits[i][j] === null ? 1 : 0);
  return {
    traces: [...bitsTraces(width), ...(bars ? [bars] : [])],
    stops: roles.map((role, i) => blocks.map((block, j) => stop(at(i, j), [block, i], bitsHover(role, block, bits[i][j])))),
    layout: {
      height,
      margin: { l: room(roles) + 20, r: 12, t: top, b: 52 },
      xaxis: axis({ title: "block", tickvals: blockTicks(blocks, width - 120), anchor: sizes ? "y2" : "y" }),
      yaxis: axis({
        range: [roles.length - 0.5, -0.5], domain: [sizes ? (split + 12) / inner : 0, 1],
        tickvals: roles.map((_, index) => index), ticktext: roles.map(plain), tickfont: { color: colour("ink") },
      }),
      ...(sizes
        ? { yaxis2: axis({ domain: [0, (split - 16) / inner], rangemode: "tozero", nticks: 3, showgrid: true, ticksuffix: "B", tickformat: "~s" }) }
        : {}),
    },
  };
}
