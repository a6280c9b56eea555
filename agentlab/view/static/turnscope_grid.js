import {keyed, make, put, tint} from './helpers.js';

// Pixels: width of the names, height of the head and of a row. ROWS and COLUMNS as in agentlab.view.turnscope_widget.
const NAME = 136;
const HEAD = 22;
const HIGH = 62;
const ROWS = 16;
const COLUMNS = 24;

// A cell in words, for who cannot see it: its fields are those of `_cells` in agentlab.view.turnscope_widget.
const WORDS = {
  c: 'cut by a budget',
  e: 'environment failed',
  r: 'refused by the environment',
  b: 'copied from another episode',
  o: 'copied by other episodes'
};
export const described = (cell, time, line, names) =>
  [
    `${line.name}, turn ${time}`,
    `advantage ${cell[2] || 'none'}`,
    cell[4] && `${names[1]} ${cell[4]}, difference ${cell[6]}`,
    cell[8] === null ? 'tokens not recorded' : `${cell[8]} token${cell[8] === 1 ? '' : 's'}`,
    cell[10] ? `mean entropy ${cell[10]}` : 'entropy not recorded',
    cell[12] && `reward ${cell[12]}`,
    cell[13] && `state ${cell[13]}`,
    ...[...cell[14]].map(flag => WORDS[flag])
  ]
    .filter(Boolean)
    .join(', ');

// The marks of a tile in short, from its flags.
const MARKS = {e: 'error', c: 'cut', r: 'refused', b: '↳ copied', o: '↱ origin'};
export const marksOf = flags =>
  Object.keys(MARKS)
    .filter(flag => flags.includes(flag))
    .map(flag => MARKS[flag])
    .join(' ');

// Whether `size` lines from `from` on lie among the `count` that were sent from `first` on, of `all`.
export const covers = (from, size, first, count, all) => from >= first && Math.min(from + size, all) <= first + count;

