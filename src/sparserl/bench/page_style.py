"""The style sheet and the script of the page, both small and without outside help."""

from __future__ import annotations

STYLE = """
:root {
  color-scheme: light dark; --ground: #fcfcfb; --panel: #ffffff; --soft: #f3f2ee; --line: #e1e0d9;
  --text: #1a1a19; --quiet: #5c5b55; --accent: #2a5fb0; --pass: #1a7f37; --miss: #c5303a; --open: #8a6d00;
  --small: #2a78d6; --regular: #12835b; --block: #b87900; --random: #b0368a; --skewed: #5b46c4; --extreme: #d03b3b;
  --solver: #2a78d6; --chain: #d9541e; --plain: #8b8a83;
}
@media (prefers-color-scheme: dark) { :root {
  --ground: #141413; --panel: #1c1c1a; --soft: #262623; --line: #383835;
  --text: #f0efea; --quiet: #b0aea5; --accent: #86b6ef; --pass: #4ac26b; --miss: #ff7b72; --open: #d9a900;
  --small: #5598e7; --regular: #2fb583; --block: #dd9b1a; --random: #e06fbb; --skewed: #a096f0; --extreme: #f0716f;
  --solver: #5598e7; --chain: #f0824f; --plain: #9a998f;
} }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--text); font: 15px/1.5 system-ui, "Segoe UI", sans-serif; }
main, header, footer { max-width: 1340px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 28px; }
footer { padding-bottom: 48px; }
h1 { font-size: 28px; line-height: 1.2; margin: 0 0 6px; }
h2 { font-size: 21px; margin: 44px 0 6px; }
h3 { font-size: 15px; margin: 26px 0 6px; }
p { max-width: 115ch; margin: 6px 0; }
a { color: var(--accent); }
nav a { margin-right: 18px; }
.quiet { color: var(--quiet); }
code, pre { font: 12.5px/1.45 ui-monospace, "DejaVu Sans Mono", monospace; }
pre { background: var(--soft); padding: 12px; overflow-x: auto; border-radius: 6px; margin: 6px 0 14px; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }

.tiles { display: flex; flex-wrap: wrap; gap: 12px; margin: 18px 0 6px; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 10px 16px; }
.tile b { display: block; font-size: 28px; line-height: 1.25; }
.tile span { color: var(--quiet); font-size: 13px; }

.scroll { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; background: var(--panel); }
.tall { max-height: 76vh; overflow-y: auto; }
table { border-collapse: collapse; width: 100%; font-size: 13px; font-variant-numeric: tabular-nums; }
th, td { padding: 5px 9px; text-align: left; border-bottom: 1px solid var(--line); white-space: nowrap; }
tbody:last-child tr:last-child > * { border-bottom: 0; }
td.wrap, th.wrap { white-space: normal; min-width: 240px; }
thead th { background: var(--soft); font-weight: 600; vertical-align: bottom; }
.tall > table > thead th { position: sticky; top: 0; z-index: 1; padding: 5px 7px; }
.tall > table > thead th.number { white-space: normal; }
.tall > table > thead tr + tr th { top: 28px; }
.tall > table > thead tr:first-child th { height: 28px; text-align: center; border-bottom: 0; color: var(--quiet); }
.matrix > td { padding: 4px 7px; }
th.part { background: var(--soft); }
.number { text-align: right; }
th button, td button {
  font: inherit; color: inherit; background: none; border: 0; padding: 0; cursor: pointer; text-align: inherit;
}
th button { font-weight: 600; }
th button::after { content: " ↕"; opacity: .35; }
th[aria-sort=ascending] button::after { content: " ↑"; opacity: 1; }
th[aria-sort=descending] button::after { content: " ↓"; opacity: 1; }
td button { color: var(--accent); }
td button::before { content: "▸ "; }
td button[aria-expanded=true]::before { content: "▾ "; }
tr:target > * { background: var(--soft); }
tr.matrix { cursor: pointer; scroll-margin-top: 60px; }
tr.matrix:hover > * { background: var(--soft); }
tr.detail > td { white-space: normal; background: var(--ground); padding: 0; }
.inside { position: sticky; left: 0; padding: 12px 18px; max-width: min(1290px, 100vw - 50px); }
.inside h4 { margin: 14px 0 4px; font-size: 13px; }
.inside pre { max-height: 460px; }
input[type=search] {
  font: inherit; font-size: 13px; padding: 4px 8px; width: 260px; margin: 4px 0 8px; color: inherit;
  background: var(--panel); border: 1px solid var(--line); border-radius: 6px;
}

.verdict { font-weight: 600; }
.verdict.pass, .good { color: var(--pass); }
.verdict.miss, .bad { color: var(--miss); }
.verdict.open { color: var(--open); }
.bullet { width: 120px; height: 14px; display: block; }
.bullet .track { fill: var(--soft); }
.bullet .pass { fill: var(--pass); }
.bullet .miss { fill: var(--miss); }
.bullet .goal { stroke: var(--text); stroke-width: 1.5; }

.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 16px; }
figure { margin: 0; background: var(--panel); border: 1px solid var(--line); border-radius: 8px; padding: 12px; }
figcaption { font-size: 13px; font-weight: 600; }
figcaption small { display: block; font-weight: 400; color: var(--quiet); }
.plot { width: 100%; height: auto; display: block; }
.plot text { font-size: 11.5px; fill: var(--quiet); }
.plot .power { font-size: 8.5px; }
.plot .x, .plot .none { text-anchor: middle; }
.plot .y { text-anchor: end; }
.plot .axes path { stroke: var(--line); fill: none; }
.plot .axes .one { stroke: var(--quiet); stroke-dasharray: 4 3; }
.mark { stroke-width: 1.4; fill-opacity: .8; }
.mark.generated { fill-opacity: .12; }
.plot .mark:hover { stroke: var(--text); }
.curve { stroke-width: 2; }
.small { fill: var(--small); stroke: var(--small); }
.regular { fill: var(--regular); stroke: var(--regular); }
.block { fill: var(--block); stroke: var(--block); }
.random { fill: var(--random); stroke: var(--random); }
.skewed { fill: var(--skewed); stroke: var(--skewed); }
.extreme { fill: var(--extreme); stroke: var(--extreme); }
.solver { fill: var(--solver); stroke: var(--solver); border-color: var(--solver); }
.chain { fill: var(--chain); stroke: var(--chain); border-color: var(--chain); }
.plain { fill: var(--plain); stroke: var(--plain); border-color: var(--plain); }
.plot .curve { fill: none; }
.legend { display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 13px; color: var(--quiet); margin: 8px 0; }
.key { width: 14px; height: 14px; vertical-align: -2px; margin-right: 4px; }
.rule { display: inline-block; width: 18px; border-style: solid; border-width: 3px 0 0; vertical-align: 4px; }
.rule { margin-right: 5px; }
"""

