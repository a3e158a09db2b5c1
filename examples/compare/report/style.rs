//! The style sheet: light and dark, screen and phone.
//!
//! The colours are from the palette of Okabe and Ito, which is distinguishable with any colour vision, darkened or
//! lightened to suit the background. windlass has the two strongest; hand-written loops are dashed lines in a related
//! colour.

pub(super) const STYLE: &str = "
:root {
  color-scheme: light dark;
  --ground: #fcfcfb; --card: #ffffff; --edge: #e3e2de; --grid: #ecebe7; --axis: #8b8a85;
  --ink: #1c1c1a; --soft: #5f5e5a;
  --reactor: #0072b2; --proactor: #d55e00; --epoll: #3f9fd8; --uring: #c28800; --uring-multishot: #b8588f;
  --asyncio: #00845f; --uvloop: #3d3d3d; --kernel: #94938e;
}
@media (prefers-color-scheme: dark) {
  :root {
    --ground: #161615; --card: #1e1e1d; --edge: #343431; --grid: #2b2b29; --axis: #8b8a85;
    --ink: #eeede9; --soft: #a9a8a2;
    --reactor: #3d9be0; --proactor: #ff7f32; --epoll: #8fd0f7; --uring: #efc04a; --uring-multishot: #e59cc6;
    --asyncio: #2cc493; --uvloop: #e4e3df; --kernel: #85847f;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0; background: var(--ground); color: var(--ink);
  font: 16px/1.55 system-ui, -apple-system, 'Segoe UI', Roboto, 'Helvetica Neue', Arial, sans-serif;
}
main { max-width: 1064px; margin: 0 auto; padding: 40px 32px 64px; }
h1 { font-size: 30px; line-height: 1.2; margin: 0 0 6px; letter-spacing: -0.01em; }
h2 { font-size: 21px; margin: 52px 0 14px; letter-spacing: -0.005em; }
h3 { font-size: 15px; margin: 30px 0 8px; } .pair h3 { margin-top: 18px; }
p { margin: 0 0 12px; max-width: 72ch; }
.when { color: var(--soft); font-size: 14px; margin-bottom: 22px; max-width: none; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(180px, 1fr)); gap: 12px; margin: 24px 0; }
.tile { background: var(--card); border: 1px solid var(--edge); border-radius: 8px; padding: 14px 16px; }
.tile b { display: block; font-size: 25px; line-height: 1.2; letter-spacing: -0.01em; }
.tile span { color: var(--soft); font-size: 13px; line-height: 1.4; display: block; margin-top: 4px; }
.pair { display: grid; grid-template-columns: 1fr 1fr; gap: 0 32px; align-items: start; }
.level { align-items: end; } .pair > * { min-width: 0; }
figure { margin: 18px 0 26px; min-width: 0; }
figcaption { margin-bottom: 8px; line-height: 1.45; }
figcaption span { color: var(--soft); font-size: 14px; display: block; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 3px 18px; margin: 0 0 8px; padding: 0; }
.legend { font-size: 13px; }
.legend li { display: flex; align-items: center; gap: 7px; white-space: nowrap; }
.swatch { width: 26px; height: 12px; flex: none; }
svg.screen, svg.phone { width: 100%; height: auto; display: block; overflow: visible; }
svg.phone { display: none; }
svg text { font-size: 12px; fill: var(--soft); font-family: inherit; }
svg .label { font-size: 12px; }
svg .name { font-size: 13px; fill: var(--ink); }
svg .value { font-size: 13px; fill: var(--ink); font-weight: 600; }
.grid { stroke: var(--grid); stroke-width: 1; }
.axis { stroke: var(--axis); stroke-width: 1; }
.line { fill: none; stroke: var(--mine); stroke-width: 1.8; stroke-linejoin: round; }
.spread { stroke: var(--mine); stroke-width: 1.4; opacity: 0.75; }
.mark { fill: var(--mine); stroke: var(--ground); stroke-width: 0.8; }
.hit { fill: transparent; }
.bar { fill: var(--mine); }
.whisker { stroke: var(--ink); stroke-width: 1.2; opacity: 0.65; }
.k-reactor { --mine: var(--reactor); } .k-proactor { --mine: var(--proactor); }
.k-epoll { --mine: var(--epoll); } .k-uring { --mine: var(--uring); }
.k-uring-multishot { --mine: var(--uring-multishot); } .k-asyncio { --mine: var(--asyncio); }
.k-uvloop { --mine: var(--uvloop); } .k-kernel { --mine: var(--kernel); }
.line.k-reactor, .line.k-proactor { stroke-width: 2.6; }
.line.k-epoll, .line.k-uring, .line.k-uring-multishot { stroke-dasharray: 6 3; }
.line.k-kernel { stroke-dasharray: 2 3; }
.scroll { overflow-x: auto; margin: 0 0 6px; }
table { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; min-width: 100%; }
th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--grid); text-align: right; white-space: nowrap; }
th { color: var(--soft); font-weight: 600; border-bottom-color: var(--edge); vertical-align: bottom; }
th.words, td.words { text-align: left; }
td:last-child, th:last-child { padding-right: 0; }
tr.begins td { border-top: 1px solid var(--edge); }
.notes { color: var(--soft); font-size: 13px; margin: 6px 0 0; padding: 0 0 0 18px; max-width: 90ch; }
.plain { padding-left: 20px; max-width: 80ch; } .plain li { margin-bottom: 5px; }
code { font: 13px/1.5 ui-monospace, 'SF Mono', Menlo, Consolas, monospace; overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: 6px 20px; margin: 0; font-size: 14px; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
@media (max-width: 760px) {
  main { padding: 24px 18px 48px; }
  h1 { font-size: 25px; } h2 { margin-top: 40px; }
  .tiles { grid-template-columns: 1fr 1fr; } .tile b { font-size: 21px; } .tile { padding: 11px 12px; }
  .pair { grid-template-columns: 1fr; }
  svg.screen { display: none; } svg.phone { display: block; max-width: 480px; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: 8px; }
}
";
