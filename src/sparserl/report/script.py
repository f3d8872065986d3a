"""The script of the report: switches, sorting, filters, the view of one matrix with its own address, tool tips.

It makes no request and keeps nothing. What it opens was escaped when the page was made.
"""

SCRIPT = r"""
'use strict';
const all = (what, where = document) => [...where.querySelectorAll(what)];
const body = document.body, dialog = document.querySelector('dialog'), tip = document.getElementById('tip');
const views = new Map(all('script[data-matrix]').map((each) => [each.dataset.matrix, each]));
let problem = 0;

// one problem at a time, in one mode at a time: the chosen one, where the problem was measured in it
const press = (group, value) => all(`[data-${group}-switch]`).forEach((button) => {
  button.setAttribute('aria-pressed', String(button.dataset[`${group}Switch`] === String(value)));
});
let mode = document.querySelector('.problem')?.dataset.mode;
const showMode = () => all('.problem').forEach((section, i) => {
  const there = section.dataset.modes.split(' '), shown = there.includes(mode) ? mode : there[0];
  section.dataset.mode = shown;
  if (i !== problem) return;
  press('mode', shown);
  all('[data-mode-switch]').forEach((button) => { button.hidden = !there.includes(button.dataset.modeSwitch); });
});
const showProblem = (at) => {
  problem = Number(at);
  all('.problem').forEach((section, i) => { section.hidden = i !== problem; });
  all('dialog .part').forEach((part) => { part.hidden = Number(part.dataset.part) !== problem; });
  press('problem', problem);
  showMode();
};
document.addEventListener('click', (event) => {
  const button = event.target.closest('[data-problem-switch], [data-mode-switch]');
  if (!button) return;
  if ('problemSwitch' in button.dataset) showProblem(button.dataset.problemSwitch);
  else { mode = button.dataset.modeSwitch; showMode(); }
});

// tables
const keyOf = (row, at) => row.cells[at].dataset.value ?? row.cells[at].textContent.trim().toLowerCase();
const sortBy = (head) => {
  const table = head.closest('table'), rows = table.tBodies[0], at = head.cellIndex;
  const numbers = head.classList.contains('number'), before = head.getAttribute('aria-sort');
  const up = before ? before === 'descending' : !numbers;  // numbers begin with the largest, words with the first
  all('th[aria-sort]', table).forEach((other) => other.removeAttribute('aria-sort'));
  head.setAttribute('aria-sort', up ? 'ascending' : 'descending');
  const compare = (a, b) => {
    const [x, y] = [keyOf(a, at), keyOf(b, at)];
    if (!numbers) return (up ? 1 : -1) * x.localeCompare(y, 'en', { numeric: true });
    if (x === '' || y === '') return (x === '') - (y === '');  // what is missing stays at the end
    return (up ? 1 : -1) * (parseFloat(x) - parseFloat(y));
  };
  rows.append(...[...rows.rows].sort(compare));
};
all('th button').forEach((button) => button.addEventListener('click', () => sortBy(button.closest('th'))));
const passes = (row) => !row.hidden && (!body.dataset.only || row.dataset.class === body.dataset.only);
const tell = () => all('.count').forEach((count) => {
  const rows = all(`#${count.dataset.of} tbody tr`), shown = rows.filter(passes);
  count.textContent = shown.length === rows.length ? `${rows.length} matrices` : `${shown.length} of ${rows.length}`;
});
all('input[type=search]').forEach((box) => box.addEventListener('input', () => {
  const words = box.value.toLowerCase().split(/\s+/);
  for (const row of document.getElementById(box.getAttribute('aria-controls')).tBodies[0].rows) {
    row.hidden = !words.every((word) => row.textContent.toLowerCase().includes(word));
  }
  tell();
}));
all('.chip').forEach((chip) => chip.addEventListener('click', () => {
  const off = body.dataset.only === chip.dataset.only;
  if (off) delete body.dataset.only; else body.dataset.only = chip.dataset.only;
  all('.chip').forEach((each) => {
    each.setAttribute('aria-pressed', String(!off && each.dataset.only === chip.dataset.only));
  });
  tell();
}));
all('.matrices tbody tr').forEach((row) => row.addEventListener('click', (event) => {
  if (!event.target.closest('a') && !String(getSelection())) location.hash = row.querySelector('a').hash;
}));

// one matrix
const wanted = () => {
  try { return decodeURIComponent(location.hash.slice(1)); } catch { return ''; }
};
const unpack = (text) => {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream('deflate'))).text();
};
const open = async () => {
  const name = wanted(), view = views.get(name);
  if (!view) { if (dialog.open) dialog.close(); return; }
  const inside = await unpack(view.textContent);
  if (wanted() !== name) return;  // another one was chosen meanwhile
  dialog.querySelector('h2').textContent = name;
  dialog.querySelector('.inner').innerHTML = inside;
  const parts = all('.part', dialog);
  if (parts.length && !parts.some((part) => Number(part.dataset.part) === problem)) showProblem(parts[0].dataset.part);
  else showProblem(problem);
  dialog.scrollTop = 0;
  if (!dialog.open) dialog.showModal();
};
const step = (by) => {
  const section = all('.problem')[problem];
  const names = all('.matrices tbody tr', section).filter(passes).map((row) => row.dataset.name);
  const at = names.indexOf(wanted());  // -1 where a filter hides the one that is open
  const next = at < 0 && by < 0 ? names.length - 1 : (at + by + names.length) % names.length;
  if (names.length) location.hash = '#' + encodeURIComponent(names[next]);
};
if (dialog) {
  addEventListener('hashchange', open);
  dialog.addEventListener('close', () => {
    if (views.has(wanted())) history.replaceState(null, '', location.pathname + location.search);
  });
  dialog.addEventListener('click', (event) => {
    if (event.target === dialog || event.target.closest('[data-close]')) dialog.close();
    const move = event.target.closest('[data-step]');
    if (move) step(Number(move.dataset.step));
  });
}
document.addEventListener('click', async (event) => {
  const copy = event.target.closest('.copy');
  if (!copy) return;
  const source = copy.parentElement.querySelector('pre');
  try {
    await navigator.clipboard.writeText(source.textContent);
    copy.textContent = 'Copied';
  } catch { getSelection().selectAllChildren(source); }
});

// the words of a mark
document.addEventListener('pointerover', (event) => {
  const mark = event.target.closest?.('svg.plot .mark, svg.plot .curve, svg.plot .bar');
  tip.hidden = !mark;
  if (!mark) return;
  const title = mark.querySelector('title');
  if (title) { mark.dataset.words = title.textContent; title.remove(); }
  tip.textContent = mark.dataset.words;
  (mark.closest('dialog') ?? body).append(tip);  // a dialog lies above everything else
  const box = mark.getBoundingClientRect(), wide = mark.classList.contains('curve');
  const x = wide ? event.clientX : box.x + box.width / 2, y = wide ? event.clientY : box.y;
  tip.style.left = `${Math.max(8, Math.min(x - tip.offsetWidth / 2, innerWidth - tip.offsetWidth - 8))}px`;
  tip.style.top = `${y - tip.offsetHeight - 8 < 4 ? y + 18 : y - tip.offsetHeight - 8}px`;
});

showProblem(0);
tell();
if (dialog) open();
"""