SCRIPT = """
'use strict';
const data = JSON.parse(document.getElementById('records').textContent);
const make = (tag, text, look) => {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (look) made.className = look;
  return made;
};
const tableOf = (head, rows, words) => {  // the first `words` columns hold words, the others numbers
  const table = make('table'), top = table.createTHead().insertRow(), body = table.createTBody();
  head.forEach((name, i) => {
    const cell = make('th', name, i < words ? '' : 'number');
    cell.scope = 'col';
    top.append(cell);
  });
  for (const cells of rows) {
    const row = body.insertRow();
    cells.forEach((text, i) => row.append(make('td', text, i >= words ? 'number' : i < 2 ? 'wrap' : '')));
  }
  const box = make('div', undefined, 'scroll');
  box.append(table);
  return box;
};
const detailOf = (record) => {
  const box = make('div', undefined, 'inside');
  box.append(make('p', record.about, 'quiet'));
  box.append(make('h4', 'Programs of the race'), tableOf(data.program_head, record.programs, 3));
  box.append(make('h4', 'cuSPARSE'), tableOf(data.baseline_head, record.baselines, 1));
  for (const [title, text] of record.sources) {
    box.append(make('h4', title));
    const source = make('pre', data.texts[text]);
    source.tabIndex = 0;
    box.append(source);
  }
  return box;
};
const toggle = (row) => {
  const button = row.querySelector('button'), open = button.getAttribute('aria-expanded') === 'true';
  button.setAttribute('aria-expanded', String(!open));
  if (open) { row.nextElementSibling.remove(); return; }
  const detail = make('tr', undefined, 'detail'), cell = make('td');
  cell.colSpan = row.cells.length;
  cell.append(detailOf(data.records[row.id]));
  detail.append(cell);
  row.after(detail);
};
const closeAll = (body) => {
  body.querySelectorAll('button[aria-expanded=true]').forEach((button) => toggle(button.closest('tr')));
};
const sortBy = (head) => {
  const table = head.closest('table'), body = table.tBodies[0], at = head.cellIndex;
  const before = head.getAttribute('aria-sort');  // numbers begin with the largest, words with the first
  const up = before ? before === 'descending' : !head.classList.contains('number');
  closeAll(body);
  table.querySelectorAll('th[aria-sort]').forEach((other) => other.removeAttribute('aria-sort'));
  head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  const key = (row) => row.cells[at].dataset.value ?? row.cells[at].textContent.toLowerCase();
  const compare = head.classList.contains('number')
    ? (a, b) => parseFloat(key(a)) - parseFloat(key(b))
    : (a, b) => key(a).localeCompare(key(b));
  body.append(...[...body.rows].sort((a, b) => (up ? 1 : -1) * compare(a, b)));
};
document.querySelectorAll('th button').forEach((button) => {
  button.addEventListener('click', () => sortBy(button.closest('th')));
});
document.querySelectorAll('tr.matrix').forEach((row) => row.addEventListener('click', () => {
  if (!String(getSelection())) toggle(row);
}));
document.querySelectorAll('input[type=search]').forEach((box) => box.addEventListener('input', () => {
  const body = document.getElementById(box.getAttribute('aria-controls')).tBodies[0];
  closeAll(body);
  const words = box.value.toLowerCase().split(/\\s+/);
  for (const row of body.rows) row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
}));
"""
