"""The style sheet of the report. It begins with that of the other pages (`bench.page_style`: colours, marks, tables)
and adds what is its own: the headline, the bar of switches, lanes, tables; `style_view` has the rest.
No fonts, pictures or rules come from outside.
"""

from __future__ import annotations

from sparserl.bench.page_style import STYLE as BASE
from sparserl.report.style_view import VIEW

OWN = """
:root { --ours: #0f62d6; --tint: #eaf1fc; --shadow: 0 1px 2px #00000010, 0 8px 28px -12px #0000002e; --note: #8a5a00;
  --notetint: #fff4da; --raised: #ffffff; }
@media (prefers-color-scheme: dark) { :root { --ours: #6fa8f5; --tint: #1b2a40; --shadow: 0 1px 2px #0006,
  0 12px 36px -12px #000c; --note: #f0c05a; --notetint: #362b12; --raised: #3b3b37; } }
html { scroll-behavior: smooth; scroll-padding-top: 76px; -webkit-text-size-adjust: 100%; }
body { font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "Liberation Sans", sans-serif; }
main, header, footer { max-width: 1240px; padding: 0 28px; }
header { padding-top: 56px; }
h1 { font-size: clamp(30px, 4.4vw, 46px); line-height: 1.08; letter-spacing: -.025em; margin: 18px 0 14px;
  max-width: 22ch; text-wrap: balance; font-weight: 680; }
h2 { font-size: 25px; letter-spacing: -.015em; margin: 0 0 4px; line-height: 1.2; font-weight: 660; }
h3 { font-size: 17px; letter-spacing: -.005em; margin: 48px 0 4px; font-weight: 640; }
h4 { font-size: 14.5px; margin: 30px 0 8px; font-weight: 640; }
h4 small { font-weight: 400; color: var(--quiet); font-size: 13px; margin-left: 8px; }
p { max-width: 72ch; }
a { text-underline-offset: 2px; text-decoration-thickness: 1px; }
.lead { font-size: 18px; line-height: 1.5; color: var(--quiet); max-width: 66ch; margin: 0; }
.lead.others { font-size: 15px; margin-top: 8px; }
.brow { display: flex; flex-wrap: wrap; gap: 6px 10px; align-items: center; font-size: 13.5px; color: var(--quiet); }
.brow b { color: var(--ours); font-weight: 640; letter-spacing: .01em; margin-right: 4px; }
.pill { border: 1px solid var(--line); border-radius: 99px; padding: 1px 10px; white-space: nowrap; }
.modelled, .tag { display: inline-block; font: 600 11px/1.5 system-ui, sans-serif; letter-spacing: .03em;
  padding: 1px 8px; border-radius: 99px; background: var(--notetint); color: var(--note); vertical-align: middle; }
.tag { background: var(--tint); color: var(--ours); }
.warning { margin: 24px 0 0; padding: 12px 18px; border-radius: 10px; background: var(--notetint); color: var(--note);
  max-width: none; }
.fault { padding: 10px 14px; border-left: 3px solid var(--miss); background: var(--soft); border-radius: 4px; }

.bar-of-switches { position: sticky; top: 0; z-index: 5; margin-top: 34px; background: var(--ground);
  border-bottom: 1px solid var(--line); }
.bar-of-switches > div { max-width: 1240px; margin: 0 auto; padding: 10px 28px; display: flex; flex-wrap: wrap;
  gap: 10px 22px; align-items: center; }
.switch { display: inline-flex; background: var(--soft); border-radius: 9px; padding: 3px; gap: 2px; max-width: 100%;
  overflow-x: auto; scrollbar-width: none; }
.switch button, .chip, .copy, .step { font: 500 13.5px/1.4 system-ui, sans-serif; color: var(--quiet); border: 0;
  background: none; cursor: pointer; white-space: nowrap; }
.switch button { padding: 5px 13px; border-radius: 7px; }
.switch button:hover { color: var(--text); }
.switch button[aria-pressed=true] { background: var(--raised); color: var(--text); box-shadow: 0 1px 3px #0002; }
.switch-name { font-size: 12.5px; color: var(--quiet); margin-right: -12px; }
.jump { margin-left: auto; font-size: 13.5px; }
.jump a { margin: 0 0 0 16px; color: var(--quiet); text-decoration: none; }
.jump a:hover { color: var(--text); text-decoration: underline; }

.problem { padding-top: 40px; }
.alone { padding-top: 20px; }
.hero { display: grid; grid-template-columns: minmax(0, 1fr) minmax(0, 1.12fr); gap: 36px; align-items: center;
  margin-top: 22px; }
.big { font-size: clamp(76px, 10vw, 124px); font-weight: 700; letter-spacing: -.055em; line-height: .95;
  color: var(--ours); font-variant-numeric: tabular-nums; }
.big sup { font-size: .5em; font-weight: 500; letter-spacing: 0; vertical-align: baseline; margin-left: .04em; }
.big + p { margin: 14px 0 26px; font-size: 17px; line-height: 1.45; max-width: 40ch; }
.stats { display: grid; grid-template-columns: repeat(auto-fill, minmax(128px, 1fr)); gap: 20px 24px; margin: 0; }
.stats div { border-top: 1px solid var(--line); padding-top: 9px; }
.stats dd { margin: 0; font-size: 24px; font-weight: 640; letter-spacing: -.02em; line-height: 1.2;
  font-variant-numeric: tabular-nums; }
.stats dt { overflow-wrap: anywhere; font-size: 13px; line-height: 1.35; color: var(--quiet); }
.stats > div { display: flex; flex-direction: column-reverse; justify-content: flex-end; }

.set { margin: 26px 0 12px; font-size: 13.5px; line-height: 1.4; color: var(--quiet); max-width: 60ch; }

figure { border-radius: 12px; padding: 16px 16px 8px; }
figcaption { font-size: 14.5px; font-weight: 620; margin-bottom: 6px; }
figcaption small { font-size: 13px; line-height: 1.4; margin-top: 1px; }
.plots { gap: 20px; margin-top: 14px; }
.plot text { font-size: 12px; font-variant-numeric: tabular-nums; }
.plot .axes path { stroke-width: 1; opacity: .75; }
.plot .axes .one { stroke: var(--text); stroke-dasharray: none; opacity: .55; }
.plot .word { font-size: 11.5px; fill: var(--quiet); paint-order: stroke; stroke: var(--panel); stroke-width: 4px; }
.plot .axes .middle { stroke: var(--text); stroke-width: 2; opacity: .9; }
.plot .lane { fill: var(--text); font-weight: 600; }
.plot .link { stroke: var(--quiet); opacity: .35; fill: none; }
.plot .bar { fill: var(--ours); opacity: .85; }
.mark { stroke-width: 1.3; fill-opacity: .72; transition: opacity .15s; }
.mark.generated { fill-opacity: .14; }
.mark.hollow { fill-opacity: 0; stroke-opacity: .55; }
a:hover > .mark { stroke: var(--text); stroke-width: 2; }
.ours-line { stroke: var(--ours); }
.plot .curve { stroke-width: 1.8; stroke-linejoin: round; }
.plot .curve.ours-line { stroke-width: 3.2; }
.rule.ours-line { border-color: var(--ours); }
.rule.regular { border-color: var(--regular); } .rule.block { border-color: var(--block); }
.rule.random { border-color: var(--random); } .rule.skewed { border-color: var(--skewed); }
.rule.extreme { border-color: var(--extreme); } .rule.dash1 { border-top-style: dashed; }
.rule.dash2 { border-top-style: dotted; } .rule.dash3 { border-top-style: double; }
.groups td:last-child { max-width: 240px; overflow: hidden; text-overflow: ellipsis; }
.groups [scope=colgroup] { text-align: center; border-left: 1px solid var(--line); }
.headline > * { background: var(--tint); }
.faint { opacity: .35; }
.dash1 { stroke-dasharray: 7 3; } .dash2 { stroke-dasharray: 2 3; } .dash3 { stroke-dasharray: 9 3 2 3; }
.legend { max-width: none; margin: 6px 0 10px; font-size: 13px; gap: 4px 14px; }

.tools { display: flex; flex-wrap: wrap; gap: 10px; align-items: center; margin: 12px 0; }
.chip { display: inline-flex; align-items: center; gap: 4px; border: 1px solid var(--line); border-radius: 99px;
  padding: 4px 12px 4px 8px; background: var(--panel); }
.chip:hover { color: var(--text); border-color: var(--quiet); }
.chip[aria-pressed=true] { background: var(--tint); color: var(--text); border-color: var(--ours); }
input[type=search] { font-size: 14px; padding: 7px 12px; width: min(280px, 100%); margin: 0; border-radius: 9px; }
.scroll { border-radius: 12px; }
table { font-size: 13.5px; }
th, td { padding: 8px 12px; }
tbody th { font-weight: inherit; }
thead th { background: var(--panel); color: var(--quiet); font-size: 12.5px; font-weight: 560;
  border-bottom: 1px solid var(--line); }
.tall { max-height: 82vh; }
.tall > table > thead tr:first-child th { height: auto; text-align: left; border-bottom: 0; padding: 10px 12px;
  box-shadow: 0 1px 0 var(--line); white-space: nowrap; }
.tall > table > thead tr:first-child th.number { text-align: right; white-space: nowrap; }
th button { position: relative; }
th button::after { content: "↓" !important; position: absolute; left: 100%; padding-left: 2px; opacity: 0 !important; }
th.number button::after { left: auto; right: 100%; padding: 0 2px 0 0; }
th button:hover::after, th button:focus-visible::after { opacity: .45 !important; }
th[aria-sort] button::after { opacity: 1 !important; }
th[aria-sort=ascending] button::after { content: "↑" !important; }
.matrices tbody tr { cursor: pointer; }
.matrices tbody tr:hover > * { background: var(--soft); }
.matrices tbody th { position: sticky; left: 0; background: var(--panel); font-weight: 560; max-width: 250px;
  overflow: hidden; text-overflow: ellipsis; }
.matrices tbody th a { color: inherit; text-decoration: none; }
.matrices tbody th a:hover, .matrices tbody th a:focus-visible { color: var(--ours); text-decoration: underline; }
.matrices thead th:first-child { left: 0; z-index: 2; }
.matrices .key { margin: 0 5px 0 0; }
th button { font-weight: inherit; }
th[aria-sort] button { color: var(--text); }
.gain b { display: inline-block; min-width: 4em; }
.gain i { display: inline-block; height: 8px; border-radius: 2px; background: var(--ours); opacity: .8;
  width: calc(var(--share) * 64px); print-color-adjust: exact; -webkit-print-color-adjust: exact; }
.gain.lost i { background: var(--miss); }
.gain small { white-space: nowrap; }
.spread { display: inline-block; width: 64px; text-align: right; }
.matrices td:has(> code) { max-width: 230px; overflow: hidden; text-overflow: ellipsis; }
td code { font-size: 12px; color: var(--quiet); }
.count { color: var(--quiet); font-size: 13px; margin-left: auto; }
"""

STYLE = BASE + OWN + VIEW


def hidden_modes(modes: list[str]) -> str:
    """Rules that show one mode at a time: the one that a problem's `data-mode` names."""
    others = {mode: ", ".join(f".in-{other}" for other in modes if other != mode) for mode in modes}
    return "".join(
        f".problem[data-mode={mode}] :is({hidden}){{display:none}}" for mode, hidden in others.items() if hidden
    )


def only_classes(names: list[str]) -> str:
    """Rules that pick out the structure class that `<body data-only>` names: marks fade, rows go."""
    return "".join(
        f"body[data-only={name}] .mark:not(.{name}){{opacity:.1}}"
        f"body[data-only={name}] .matrices tbody tr:not([data-class={name}]){{display:none}}"
        for name in names
    )


def all_at_once(modes: list[str]) -> str:
    """Rules for a browser without scripts: every problem and every mode, one below the other."""
    shown = ", ".join(f".in-{mode}" for mode in modes)
    return f".problem[hidden]{{display:block}}.problem[data-mode] :is({shown}){{display:revert}}"
