// Controls, and the order in which things happen.

const FIGURES = {
  languages: languagesFigure,
  kappa: kappaFigure,
  patterns: patternsFigure,
  causes: causesFigure,
  experts: expertsFigure,
  bits: bitsFigure,
  widths: widthsFigure,
  prediction: predictionFigure,
};
const OF_LANGUAGES = ["languages", "patterns", "causes", "experts", "widths", "prediction"];

const pending = new Set();
let drawing = null;

/** Draws figures one after another, the first at once; between them the page can answer its reader. */
function drawAll(names = Object.keys(FIGURES)) {
  for (const name of names) pending.add(name);
  drawing ??= drain();
  return drawing;
}

async function drain() {
  try {
    while (pending.size) {
      const [name] = pending;
      pending.delete(name);
      await draw(name);
      await new Promise((resolve) => setTimeout(resolve));
    }
  } finally {
    drawing = null;
  }
}

/** Says beside every figure how many languages the filter leaves. */
function tellFilter() {
  const [count, all] = [visibleRows().length, content.languages.length];
  const text = `${count} of ${all} ${all === 1 ? "language" : "languages"}`;
  for (const place of document.querySelectorAll(".filtered")) {
    place.hidden = count === all;
    place.querySelector("span").textContent = `${text} shown. `;
  }
  return text;
}

let waiting = 0;

/** Shows the languages asked for; while somebody types, the figures wait for a pause. */
function languagesChanged(pause = 0) {
  drawTable();
  announce(tellFilter());
  clearTimeout(waiting);
  if (pause) waiting = setTimeout(() => drawAll(OF_LANGUAGES), pause);
  else drawAll(OF_LANGUAGES);
}

/** Fills a list with the values that occur, by the names people know them by. */
function fill(select, values, name) {
  const entries = [...new Set(values)].map((value) => [value, name(value)]).sort((a, b) => a[1].localeCompare(b[1], "en"));
  select.append(...entries.map(([value, text]) => element("option", text, { value })));
}

function onChange(selector, apply, event = "change") {
  $(selector).addEventListener(event, (happened) => {
    apply(happened.target);
    languagesChanged(event === "input" ? 150 : 0);
  });
}

function listenToFilters() {
  fill($("#script"), content.languages.map((row) => row.script), scriptName);
  fill($("#family"), content.languages.map((row) => row.family), (name) => name);
  onChange("#unit", ({ value }) => (state.unit = value));
  onChange("#script", ({ value }) => (state.script = value));
  onChange("#family", ({ value }) => (state.family = value));
  onChange("#search", ({ value }) => (state.search = value.trim()), "input");
  onChange("#intervals", ({ checked }) => (state.intervals = checked));
  onChange("#wide", ({ checked }) => (state.wide = checked));
  onChange("#sort", ({ value }) => {
    const numeric = columns().find(({ key }) => key === value).numeric;
    // Of the differences, the largest gain first; of all other numbers the largest.
    state.sort = { key: value, descending: numeric && value !== "difference" };
  });
  for (const box of document.querySelectorAll("input[name=method]")) {
    box.addEventListener("change", () => {
      if (box.checked) state.shown.add(Number(box.value));
      else state.shown.delete(Number(box.value));
      drawAll(["languages"]);
    });
  }
}

function listenToTables() {
  $("table#languages").tHead.addEventListener("click", ({ target }) => {
    if (!target.dataset.key) return;
    sortBy(target.dataset.key);
    const listed = [...$("#sort").options].some(({ value }) => value === state.sort.key);
    $("#sort").value = listed ? state.sort.key : "table";
    languagesChanged();
  });
  for (const button of document.querySelectorAll("button.csv")) {
    button.addEventListener("click", () => download(button.dataset.table));
  }
}