// Level 2, the group grid: a plane as large as the group, of which only what Python sent is drawn.
export const makeGrid = (send, options) => {
  const caption = make('div', {class: 'ts-caption'});
  const lines = make('div', {class: 'ts-lines', role: 'presentation'});
  const times = make('div', {class: 'ts-times', role: 'row'});
  // One sticky column: a sticky name in every row would make the browser paint hundreds of layers.
  const column = make('div', {class: 'ts-names', 'aria-hidden': 'true'});
  const plane = make('div', {class: 'ts-plane', role: 'presentation'}, times, column, lines);
  const scroll = make(
    'div',
    {class: 'ts-scroll', role: 'grid', tabindex: -1, 'aria-label': 'advantage of every turn'},
    plane
  );
  const node = make('section', {class: 'ts-card ts-grid'}, caption, scroll);
  let data = null;
  let wide = 66;
  let names = ['', ''];
  let asked = '';

  // Ask for what has come into view; at most once a frame, and never twice for the same.
  const ask = () => {
    if (!data?.lines) return;
    const row = Math.floor(scroll.scrollTop / HIGH);
    const many = Math.ceil(scroll.clientHeight / HIGH);
    const left = Math.floor(scroll.scrollLeft / wide);
    const across = Math.ceil((scroll.clientWidth - NAME) / wide);
    if (
      covers(row, many, data.row, data.lines.length, data.rows) &&
      covers(left, across, data.column, data.times.length, data.columns)
    )
      return;
    const wish = {row: Math.max(0, row - 4), column: Math.max(0, left - 4), other: options.other};
    if (JSON.stringify(wish) !== asked) {
      asked = JSON.stringify(wish);
      send('look', wish);
    }
  };
  let waiting = false;
  scroll.addEventListener(
    'scroll',
    () => {
      if (!waiting) {
        waiting = true;
        requestAnimationFrame(() => {
          waiting = false;
          ask();
        });
      }
    },
    {passive: true}
  );

  // Tiles of the same state or origin light up together.
  const link = (from, on) => {
    const {letter, origin} = from.dataset;
    for (const tile of lines.querySelectorAll('.ts-tile'))
      if ((letter && tile.dataset.letter === letter) || (origin !== '-1' && tile.dataset.origin === origin))
        tile.classList.toggle('ts-same', on);
  };

  // One tile: made once, filled again and again.
  const tile = () => {
    const made = make(
      'button',
      {
        class: 'ts-tile',
        role: 'gridcell',
        type: 'button',
        onclick: () => options.choose(Number(made.dataset.turn)),
        onmouseenter: () => link(made, true),
        onmouseleave: () => link(made, false),
        onfocus: () => link(made, true),
        onblur: () => link(made, false)
      },
      make('span', {class: 'ts-fill'}, make('b'), make('b')),
      make('i', {class: 'ts-letter'}),
      make('span', {class: 'ts-chip'}),
      make('small', {})
    );
    return made;
  };

  const fill = (made, cell, line) => {
    const time = data.times[cell[1] - data.column];
    const chosen = cell[0] === data.chosen;
    const [face, letter, chip, note] = made.children;
    const pinned = Boolean(data.pinned && cell[4]);
    // nodes are used again for what comes into view
    if (made === document.activeElement && made.dataset.turn !== `${cell[0]}`) scroll.focus({preventScroll: true});
    made.style.left = `${NAME + cell[1] * wide}px`;
    made.style.width = `${wide - 6}px`;
    made.style.height = `${26 + 0.22 * cell[9]}px`;
    made.style.setProperty('--frame', `${cell[11] ? 1 + 0.04 * cell[11] : 1}px`);
    made.classList.toggle('ts-open', cell[11] > 0);
    made.classList.toggle('ts-chosen', chosen);
    made.classList.toggle('ts-hatch', /[ce]/.test(cell[14]));
    made.tabIndex = chosen ? 0 : -1;
    made.dataset.turn = cell[0];
    made.dataset.letter = cell[13];
    made.dataset.origin = cell[15];
    if (chosen) made.setAttribute('aria-current', 'true');
    else made.removeAttribute('aria-current');
    made.setAttribute('aria-colindex', cell[1] + 2);
    made.title = described(cell, time, line, names);
    made.setAttribute('aria-label', made.title);
    const half = (part, text, share) => {
      put(part, text || '–');
      part.style.backgroundColor = text ? tint(share) : 'transparent';
    };
    half(face.firstChild, cell[2], cell[3]);
    half(face.lastChild, cell[4], cell[5]);
    face.lastChild.hidden = !pinned;
    put(letter, cell[13]);
    put(chip, cell[12]);
    chip.hidden = !cell[12];
    put(note, pinned ? `Δ ${cell[6]}` : marksOf(cell[14]));
    made.classList.toggle('ts-noted', Boolean(note.textContent));
    note.className = pinned ? (cell[7] > 0 ? 'ts-up' : cell[7] < 0 ? 'ts-down' : 'ts-level') : '';
  };

  // Everything that was sent.
  const draw = (part, head) => {
    data = part;
    asked = '';
    names = [head.first, head.second];
    node.hidden = !part.lines;
    if (!part.lines) return;
    wide = part.pinned ? 104 : 66;
    plane.style.width = `${NAME + part.columns * wide}px`;
    plane.style.height = `${HEAD + part.rows * HIGH}px`;
    column.style.height = `${part.rows * HIGH}px`;
    scroll.setAttribute('aria-rowcount', part.rows);
    scroll.setAttribute('aria-colcount', part.columns + 1);
    const scale = make(
      'span',
      {class: 'ts-scale'},
      part.top.replace('+', '\u2212'),
      make('i', {class: 'al-ramp', role: 'img', 'aria-label': 'orange is blame, white is zero, blue is praise'}),
      part.top
    );
    caption.replaceChildren(
      make('h4', {}, options.title(part, head)),
      make('span', {class: 'ts-soft'}, part.title),
      scale
    );
    keyed(
      times,
      [{corner: true}, ...part.times.map((t, i) => ({t, at: part.column + i}))],
      item => (item.corner ? 'corner' : item.at % COLUMNS),
      item => make('span', {class: item.corner ? 'ts-corner' : 'ts-time', role: 'columnheader'}),
      (made, item) => {
        put(made, item.corner ? 'turn' : `${item.t}`);
        if (!item.corner) {
          made.style.left = `${NAME + item.at * wide}px`;
          made.style.width = `${wide - 6}px`;
        }
      }
    );
    const shown = part.lines.map((line, i) => ({line, at: part.row + i}));
    const same = item => item.at % ROWS;
    keyed(
      column,
      shown,
      same,
      () => make('div', {class: 'ts-name'}, make('b'), make('span'), make('em')),
      (made, {line, at}) => {
        const [title, fate, delta] = made.children;
        made.style.top = `${at * HIGH}px`;
        put(title, line.name);
        put(fate, line.fate);
        put(delta, line.delta[0] && `Δ ${line.delta[0]}`);
        delta.className = line.delta[1] > 0 ? 'ts-up' : line.delta[1] < 0 ? 'ts-down' : '';
        delta.title = line.delta[0] && `mean difference ${names[0]} − ${names[1]} over the turns`;
      }
    );
    keyed(
      lines,
      shown,
      same,
      () => make('div', {class: 'ts-row', role: 'row'}),
      (made, {line, at}) => {
        made.style.top = `${HEAD + at * HIGH}px`;
        made.setAttribute('aria-rowindex', at + 1);
        made.setAttribute('aria-label', `${line.name}, ${line.fate}`);
        keyed(
          made,
          line.cells,
          cell => cell[1] % COLUMNS,
          tile,
          (one, cell) => fill(one, cell, line)
        );
      }
    );
  };

  // Bring the chosen tile into view.
  const current = () => lines.querySelector('.ts-chosen');
  const show = focus => {
    const one = current();
    if (!one) return;
    const top = parseFloat(one.closest('.ts-row').style.top);
    const left = parseFloat(one.style.left);
    if (top - HEAD < scroll.scrollTop) scroll.scrollTop = top - HEAD;
    else if (top + HIGH > scroll.scrollTop + scroll.clientHeight) scroll.scrollTop = top + HIGH - scroll.clientHeight;
    if (left - NAME < scroll.scrollLeft) scroll.scrollLeft = left - NAME;
    else if (left + wide > scroll.scrollLeft + scroll.clientWidth)
      scroll.scrollLeft = Math.ceil((left + wide - scroll.clientWidth) / wide) * wide;
    if (focus) one.focus({preventScroll: true});
  };
  return {node, draw, show, has: target => scroll.contains(target)};
};
