"use strict";
// Draws every figure of the page, with the page's own colours, and again when the reader turns light into dark.
(() => {
  const style = getComputedStyle(document.documentElement);
  const colour = (name) => style.getPropertyValue(name).trim();
  const figures = [...document.querySelectorAll(".plot")].map((box) => ({
    box,
    spec: JSON.parse(box.nextElementSibling.textContent),
  }));
  const coarse = matchMedia("(pointer: coarse)").matches;
  const config = { ...FIGURE_CONFIG, responsive: true, displayModeBar: coarse ? false : "hover" };

  const draw = ({ box, spec }) => {
    const layout = structuredClone(spec.layout);
    const axis = { gridcolor: colour("--rule"), linecolor: colour("--rule") };
    const base = layout.template.layout;
    base.font.color = colour("--soft");
    Object.assign(base.xaxis, axis);
    Object.assign(base.yaxis, axis);
    base.hoverlabel = {
      ...base.hoverlabel, bgcolor: colour("--raised"), bordercolor: colour("--rule"), font: { color: colour("--ink") },
    };
    base.modebar = { bgcolor: colour("--page"), color: colour("--soft"), activecolor: colour("--ink") };
    if (coarse) layout.dragmode = false; // a finger scrolls the page, not the axes
    const data = structuredClone(spec.data);
    for (const trace of data) if (trace.texttemplate) trace.textfont = { ...trace.textfont, color: colour("--ink") };
    return Plotly.react(box, data, layout, config);
  };

  figures.forEach(draw);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => figures.forEach(draw));
})();