/** Gives the maps their choices. */
function listenToMaps() {
  for (const choice of document.querySelectorAll("input[name=patterns]")) {
    choice.addEventListener("change", () => ((state.relative = choice.value === "relative"), draw("patterns")));
  }
  for (const choice of document.querySelectorAll("input[name=causes]")) {
    choice.addEventListener("change", () => ((state.absolute = choice.value === "absolute"), draw("causes")));
  }
  for (const choice of document.querySelectorAll("input[name=experts]")) {
    choice.addEventListener("change", () => ((state.empty = choice.value === "empty"), draw("experts")));
  }
}

const dark = matchMedia("(prefers-color-scheme: dark)");
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? "dark" : "light")) === "dark";

function tellTheme() {
  $("#theme").textContent = isDark() ? "Light" : "Dark";
  $("#theme").setAttribute("aria-label", `Switch to ${isDark() ? "light" : "dark"} colours`);
}

function listenToTheme() {
  $("#theme").addEventListener("click", () => {
    const chosen = isDark() ? "light" : "dark";
    document.documentElement.dataset.theme = chosen;
    try {
      localStorage.setItem("fairbits-theme", chosen);
    } catch {
      // A page opened from disk may have no storage: the choice then holds until it is closed.
    }
    tellTheme();
    drawAll();
  });
  dark.addEventListener("change", () => (tellTheme(), drawAll()));
}

/** Draws again when the width changes; on a phone the height changes whenever its address bar does. */
function listenToWidth() {
  let [lastWidth, timer] = [$("main").clientWidth, 0];
  new ResizeObserver(() => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      if ($("main").clientWidth === lastWidth) return;
      lastWidth = $("main").clientWidth;
      drawTable();
      drawAll();
    }, 120);
  }).observe($("main"));
}

/** Opens the details for a link into them. */
async function openFor(hash) {
  const [details, target] = [$("#details"), hash && document.getElementById(hash.slice(1))];
  if (!target || !details.contains(target)) return;
  details.open = true;
  await drawAll(); // before, the place of the target is not known
  target.scrollIntoView();
}

function listenToDetails() {
  $("#details").addEventListener("toggle", () => drawAll());
  addEventListener("hashchange", () => openFor(location.hash));
  document.addEventListener("click", ({ target }) => openFor(target.closest("a[href^='#']")?.hash));
  return openFor(location.hash);
}

/** Paper is white, and as wide as it is; the printer does not wait. */
function listenToPrinter() {
  let [theme, open] = [];
  const drawNow = () => Object.keys(FIGURES).forEach(draw);
  addEventListener("beforeprint", () => {
    theme = document.documentElement.dataset.theme;
    open = $("#details").open;
    $("#details").open = true;
    document.documentElement.dataset.theme = "light";
    document.documentElement.classList.add("printing");
    drawNow();
  });
  addEventListener("afterprint", () => {
    document.documentElement.classList.remove("printing");
    $("#details").open = open;
    if (theme) document.documentElement.dataset.theme = theme;
    else delete document.documentElement.dataset.theme;
    drawAll();
  });
}

/** Marks in the table of contents where the reader is. */
function followReader() {
  const links = new Map([...document.querySelectorAll("nav a")].map((link) => [link.hash.slice(1), link]));
  const observer = new IntersectionObserver(
    (entries) => {
      for (const { target } of entries.filter((entry) => entry.isIntersecting)) {
        for (const [id, link] of links) link.setAttribute("aria-current", id === target.id);
      }
    },
    { rootMargin: "-20% 0px -70% 0px" },
  );
  for (const section of document.querySelectorAll("main section[id]")) observer.observe(section);
}

async function begin() {
  tellTheme();
  listenToFilters();
  listenToTables();
  listenToMaps();
  drawTable();
  await drawAll();
  for (const plot of document.querySelectorAll(".plot")) makeSteppable(plot);
  listenToTheme();
  listenToWidth();
  listenToPrinter();
  followReader();
  await listenToDetails();
  document.documentElement.dataset.ready = "true";
}

begin();
