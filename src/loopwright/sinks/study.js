"use strict";
// Draws the figures of a study with plotly, in the colors of the page. Their data is in the page.
(() => {
  const figures = JSON.parse(document.getElementById("figures").textContent);
  const color = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
  for (const { name, figure } of figures) {
    const ink = color("--ink"), rule = color("--rule");
    const layout = { ...figure.layout, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)",
      font: { ...figure.layout.font, color: ink }, autosize: true };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis/.test(key)) layout[key] = { ...layout[key], gridcolor: rule, zerolinecolor: rule };
    }
    // Dragging zooms and a double click zooms out; its bar of buttons is larger than some plots.
    const options = { responsive: true, displayModeBar: false };
    Plotly.newPlot(document.getElementById(name), figure.data, layout, options);
  }
})();
