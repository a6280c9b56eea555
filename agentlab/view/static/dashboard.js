// The dashboard in the browser: the panes, and the numbers of one update under the pointer or the arrow keys.

import {drawLine, drawTable, frameOf, keyOf, nearest, PARTS, scales, tableWords} from './dashboard_plots.js';
import {make, minus, put} from './helpers.js';

// The parts of a run, one after the other. A part in which a metric is missing is a gap.
const GAP = [[0, null]];
const lineOf = (line, metric) => (line[metric].length ? line[metric] : GAP);
export const joined = (parts, metric) => parts.flatMap(({lines}) => (lines ? lineOf(lines, metric) : []));

const columnsOf = ({steps, table}) => (steps ?? []).map((step, j) => [step, table.map(line => line[j] ?? null)]);
export const columns = parts => parts.flatMap(columnsOf);

// A pane in words: the last numbers, or those of the update `at`.
export const wordsOf = ({pane, found}, at, turn) => {
  if (!found.length) return '';
  const points = found.map(({label, points}) => [label, at === null ? points.at(-1) : nearest(points, at)]);
  const show = v => minus(at === null ? +v.toPrecision(4) : v);
  const value = ([label, [, y]]) => (pane.turns ? tableWords(y, turn, show) : `${label} ${show(y)}`.trim());
  return `${at === null ? '' : `update ${points[0][1][0]}: `}${points.map(value).join(', ')}`;
};

// Where a key leads from the update `at`: an update, null for none, undefined for a key that is not ours.
export const aimOf = (key, at, points) => {
  const steps = [...new Set(points.map(point => point[0]))].sort((a, b) => a - b);
  if (!steps.length) return undefined;
  const now = at === null ? steps.length : steps.indexOf(nearest(points, at)[0]);
  const next = {ArrowLeft: now - 1, ArrowRight: now + 1, Home: 0, End: steps.length - 1, Escape: null}[key];
  return Number.isInteger(next) ? steps[Math.max(0, Math.min(steps.length - 1, next))] : next;
};

const inside = v => Math.max(0, Math.min(1, v));

function render({model, el}) {
  const panes = make('div', {class: 'al-db-panes'});
  const heard = make('p', {class: 'al-db-heard', 'aria-live': 'polite'});
  const root = make(
    'div',
    {
      class: 'al-db al-db-live',
      role: 'group',
      tabindex: 0,
      'data-lm-suppress-shortcuts': 'true',
      'aria-label': 'curves over the updates; the arrow keys read one update after the other'
    },
    panes,
    heard
  );
  let drawn = [];
  let at = null;
  let turn = null;
  let waiting = false;

  // One pane: its frame, its lines, and where its numbers are read.
  const parts = run => Array.from({length: PARTS}, (_, k) => (model.get(`part${k}`) ?? [])[run] ?? {});
  const fill = (pane, head, svg, box) => {
    const both = scales(pane, head.ends);
    const several = head.runs.length > 1;
    if (pane.turns) {
      const points = columns(parts(0));
      drawTable(pane, points, both[0], svg);
      return [{label: '', points}];
    }
    const found = [];
    const line = (run, i, [metric, label], kind) => {
      const points = joined(parts(i), metric);
      const known = points.filter(point => point[1] !== null);
      if (!known.length) return;
      drawLine(run, kind, points, known, both, several, svg, box);
      found.push({label: [several ? `${i + 1}` : '', label].filter(Boolean).join(' '), points: known});
    };
    head.runs.forEach((run, i) => {
      pane.lines.forEach((one, kind) => {
        if (run.shown) line(run, i, one, kind);
      });
    });
    return found;
  };
  const paneOf = (pane, head) => {
    const [svg, box] = frameOf(pane, head);
    const out = make('b');
    const cursor = make('i', {class: 'al-db-cursor', hidden: true});
    const found = pane.empty ? [] : fill(pane, head, svg, box);
    box.append(cursor);
    if (pane.empty) box.append(make('span', {class: 'al-db-none'}, 'not recorded'));
    drawn.push({pane, head, box, out, cursor, found});
    return make(
      'figure',
      {
        class: `al-db-pane${found.length > 1 ? ' al-db-many' : ''}`,
        'data-name': pane.name,
        'aria-label': `${pane.heading}, ${pane.unit}`
      },
      make('figcaption', {}, make('span', {}, pane.heading), out),
      make('div', {class: 'al-db-unit'}, pane.unit, ...keyOf(pane)),
      box
    );
  };

  const read = () => {
    for (const one of drawn) {
      const words = wordsOf(one, at, turn);
      put(one.out, words);
      one.out.title = words;
      one.cursor.hidden = at === null || !one.found.length;
      if (one.cursor.hidden) continue;
      const [low, high] = one.head.ends;
      const [step] = nearest(one.found[0].points, at);
      one.cursor.style.left = `${(100 * (step - low)) / (high - low)}%`;
    }
  };
  const draw = () => {
    const head = model.get('head') ?? {};
    waiting = false;
    drawn = [];
    const note = head.note ? [make('p', {class: 'al-db-note'}, head.note)] : [];
    panes.replaceChildren(...(head.panes ?? []).map(pane => paneOf(pane, head)), ...note);
    read();
    model.send({drawn: head.frame});
  };
  const later = () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(draw);
  };

  panes.addEventListener('pointermove', event => {
    const one = drawn.find(({box}) => box.contains(event.target));
    if (!one) return;
    const edges = one.box.getBoundingClientRect();
    const [low, high] = one.head.ends;
    at = low + (high - low) * inside((event.clientX - edges.left) / edges.width);
    const up = 0.999 * inside(1 - (event.clientY - edges.top) / edges.height);
    turn = one.pane.turns ? Math.floor(one.pane.turns * up) : null;
    read();
  });
  panes.addEventListener('pointerleave', () => {
    at = null;
    turn = null;
    read();
  });
  root.addEventListener('keydown', event => {
    const points = drawn.flatMap(one => one.found).flatMap(line => line.points);
    const next = aimOf(event.key, at, points);
    if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation();
    turn = null;
    at = next;
    read();
    const said = drawn.filter(one => one.found.length);
    put(heard, said.map(one => `${one.pane.heading} ${wordsOf(one, at, turn)}`).join('; '));
  });

  const names = ['head', ...Array.from({length: PARTS}, (_, k) => `part${k}`)];
  for (const name of names) model.on(`change:${name}`, later);
  el.append(root);
  draw();
  return () => {
    for (const name of names) model.off(`change:${name}`, later);
  };
}

export default {render};
