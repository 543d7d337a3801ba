// What all figures share: colours of the theme, axes, drawing, and stepping through points with the keyboard.

const FONT = getComputedStyle(document.documentElement).getPropertyValue("--sans").trim();
const NARROW = 560;
const CONFIG = { displayModeBar: false, responsive: false, doubleClick: false, showTips: false };

/** Returns a colour of the theme by its name in the style sheet. */
function colour(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** Returns how a method is drawn: by colour and by shape, so that colour is never alone. */
function look(method) {
  const names = ["after", "before", "third", "fourth"];
  const shapes = ["circle", "diamond-open", "square-open", "triangle-up-open", "cross-open", "star-open"];
  return { color: colour(names[method] ?? "muted"), symbol: shapes[method % shapes.length] };
}

const ruler = document.createElement("canvas").getContext("2d");

/** Returns the room in pixels that the longest of some labels needs. */
function room(labels, size = 13) {
  ruler.font = `${size}px ${FONT}`;
  return Math.ceil(Math.max(0, ...labels.map((text) => ruler.measureText(text).width)));
}

/** Returns an axis in the style of the page. */
function axis(extra = {}) {
  const { title, ...rest } = extra;
  return {
    fixedrange: true,
    showgrid: false,
    zeroline: false,
    showline: false,
    ticks: "outside",
    ticklen: 7,
    tickcolor: "rgba(0,0,0,0)",
    exponentformat: "none",
    gridcolor: colour("rule"),
    tickfont: { color: colour("muted"), size: 12 },
    ...(title ? { title: { text: title, font: { size: 12.5, color: colour("muted") }, standoff: 12 } } : {}),
    ...rest,
  };
}

/** Returns a layout in the style of the page. */
function layout(extra) {
  return {
    font: { family: FONT, size: 13, color: colour("ink") },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    hovermode: "closest",
    dragmode: false,
    showlegend: false,
    hoverlabel: {
      bgcolor: colour("raised"),
      bordercolor: colour("line"),
      font: { family: FONT, size: 13, color: colour("ink") },
      align: "left",
      namelength: 0,
    },
    ...extra,
  };
}

/** Returns a small scale of colours above a map. */
function flatBar(narrow, title) {
  return {
    orientation: "h", thickness: 8, len: narrow ? 0.9 : 0.45, x: narrow ? 0.5 : 1, xanchor: narrow ? "center" : "right",
    y: 1, yanchor: "bottom", ypad: 4, outlinewidth: 0, nticks: 5, exponentformat: "none",
    tickfont: { size: 11.5, color: colour("muted") },
    title: { text: title, side: "top", font: { size: 12, color: colour("muted") } },
  };
}

/** Returns the blocks that an axis names: all of a few, some of many. */
function blockTicks(blocks, width) {
  const most = Math.max(4, Math.floor(width / 34));
  const step = [1, 2, 4, 5, 10, 20, 50].find((candidate) => blocks.length / candidate <= most) ?? 100;
  return blocks.filter((_, index) => index % step === 0);
}

/** Returns a point that the arrow keys can stop at: where plotly finds it, and what is said of it. */
function stop(curve, point, text) {
  // A cell of a map is found by its place on the axes, any other point by its number.
  const where = Array.isArray(point) ? { xval: point[0], yval: point[1] } : { pointNumber: point };
  return { where: { curveNumber: curve, ...where }, text: text.replace(/<[^>]*>/g, " ").replace(/&lt;/g, "<").replace(/&gt;/g, ">").replace(/&amp;/g, "&") };
}

/** Returns a figure without languages, which says so. */
function emptyFigure() {
  const text = "No language matches the filter.";
  const note = { text, xref: "paper", yref: "paper", x: 0, y: 0.5, xanchor: "left", showarrow: false, font: { color: colour("muted") } };
  const none = { visible: false, fixedrange: true };
  const bare = { height: 90, margin: { l: 0, r: 0, t: 0, b: 0 }, xaxis: none, yaxis: none, annotations: [note] };
  return { traces: [], stops: [], layout: bare };
}

/** Draws one figure into the width that it has. */
function draw(name) {
  const plot = $(`#fig-${name} .plot`);
  if (!plot || plot.closest("details:not([open])")) return null;
  const width = plot.clientWidth;
  const figure = FIGURES[name](width) ?? emptyFigure();
  plot.stops = figure.stops;
  plot.place = null;
  plot.lifted = null;
  const drawn = Plotly.react(plot, figure.traces, layout({ width, ...figure.layout }), CONFIG);
  if (name === "widths" && !plot.onstep) highlightLines(plot);
  return drawn;
}

const STEPS = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] };

/** Moves to the next point in the direction of an arrow key, shows its label and says it. */
function stepThrough(plot, event) {
  const move = STEPS[event.key];
  if (!move || !plot.stops?.length) return;
  event.preventDefault();
  const [row, column] = plot.place ?? [-move[0], -move[1]];
  const within = (value, count) => Math.min(Math.max(value, 0), count - 1);
  const nextRow = within(row + move[0], plot.stops.length);
  const next = [nextRow, within(column + move[1], plot.stops[nextRow].length)];
  plot.place = next;
  const { where, text } = plot.stops[next[0]][next[1]];
  plot.onstep?.(where.curveNumber); // first, as it may draw the plot anew
  Plotly.Fx.hover(plot, [where]);
  announce(text);
}

/** Makes a plot reachable with the keyboard. */
function makeSteppable(plot) {
  plot.addEventListener("keydown", (event) => stepThrough(plot, event));
  plot.addEventListener("blur", () => {
    if (plot.place) Plotly.Fx.unhover(plot);
    plot.onstep?.(null);
    plot.place = null;
  });
}
