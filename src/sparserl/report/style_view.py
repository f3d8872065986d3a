"""The style sheet of the report, second part: the view of one matrix, source, print and phone."""

from __future__ import annotations

VIEW = """
dialog { width: min(980px, 100vw); height: 100dvh; max-height: none; max-width: none; margin: 0 0 0 auto; border: 0;
  padding: 0; background: var(--ground); color: var(--text); box-shadow: var(--shadow); overflow-y: auto;
  overscroll-behavior: contain; }
dialog::backdrop { background: #0007; }
dialog[open] { animation: slide .18s ease-out; }
@keyframes slide { from { transform: translateX(24px); opacity: 0; } }
.view-head { position: sticky; top: 0; z-index: 2; display: flex; gap: 10px; align-items: center; padding: 14px 28px;
  background: var(--ground); border-bottom: 1px solid var(--line); }
.view-head h2 { flex: 1; min-width: 0; overflow: hidden; text-overflow: ellipsis; white-space: nowrap; margin: 0;
  font-size: 21px; }
.step { font-size: 17px; width: 36px; height: 36px; border-radius: 9px; background: var(--soft); }
.step:hover { color: var(--text); }
.inner { padding: 20px 28px 60px; }
.inner .switch { margin-top: 22px; }
.part h3 { margin-top: 26px; }
.pictures { display: grid; grid-template-columns: minmax(0, 260px) minmax(0, 1fr); gap: 16px; }
.pictures .plot { max-height: 240px; }
.grid { width: 100%; max-width: 320px; height: auto; display: block; background: var(--soft); border-radius: 4px;
  margin-bottom: 8px; }
.grid path { stroke: var(--ours); stroke-width: 1; }
.shade1 { opacity: .22; } .shade2 { opacity: .4; } .shade3 { opacity: .6; } .shade4 { opacity: .8; }
.facts { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 12px 20px;
  margin: 18px 0 0; }
.facts dt { font-size: 12.5px; color: var(--quiet); }
.facts dd { margin: 0; font-weight: 560; font-variant-numeric: tabular-nums; }
.numbers { display: flex; flex-wrap: wrap; gap: 14px 34px; margin: 14px 0 4px; }
.numbers b { font-size: 32px; letter-spacing: -.03em; line-height: 1.15; font-weight: 680; }
.numbers span { display: block; font-size: 13px; color: var(--quiet); }
.numbers .modelled { display: inline-block; margin-left: 6px; color: var(--note); font-size: 11px; }
.sides .timed { background: linear-gradient(var(--soft), var(--soft)) 100% 50% / var(--share) 68% no-repeat; }
.ours > * { font-weight: 640; }
.sides .ours .timed { background-image: linear-gradient(var(--tint), var(--tint)); }
td small, tbody th small { display: block; white-space: normal; font-weight: 400; }
td.wrap small, tbody th small { color: var(--quiet); }
td.how { white-space: normal; min-width: 150px; font-weight: 400; }
.candidates td.wrap { min-width: 130px; }
.candidates td:first-child { min-width: 200px; white-space: normal; }
.crown { font: 600 11px/1.5 system-ui, sans-serif; margin-left: 8px; padding: 1px 8px; border-radius: 99px;
  background: var(--tint); color: var(--ours); }
.code { position: relative; }
.code pre { padding: 18px 20px; border-radius: 12px; border: 1px solid var(--line); background: var(--panel);
  font-size: 12.5px; line-height: 1.6; tab-size: 4; margin: 0; }
.copy { position: absolute; top: 10px; right: 10px; padding: 4px 12px; border-radius: 8px; background: var(--soft); }
.copy:hover { color: var(--text); }
pre i { color: var(--quiet); font-style: italic; } pre b { color: var(--skewed); font-weight: 600; }
pre u { color: var(--regular); text-decoration: none; } pre s { color: var(--extreme); text-decoration: none; }
pre em { color: var(--ours); font-style: normal; font-weight: 600; }
#tip { position: fixed; z-index: 20; pointer-events: none; max-width: 300px; padding: 7px 11px; border-radius: 8px;
  background: var(--text); color: var(--ground); font-size: 12.5px; line-height: 1.4; box-shadow: var(--shadow); }
#made { margin-top: 72px; padding-top: 28px; padding-bottom: 64px; border-top: 1px solid var(--line);
  font-size: 14.5px; }
#made dl { display: grid; grid-template-columns: max-content 1fr; gap: 4px 20px; }
#made dt { color: var(--quiet); } #made dd { margin: 0; overflow-wrap: anywhere; }
details > summary { cursor: pointer; font-weight: 640; margin: 40px 0 8px; font-size: 17px; }
.sr { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); white-space: nowrap; }

@media (max-width: 860px) { .hero { grid-template-columns: minmax(0, 1fr); } .jump { display: none; } }
@media (max-width: 620px) {
  body { font-size: 15.5px; }
  main, header, footer { padding: 0 18px; }
  header { padding-top: 32px; }
  .lead { font-size: 16.5px; }
  .bar-of-switches > div { padding: 8px 18px; gap: 6px 8px; }
  .switch button { padding: 4px 11px; }
  .switch-name, .less { display: none; }
  .problem { padding-top: 28px; }
  figure { padding: 14px 10px 6px; border-radius: 10px; }
  .plot text, .plot .word { font-size: 16.5px; }
  .plot .lane, .plot .mean { font-size: 14.5px; }
  .stats { grid-template-columns: 1fr 1fr; }
  .tall { max-height: none; }
  th, td, .tall > table > thead tr:first-child th { padding: 8px 9px; }
  .matrices tbody th { max-width: 148px; }
  .gain i { width: calc(var(--share) * 34px); } .spread { width: 34px; }
  .view-head, .inner { padding-left: 18px; padding-right: 18px; }
  .pictures { grid-template-columns: minmax(0, 1fr); }
  .pictures .plot text { font-size: 14px; }
  #made dl { grid-template-columns: 1fr; gap: 0; } #made dd { margin-bottom: 8px; }
}
@media (prefers-reduced-motion: reduce) { *, ::backdrop { animation: none !important; transition: none !important;
  scroll-behavior: auto !important; } }
@media print {
  :root { color-scheme: light; --ground: #fff; --panel: #fff; --soft: #f3f2ee; --line: #d8d7d0; --text: #1a1a19;
    --quiet: #5c5b55; --ours: #0f62d6; --tint: #eaf1fc; --note: #8a5a00; --notetint: #fff4da; --raised: #fff; }
  body { font-size: 10.5pt; }
  .bar-of-switches, .tools, .copy, .step, #tip { display: none !important; }
  .problem[hidden] { display: block !important; }
  .problem + .problem { break-before: page; }
  figure, tr, .hero { break-inside: avoid; }
  .scroll { overflow: visible; border: 0; }
  .tall { max-height: none; }
  .matrices thead th, .matrices tbody th { position: static; }
  table { font-size: 7.5pt; } th, td, .tall > table > thead tr:first-child th { padding: 2px 4px; font-size: inherit;
    white-space: normal !important; }
  td.number { white-space: nowrap !important; } .matrices td:has(> code) { max-width: none; }
  .plots { grid-template-columns: 1fr 1fr; gap: 10px; } .legend, figcaption small { font-size: 7.5pt; }
  .problem { padding-top: 24px; }
  @page { margin: 12mm; }
  .spread { display: none; } td code { font-size: 6.5pt; }
  th button::after { content: none !important; }
  body:has(dialog[open]) > :not(dialog) { display: none; }
  dialog[open] { position: static; width: auto; height: auto; overflow: visible; box-shadow: none; }
  .grid path, .bar, .sides .timed { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
}
"""
