"use strict";
(() => {
  const $ = (selector, root = document) => root.querySelector(selector);
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const TYPES = { f8: Float64Array, u1: Uint8Array, u2: Uint16Array, u4: Uint32Array };

  const bytes = (text) => Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const column = ({ dtype, bdata }) => new TYPES[dtype](bytes(bdata).buffer);

  async function unpacked(id) {
    const stream = new Blob([bytes($(`#${id}-packed`).textContent)]).stream();
    return new Response(stream.pipeThrough(new DecompressionStream("gzip"))).text();
  }

  function runScript(text) {
    const script = document.createElement("script");
    script.textContent = text;
    document.head.append(script);
  }

  const duration = (ns) => {
    const [factor, unit] = [[1e9, "s"], [1e6, "ms"], [1e3, "us"]].find(([least]) => ns >= 0.9995 * least) ?? [1, "ns"];
    const value = ns / factor;
    return `${value.toFixed(unit === "ns" || value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2)} ${unit}`;
  };

  // plotly reads text as markup.
  const plain = (text) => text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;");

  // Colours of figures follow the page's, whatever theme is on.
  const themed = () => {
    const style = getComputedStyle(document.documentElement);
    return {
      "font.color": style.getPropertyValue("--text").trim(),
      "hoverlabel.bgcolor": style.getPropertyValue("--back").trim(),
      "hoverlabel.bordercolor": style.getPropertyValue("--soft").trim(),
      "hoverlabel.font.color": style.getPropertyValue("--text").trim(),
    };
  };
  // Pixels that fit between the margins of A4 and letter.
  const PAPER = 660;
  let printing = false;
  const heights = new Map();

  // Sizes are ours: what plotly does by itself on a resize forgets the height.
  const arrange = () => heights.forEach((height, element) => {
    Plotly.relayout(element, { ...themed(), width: printing ? PAPER : element.clientWidth, height });
  });

  // Only these buttons: among plotly's own is one that uploads the figure.
  const config = (...buttons) => ({ displaylogo: false, modeBarButtons: [["toImage", ...buttons]] });

  async function draw(element, data, layout, ...buttons) {
    element.style.height = `${layout.height}px`;
    heights.set(element, layout.height);
    await Plotly.newPlot(element, data, { ...layout, width: element.clientWidth }, config(...buttons));
    await Plotly.relayout(element, { ...themed(), width: printing ? PAPER : element.clientWidth });
    element.dataset.drawn = "yes";
  }

  // A column stands for one rank, or for several: "696 to 703".
  const choosing = (figure) => figure.on("plotly_click", ({ points: [{ x }] }) => {
    const choice = $("#choose-rank");
    choice.value = String(parseInt(x, 10));
    choice.dispatchEvent(new Event("change"));
  });

  function lazily(figures) {
    const pending = new Set(all("[data-figure]"));
    const now = (element) => {
      const { data, layout } = figures[element.dataset.figure];
      if (!pending.delete(element)) return Promise.resolve();
      return draw(element, data, layout).then(() => element.dataset.figure === "job_heat" && choosing(element));
    };
    const seen = new IntersectionObserver(
      (entries) => entries.filter((entry) => entry.isIntersecting).forEach((entry) => now(entry.target)),
      { rootMargin: "400px" },
    );
    pending.forEach((element) => seen.observe(element));
    window.addEventListener("beforeprint", () => pending.forEach(now));
  }

  // Follow the theme, the window and paper; `redraw` is for what depends on the size of a pixel.
  function follow(redraw) {
    const root = document.documentElement;
    const adapt = () => { arrange(); redraw(); };
    let before = null;
    let waiting = 0;
    $("#theme").addEventListener("click", () => {
      root.dataset.theme = getComputedStyle(root).colorScheme === "dark" ? "light" : "dark";
      adapt();
    });
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", adapt);
    window.addEventListener("resize", () => {
      clearTimeout(waiting);
      waiting = setTimeout(adapt, 100);
    });
    window.addEventListener("beforeprint", () => {
      const closed = all("details.table, details.minor").filter((details) => !details.open);
      before ??= { theme: root.dataset.theme, closed };
      printing = true;
      root.dataset.theme = "light";
      closed.forEach((details) => { details.open = true; });
      adapt();
    });
    window.addEventListener("afterprint", () => {
      if (!before) return;
      printing = false;
      if (before.theme) root.dataset.theme = before.theme;
      else delete root.dataset.theme;
      before.closed.forEach((details) => { details.open = false; });
      before = null;
      adapt();
    });
  }

  class Timeline {
    constructor(element, data) {
      this.element = element;
      this.data = data;
      this.levels = data.levels.map((level) => this.#level(level));
      this.kinds = [...new Set(this.levels.flatMap((level) => [...level.kind]))].sort((a, b) => a - b);
      this.range = [0, data.dur];
      this.wanted = null;
      this.hidden = new Set();
      this.finding = null;
      this.place = 0;
    }

    #level(level) {
      const columns = ["lane", "start", "dur", "label", "kind", "count", "filled"].map((name) => [name, column(level[name])]);
      const made = { from: level.start_ns, to: level.end_ns, ...Object.fromEntries(columns) };
      // How far the marks of a lane reach up to each: they may overlap.
      made.reach = new Float64Array(made.lane.length);
      made.lane.forEach((lane, row) => {
        const before = row && made.lane[row - 1] === lane ? made.reach[row - 1] : 0;
        made.reach[row] = Math.max(before, made.start[row] + made.dur[row]);
      });
      made.first = Array.from({ length: this.data.lanes + 1 }, (_, lane) => this.#lower(made.lane, lane));
      return made;
    }

    #lower(values, wanted, low = 0, high = values.length) {
      while (low < high) {
        const middle = (low + high) >> 1;
        if (values[middle] < wanted) low = middle + 1;
        else high = middle;
      }
      return low;
    }

    // Rows of a level that lie between two times, at most `most` of them, else null.
    #rows(level, from, to, most) {
      const rows = [];
      for (let lane = 0; lane < this.data.lanes; lane++) {
        const end = this.#lower(level.start, to, level.first[lane], level.first[lane + 1]);
        for (let row = this.#lower(level.reach, from, level.first[lane], end); row < end; row++) {
          if (level.start[row] + level.dur[row] < from || (this.wanted && !this.wanted.has(level.label[row]))) continue;
          rows.push(row);
          if (rows.length > most) return null;
        }
      }
      return rows;
    }

    // Time that one pixel of the plot stands for.
    #pixel() {
      const width = this.element._fullLayout?.xaxis?._length ?? this.element.clientWidth - 160;
      return (this.range[1] - this.range[0]) / Math.max(width, 100);
    }

    #chosen(from, to) {
      for (const level of [...this.levels].reverse()) {
        if (level.from > from || level.to < to) continue;
        const rows = this.#rows(level, from, to, this.data.most);
        if (rows) return [level, rows];
      }
      return [this.levels[0], this.#rows(this.levels[0], from, to, Infinity)];
    }

    #traces() {
      const [from, to] = this.range;
      const [level, rows] = this.#chosen(from, to);
      const pixel = this.#pixel();
      const traces = new Map(this.kinds.map((kind) => [kind, this.#trace(kind)]));
      for (const row of rows) {
        const trace = traces.get(level.kind[row]);
        const dur = level.dur[row];
        const label = this.data.labels[level.label[row]] || this.data.kinds[level.kind[row]].name;
        const name = plain(label);
        trace.y.push(level.lane[row]);
        trace.base.push(level.start[row] / 1e6);
        trace.x.push(Math.max(dur, pixel) / 1e6);
        trace.text.push(this.#fitting(label, dur / pixel));
        const [count, filled] = [level.count[row], level.filled[row]];
        trace.marker.opacity.push(Math.max(filled / Math.max(dur, pixel), this.data.faintest));
        const several = count > 1 ? `${count.toLocaleString("en")} operations, ${duration(filled)} together; the longest:<br>` : "";
        const alone = count > 1 ? "" : `, ${duration(filled)}`;
        trace.hovertext.push(`${several}${name}<br>${this.data.kinds[level.kind[row]].name}${alone}`);
        trace.customdata.push([label, filled, level.start[row], count]);
      }
      return [...traces.values()];
    }

    // As much of a name as fits into a bar.
    #fitting(name, pixels) {
      const letters = Math.floor(pixels / 7) - 1;
      if (letters < 5) return "";
      return plain(name.length > letters ? `${name.slice(0, letters - 1)}…` : name);
    }

    #trace(kind) {
      return {
        type: "bar", orientation: "h", name: this.data.kinds[kind].name, y: [], base: [], x: [], text: [], hovertext: [],
        customdata: [], width: 0.84, hoverinfo: "text", textposition: "inside", insidetextanchor: "start",
        textangle: 0, constraintext: "none", cliponaxis: true, visible: !this.hidden.has(kind),
        marker: { color: this.data.kinds[kind].colour, line: { width: 0 }, opacity: [] },
      };
    }

    async start() {
      const { layout } = this.data.frame;
      this.names = layout.yaxis.ticktext;
      Object.assign(layout, { showlegend: false, height: this.data.height });
      await draw(this.element, this.#traces(), layout, "zoom2d", "pan2d");
      await this.redraw();
      this.element.on("plotly_relayout", (change) => this.#moved(change));
      this.element.on("plotly_click", (event) => this.#told(event.points[0].customdata));
      this.element.on("plotly_doubleclick", () => this.show(0, this.data.dur));
    }

    #moved(change) {
      if (change["xaxis.autorange"]) return this.show(0, this.data.dur);
      if (!("xaxis.range[0]" in change)) return undefined;
      return this.show(change["xaxis.range[0]"] * 1e6, change["xaxis.range[1]"] * 1e6);
    }

    #told([name, filled, start, count]) {
      const together = count > 1 ? `${count} operations; the longest: ` : "";
      $("#mark").textContent = `${together}${name}: ${duration(filled)}, from ${(start / 1e6).toFixed(3)} ms on`;
      $("#mark").hidden = false;
    }

    async show(from, to) {
      const width = Math.min(Math.max(to - from, 100), this.data.dur);
      const start = Math.min(Math.max(from, 0), this.data.dur - width);
      this.range = [start, start + width];
      await this.redraw();
    }

    async redraw() {
      const layout = this.element.layout;
      layout.xaxis.range = this.range.map((ns) => ns / 1e6);
      layout.xaxis.autorange = false;
      layout.shapes = [...this.#bounds(), ...this.#marked()];
      layout.annotations = this.#stepNames();
      layout.yaxis.ticktext = this.#laneNames();
      await Plotly.react(this.element, this.#traces(), layout);
    }

    // Steps that are shown, as [number, from, to], if each has pixels enough to be told apart.
    #steps(pixels) {
      const [bounds, numbers] = this.data.steps;
      const [from, to] = this.range;
      const shown = numbers.map((number, at) => [number, bounds[at], bounds[at + 1]]).filter(([, a, b]) => a < to && b > from);
      return (to - from) / this.#pixel() / Math.max(shown.length, 1) >= pixels ? shown : [];
    }

    #bounds() {
      const edges = new Set(this.#steps(8).flatMap(([, from, to]) => [from, to]));
      return [...edges].map((edge) => ({
        type: "line", yref: "paper", x0: edge / 1e6, x1: edge / 1e6, y0: 0, y1: 1,
        line: { width: 1, color: "rgba(128,128,128,0.6)", dash: "dot" },
      }));
    }

    #stepNames() {
      const [low, high] = this.range;
      return this.#steps(60).map(([number, from, to]) => ({
        x: (Math.max(from, low) + Math.min(to, high)) / 2e6, y: 1, yref: "paper", yanchor: "bottom", showarrow: false,
        text: `step ${number}`, font: { size: 11 },
      }));
    }

    // Names of lanes; those with places of the chosen finding stand out.
    #laneNames() {
      const spots = this.finding === null ? [] : this.data.findings[this.finding].spots;
      const marked = new Set(spots.map((spot) => spot.lane));
      const names = this.element.clientWidth < 600 ? this.data.short : this.names;
      return names.map((name, lane) => (marked.has(lane) ? `<b>▸ ${name}</b>` : name));
    }

    #marked() {
      if (this.finding === null) return [];
      const colour = themed()["font.color"];
      const pixel = this.#pixel();
      return this.data.findings[this.finding].spots.map((spot, place) => ({
        type: "rect", x0: (spot.start_ns - pixel) / 1e6, x1: (spot.start_ns + spot.dur_ns + pixel) / 1e6,
        y0: spot.lane - 0.5, y1: spot.lane + 0.5, line: { color: colour, width: place === this.place ? 2.5 : 1 },
      }));
    }

    async select(finding, place = null) {
      const { spots, title, number, count } = this.data.findings[finding];
      const longest = spots.reduce((best, spot, at) => (spot.dur_ns > spots[best].dur_ns ? at : best), 0);
      this.finding = finding;
      this.place = place === null ? longest : (place + spots.length) % spots.length;
      const spot = spots[this.place];
      const around = Math.max(spot.dur_ns * 2, 20e3);
      $("#spot").hidden = false;
      const of = count > spots.length ? ` (the longest ${spots.length} of ${count})` : "";
      $("#spot span").textContent = `${number}. ${title}: place ${this.place + 1} of ${spots.length}${of}`;
      await this.show(spot.start_ns - around, spot.start_ns + spot.dur_ns + around);
    }

    async clear() {
      this.finding = null;
      $("#spot").hidden = true;
      all(".card.current").forEach((card) => card.classList.remove("current"));
      this.element.focus({ preventScroll: true });
      await this.redraw();
    }

    legend(place) {
      for (const kind of this.kinds) {
        const { name, colour } = this.data.kinds[kind];
        const button = document.createElement("button");
        const sample = document.createElement("span");
        sample.style.background = colour;
        button.type = "button";
        button.setAttribute("aria-pressed", "true");
        button.append(sample, name);
        button.addEventListener("click", () => {
          const shown = this.hidden.delete(kind);
          if (!shown) this.hidden.add(kind);
          button.setAttribute("aria-pressed", String(shown));
          this.redraw();
        });
        place.append(button);
      }
    }

    async only(text) {
      const wanted = text.trim().toLowerCase();
      const found = this.data.labels.flatMap((label, at) => (label.toLowerCase().includes(wanted) ? [at] : []));
      this.wanted = wanted ? new Set(found) : null;
      await this.redraw();
    }

    async move(how) {
      const [from, to] = this.range;
      const width = to - from;
      const [bounds, numbers] = this.data.steps;
      const at = bounds.findIndex((bound, k) => bound <= from + width / 2 && from + width / 2 < (bounds[k + 1] ?? -1));
      const step = at >= 0 && numbers.length ? at : 0;
      const moves = {
        whole: () => this.show(0, this.data.dur),
        step: () => this.show(bounds[step], bounds[step + 1]),
        left: () => this.show(from - width / 4, to - width / 4),
        right: () => this.show(from + width / 4, to + width / 4),
        in: () => this.show(from + width / 4, to - width / 4),
        out: () => this.show(from - width / 2, to + width / 2),
        next: () => this.finding !== null && this.select(this.finding, this.place + 1),
        previous: () => this.finding !== null && this.select(this.finding, this.place - 1),
        clear: () => this.clear(),
      };
      await moves[how]();
    }
  }

  const KEYS = {
    ArrowLeft: "left", ArrowRight: "right", "+": "in", "=": "in", "-": "out", 0: "whole", n: "next", p: "previous",
    Escape: "clear",
  };

  function steer(timeline) {
    all("[data-move]").forEach((button) => button.addEventListener("click", () => timeline.move(button.dataset.move)));
    // plotly takes the focus away while it follows a drag.
    timeline.element.addEventListener("pointerdown", () => {
      window.addEventListener("pointerup", () => {
        setTimeout(() => timeline.element.focus({ preventScroll: true }));
      }, { once: true, capture: true });
    });
    $("#timeline").addEventListener("keydown", (event) => {
      if (!(event.key in KEYS) || event.target.matches("input") || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      timeline.move(KEYS[event.key]);
    });
    timeline.legend($("#legend"));
    let waiting = 0;
    $("#filter").addEventListener("input", (event) => {
      clearTimeout(waiting);
      waiting = setTimeout(() => timeline.only(event.target.value), 150);
    });
    all(".card").forEach((card) => $(".show", card)?.addEventListener("click", async () => {
      all(".card.current").forEach((other) => other.classList.remove("current"));
      card.classList.add("current");
      $("#timeline").scrollIntoView({ block: "start" });
      await timeline.select(Number(card.dataset.finding));
      timeline.element.focus({ preventScroll: true });
    }));
  }

  async function copied(text) {
    try {
      await navigator.clipboard.writeText(text);
    } catch {
      const area = document.createElement("textarea");
      area.value = text;
      document.body.append(area);
      area.select();
      document.execCommand("copy");
      area.remove();
    }
  }

  function plainParts() {
    all(".copy").forEach((button) => button.addEventListener("click", async () => {
      await copied($("code", button.parentElement).textContent);
      button.textContent = "Copied";
      setTimeout(() => { button.textContent = "Copy"; }, 1500);
    }));
    all("button[data-kind]").forEach((button) => button.addEventListener("click", () => {
      all("button[data-kind]").forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      const { kind } = button.dataset;
      all("details.rule").forEach((rule) => { rule.hidden = kind !== "" && rule.dataset.kind !== kind; });
    }));
    all("button[data-trace]").forEach((button) => button.addEventListener("click", () => {
      const figure = $(".figure", button.closest(".panel"));
      if (!figure.data) return;
      all("button[data-trace]", figure.parentElement).forEach((other) => other.setAttribute("aria-pressed", String(other === button)));
      Plotly.restyle(figure, { visible: figure.data.map((_, at) => at === Number(button.dataset.trace)) });
    }));
    const choice = $("#choose-rank");
    const chosen = () => $("#chosen-rank").replaceChildren($(`#rank-${choice.value}`).content.cloneNode(true));
    choice?.addEventListener("change", chosen);
    if (choice) chosen();
    $("#save-trace")?.addEventListener("click", async () => {
      const link = document.createElement("a");
      link.href = URL.createObjectURL(new Blob([await unpacked("trace")], { type: "application/json" }));
      link.download = "diagnose.trace.json";
      link.click();
      URL.revokeObjectURL(link.href);
    });
  }

  async function main() {
    let shown = null;
    plainParts();
    follow(() => shown?.redraw());
    try {
      const [script, text] = await Promise.all([unpacked("plotly"), unpacked("data")]);
      runScript(script);
      const { figures, timeline } = JSON.parse(text);
      lazily(figures);
      if (timeline) {
        const drawn = new Timeline($("#lanes"), timeline);
        await drawn.start();
        steer(drawn);
        shown = drawn;
      }
      document.documentElement.dataset.ready = "yes";
    } catch (error) {
      $("#no-figures").textContent = `The figures cannot be drawn (${error.message}). They need a browser of 2023 or later.`;
      $("#no-figures").hidden = false;
      throw error;
    }
  }

  main();
})();
