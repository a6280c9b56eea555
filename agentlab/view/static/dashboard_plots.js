// The curves of the dashboard: numbers that were sent become paths, cells and words.
import {make, shape} from './helpers.js';

export const PARTS = 8; // pieces in which a curve travels
const W = 1000; // of a pane, in its own units
const H = 400;
const DASHES = ['', '', '4 3'];

export const nearest = (points, x) => points.reduce((a, b) => (Math.abs(b[0] - x) < Math.abs(a[0] - x) ? b : a));

// A line with a gap where nothing was measured; as dots: every point by itself.
export const pathOf = (points, px, py, dots) => {
  let d = '';
  let open = false;
  for (const [x, y] of points) {
    if (y !== null) d += open && !dots ? `L${px(x)},${py(y)}` : `M${px(x)},${py(y)}h0`;
    open = y !== null;
  }
  return d;
};

// Update and value to places in the pane.
export const scales = (pane, ends) => {
  const logOf = v => (v > 0 ? Math.max(pane.low, Math.log10(v)) : pane.low);
  const bent = pane.log ? logOf : v => v;
  const px = v => +((W * (v - ends[0])) / (ends[1] - ends[0])).toFixed(1);
  return [px, v => +(H * (1 - (bent(v) - pane.low) / (pane.high - pane.low))).toFixed(1)];
};

// The table of entropies: one path for every strength of colour, {level from 0 to 20: path}.
export const cellsOf = (pane, columns, px) => {
  const high = H / pane.turns;
  const levels = new Map();
  const middle = j => (px(columns[j - 1][0]) + px(columns[j][0])) / 2;
  columns.forEach(([, values], j) => {
    const left = j ? middle(j) : 0;
    const wide = (j + 1 < columns.length ? middle(j + 1) : W) - left;
    values.forEach((value, t) => {
      if (value === null) return;
      const level = Math.max(0, Math.min(20, Math.round((20 * value) / pane.top)));
      const [x, y, w, h] = [left, H - (t + 1) * high, wide, high].map(size => size.toFixed(1));
      levels.set(level, `${levels.get(level) ?? ''}M${x},${y}h${w}v${h}h-${w}z`);
    });
  });
  return levels;
};

export const drawTable = (pane, columns, px, svg) => {
  for (const [level, d] of cellsOf(pane, columns, px))
    svg.append(shape('path', {d, class: 'al-db-cell', 'fill-opacity': 0.04 + 0.048 * level}));
};

const markOf = (run, left, top) => {
  const svg = shape('svg', {viewBox: '-5 -5 10 10', class: 'al-db-mark', 'aria-hidden': 'true'});
  svg.style.left = `${left}%`;
  svg.style.top = `${top}%`;
  svg.append(shape('path', {d: run.mark, fill: run.colour}));
  return svg;
};

// One run has dots where its points are few, several have marks of their own.
export const drawLine = (run, kind, points, known, [px, py], several, svg, box) => {
  const look = {stroke: run.colour, 'stroke-dasharray': run.dash || DASHES[kind]};
  svg.append(shape('path', {d: pathOf(points, px, py), class: `al-db-line al-db-kind${kind}`, ...look}));
  if (!several && known.length <= 60)
    svg.append(shape('path', {d: pathOf(points, px, py, true), class: 'al-db-dots', stroke: run.colour}));
  const every = Math.max(1, Math.ceil(known.length / 9));
  const kept = several && !kind ? known.filter((_, j) => j % every === 0) : [];
  box.append(...kept.map(([x, y]) => markOf(run, (100 * px(x)) / W, (100 * py(y)) / H)));
};

export const frameOf = (pane, head) => {
  const svg = shape('svg', {viewBox: `0 0 ${W} ${H}`, preserveAspectRatio: 'none', 'aria-hidden': 'true'});
  const box = make('div', {class: 'al-db-box'}, svg);
  const lines = pane.ticks.map(([place]) => `M0,${H * (1 - place)}H${W}`).join('');
  if (!pane.turns) svg.append(shape('path', {d: lines, class: 'al-db-grid'}));
  const left = place => `left:${100 * place}%`;
  const top = place => `top:${100 * (1 - place)}%`;
  const high = pane.ticks.map(([place, text]) => make('i', {class: 'al-db-y', style: top(place)}, text));
  const wide = head.ticks.map(([place, text]) => make('i', {class: 'al-db-x', style: left(place)}, text));
  box.append(...high, ...wide, make('i', {class: 'al-db-x al-db-label'}, 'update'));
  return [svg, box];
};

// What the lines of a pane are called, where it has several.
const sampleOf = ([, label], kind) => {
  const line = shape('svg', {viewBox: '0 0 20 6', class: 'al-db-sample', 'aria-hidden': 'true'});
  const look = {stroke: 'currentColor', 'stroke-dasharray': DASHES[kind]};
  line.append(shape('path', {d: 'M0,3H20', class: `al-db-line al-db-kind${kind}`, ...look}));
  return make('span', {}, line, label);
};

export const keyOf = pane => (pane.lines.length < 2 ? [] : pane.lines.map(sampleOf));

// A column of the table in words: the turn that is pointed at, else the first and the last.
export const tableWords = (values, turn, show) => {
  const last = values.findLastIndex(value => value !== null);
  const one = t => `turn ${t}: ${values[t] === null ? '\u2013' : show(values[t])}`;
  if (last < 0) return '\u2013';
  if (turn !== null) return one(Math.min(turn, values.length - 1));
  return last ? `${one(0)}, ${one(last)}` : one(0);
};
