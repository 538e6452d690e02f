"use strict";
// Draws the curves of a report with uPlot: hover, zoom, logarithmic axes. Its data is in the page.
(() => {
  const { best, charts, x: xName } = JSON.parse(document.getElementById("curves").textContent);
  const colors = ["#1f77b4", "#e07a1f", "#2a9d5c", "#c23b4b", "#8a63c9",
    "#8c6d4f", "#d45fa5", "#7a8791", "#a3a126", "#1fa9b5"];
  const dashes = [[], [7, 4], [2, 3]];
  const steps = charts.flatMap((chart) => chart.lines.flatMap((line) => line.x));
  const first = steps.reduce((a, b) => Math.min(a, b), Infinity);
  const last = steps.reduce((a, b) => Math.max(a, b), -Infinity);
  const margin = (last - first) * 0.02 || 1;
  const whole = [first - margin, last + margin];
  const stepSizes = Array.from({ length: 15 }, (_, e) => [1, 2, 5].map((m) => m * 10 ** e)).flat();

  function shown(value) {
    if (value == null) return "–";
    const size = Math.abs(value);
    if (size && (size < 1e-3 || size >= 1e7)) return value.toPrecision(7).replace(/\.?0+(e|$)/, "$1");
    return value.toLocaleString("en-US", { maximumSignificantDigits: 7 });
  }

  // The labels of an axis have enough digits to differ.
  function labels(u, ticks, axis, space, increment) {
    const known = ticks.filter((tick) => tick != null);
    const largest = Math.max(...known.map(Math.abs));
    const digit = Math.floor(Math.log10(increment));
    return ticks.map((tick) => {
      if (tick == null) return "";
      if (tick && (largest >= 1e7 || increment < 1e-4)) {
        const digits = Math.floor(Math.log10(Math.abs(tick))) - digit + 1;
        const text = tick.toExponential(Math.min(Math.max(digits, 0), 12));
        return text.replace(/\.?0+e/, "e");
      }
      const decimals = Math.min(Math.max(1 - digit, 0), 12);
      return tick.toLocaleString("en-US", { maximumFractionDigits: decimals });
    });
  }

  function logLabels(u, ticks) {
    return ticks.map((tick) => {
      if (tick == null) return "";
      return tick < 1e-3 || tick >= 1e5 ? tick.toExponential() : shown(tick);
    });
  }

  // Over many decades, the lines between powers of ten would be a grey area.
  function logGrid(u, ticks) {
    const { min, max } = u.scales.y;
    const isPower = (tick) => Math.abs(Math.log10(tick) - Math.round(Math.log10(tick))) < 1e-9;
    return max / min > 1e3 ? ticks.map((tick) => (isPower(tick) ? tick : null)) : ticks;
  }

  function linearRange(u, low, high) {
    if (low == null) return [0, 1];
    // A constant, but for rounding. Ticks as close together as floating point numbers never end.
    const size = Math.max(Math.abs(low), Math.abs(high));
    if (high - low <= 1e-6 * size) return size ? [low - size / 2, high + size / 2] : [-1, 1];
    return uPlot.rangeNum(low, high, 0.1, true);
  }

  function logRange(u, low, high) {
    return low == null || low <= 0 ? [1, 10] : uPlot.rangeLog(low, high, 10, false);
  }

  function color(name) {
    return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  }

  // In a comparison, all lines of a run have its color.
  function shade(line, at) {
    return colors[(line.color ?? at) % colors.length];
  }

  // uPlot hides the points of lines that share a chart with a longer one; a single point is a line.
  function hasRoomForPoints(u, at, from, to) {
    const values = u.data[at].slice(from, to + 1);
    return values.filter((value) => value != null).length <= u.bbox.width / devicePixelRatio / 10;
  }

  // Without a mouse over the charts, the legend shows the last values.
  function legendValue(u, line, value, index) {
    if (u.cursor.idx == null) return shown(line.y.at(-1));
    const isNear = index != null && index !== u.cursor.idx;
    return shown(value) + (isNear ? ` (${xName} ${shown(u.data[0][index])})` : "");
  }

  function markBest(u, title) {
    const { ctx, bbox } = u;
    if (!best || best.step < u.scales.x.min || best.step > u.scales.x.max) return;
    const x = u.valToPos(best.step, "x", true);
    ctx.save();
    ctx.strokeStyle = ctx.fillStyle = color("--mark");
    ctx.lineWidth = 1.5 * devicePixelRatio;
    ctx.setLineDash([5 * devicePixelRatio, 4 * devicePixelRatio]);
    ctx.beginPath();
    ctx.moveTo(x, bbox.top);
    ctx.lineTo(x, bbox.top + bbox.height);
    ctx.stroke();
    ctx.setLineDash([]);
    const isLeft = x < bbox.left + bbox.width / 2;
    ctx.textAlign = isLeft ? "left" : "right";
    ctx.font = `600 ${12 * devicePixelRatio}px system-ui, sans-serif`;
    const gap = (isLeft ? 6 : -6) * devicePixelRatio;
    ctx.fillText("best", x + gap, bbox.top + 12 * devicePixelRatio);
    const y = u.valToPos(best.score, "y", true);
    if (title === best.chart && y >= bbox.top && y <= bbox.top + bbox.height) {
      ctx.lineWidth = 2 * devicePixelRatio;
      ctx.beginPath();
      ctx.arc(x, y, 7 * devicePixelRatio, 0, 2 * Math.PI);
      ctx.stroke();
    }
    ctx.restore();
  }

  function draw(figure, chart) {
    const plot = figure.querySelector(".plot");
    const logarithmic = figure.querySelector("input");
    const reset = figure.querySelector("button");
    const note = figure.querySelector(".note");
    let u = null;

    function data() {
      let dropped = 0;
      const tables = chart.lines.map((line) => {
        const y = line.y.map((value) => {
          if (!logarithmic.checked || value > 0) return value;
          dropped += 1;
          return null;
        });
        return [line.x, y];
      });
      note.textContent = dropped ? `values of 0 or less, not shown on a log scale: ${dropped}` : "";
      return uPlot.join(tables);
    }

    function options() {
      const axis = { stroke: color("--soft"), grid: { stroke: color("--rule"), width: 1 },
        ticks: { stroke: color("--rule"), width: 1 }, font: "12px system-ui, sans-serif" };
      const isLog = logarithmic.checked;
      return {
        width: plot.clientWidth,
        height: 280,
        cursor: {
          sync: { key: "curves", scales: ["x", null] },
          // A line without a point at this step shows the nearest one, if that is near.
          hover: { skip: [null, undefined], prox: (u, at, index) =>
            (u.data[at][index] == null ? 30 : null) },
          drag: { x: true, y: false, dist: 5 },
          // uPlot would zoom out to the points of one chart; all charts show the same steps.
          bind: { dblclick: () => showAll },
        },
        scales: {
          x: { time: false, range: (u, low, high) => [low, high] },
          y: isLog ? { distr: 3, log: 10, range: logRange } : { range: linearRange },
        },
        axes: [
          { ...axis, incrs: stepSizes, values: labels, label: xName, labelSize: 20, labelGap: 0,
            size: 34, labelFont: "12px system-ui, sans-serif",
            space: () => 34 + 8 * Math.round(last).toLocaleString("en-US").length },
          { ...axis, ...(isLog && { grid: { ...axis.grid, filter: logGrid },
            ticks: { ...axis.ticks, filter: logGrid } }),
            values: isLog ? logLabels : labels, size: (u, values) =>
            Math.max(46, 18 + 7 * Math.max(0, ...(values ?? []).map((v) => v?.length ?? 0))) },
        ],
        series: [
          { label: xName, value: (u, value) => (u.cursor.idx == null ? "last" : shown(value)) },
          ...chart.lines.map((line, at) => ({
            label: line.name,
            stroke: shade(line, at),
            dash: dashes[(line.dash ?? Math.floor(at / colors.length)) % dashes.length],
            width: 2,
            spanGaps: true,
            points: { show: hasRoomForPoints, size: 6, fill: shade(line, at) },
            value: (u, value, at, index) => legendValue(u, line, value, index),
          })),
        ],
        hooks: {
          draw: [(u) => markBest(u, chart.title)],
          setScale: [(u, key) => {
            const { min, max } = u.scales.x;
            if (key === "x") reset.hidden = min <= whole[0] && max >= whole[1];
          }],
        },
      };
    }

    function redraw() {
      const [min, max] = u ? [u.scales.x.min, u.scales.x.max] : whole;
      const hidden = u ? u.series.flatMap((line, at) => (line.show ? [] : [at])) : [];
      u?.destroy();
      u = new uPlot(options(), data(), plot);
      hidden.forEach((at) => u.setSeries(at, { show: false }));
      u.setScale("x", { min, max });
    }

    const isPositive = chart.lines.some((line) => line.y.some((value) => value > 0));
    logarithmic.disabled = !isPositive;
    logarithmic.parentElement.title = isPositive ? "" : "no value is above 0";
    logarithmic.addEventListener("change", redraw);
    reset.addEventListener("click", showAll);
    figure.querySelector(".controls").hidden = false;
    new ResizeObserver(() => {
      if (u && plot.clientWidth !== u.width) u.setSize({ width: plot.clientWidth, height: 280 });
    }).observe(plot);
    redraw();
    return { redraw, zoom: (min, max) => u.setScale("x", { min, max }) };
  }

  function showAll() {
    drawn.forEach((each) => each.zoom(...whole));
  }

  const figures = document.querySelectorAll(".chart");
  const drawn = charts.map((chart, at) => draw(figures[at], chart));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    drawn.forEach((each) => each.redraw()));
})();
