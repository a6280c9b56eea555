import {make, put} from './helpers.js';
import {makeGrid} from './turnscope_grid.js';
import {makePane} from './turnscope_pane.js';
import {makeRow} from './turnscope_row.js';
import {makeStrip} from './turnscope_strip.js';

// The keys as the line of help tells them, and what they ask for. `KEYS` as in agentlab.view.turnscope_widget.
const KEYS = [
  ['j k', 'episode'],
  ['h l', 'turn'],
  ['n N', 'unsure token'],
  ['s', 'same state'],
  ['o', 'origin of a copy'],
  ['/', 'search'],
  ['[ ]', 'task'],
  ['c', 'control tokens'],
  ['t', 'long thoughts'],
  [', .', 'step'],
  ['Enter', 'to the tokens'],
  ['Esc', 'back to the grid']
];
const DO = {
  j: ['move', {rows: 1}],
  k: ['move', {rows: -1}],
  l: ['move', {turns: 1}],
  h: ['move', {turns: -1}],
  n: ['next_unsure', {}],
  N: ['next_unsure', {by: -1}],
  s: ['next_visit', {}],
  S: ['next_visit', {by: -1}],
  o: ['to_origin', {}],
  c: ['show_controls', {}],
  t: ['open_thoughts', {}],
  '[': ['group_by', {by: -1}],
  ']': ['group_by', {by: 1}],
  ',': ['step_by', {by: -1}],
  '.': ['step_by', {by: 1}],
  ArrowDown: ['move', {rows: 1}],
  ArrowUp: ['move', {rows: -1}],
  ArrowRight: ['move', {turns: 1}],
  ArrowLeft: ['move', {turns: -1}]
};

const many = count => count.toLocaleString('en');

// The checks that found nothing or could not be made, in a line; a finding in numbers.
export const summaryOf = findings => {
  const fine = findings.filter(f => f[3] === 0).length;
  const open = findings.filter(f => f[3] === null).length;
  const texts = [fine && `✓ ${fine} checks found nothing`, open && `– ${open} not recorded`];
  return texts.filter(Boolean).join(' · ') || 'all checks';
};

export const countOf = (count, total) => {
  if (count === null) return '– not checked';
  return count ? `${many(count)} of ${many(total)}` : '✓ none';
};

// One line of the table of checks.
const rowOf = ([name, what, meaning, count, total]) => {
  const why = count ? `${what}: ${meaning}` : what;
  return make(
    'tr',
    {},
    make('th', {scope: 'row'}, name),
    make('td', {}, countOf(count, total)),
    make('td', {}, count === null ? 'the data this check needs were not recorded' : why)
  );
};

// All levels together. Nothing is decided here: a key or a click becomes a message, Python sends back what changed.
function render({model, el}) {
  const send = (name, extra) => model.send({do: name, ...extra});
  const get = name => model.get(name) ?? {};
  let follow = false;
  let toTokens = false;
  const focused = () =>
    toTokens || row?.node.querySelector('.ts-tokens')?.contains(document.activeElement)
      ? 'row'
      : grid?.has(document.activeElement)
        ? 'grid'
        : '';
  const choose = turn => {
    follow = true;
    send('choose_turn', {to: turn});
  };
  let row = null;
  let grid = null;

  // The levels.
  const strip = makeStrip(send);
  grid = makeGrid(send, {
    other: false,
    choose,
    title: (part, head) =>
      head.beside === null ? `Step ${part.step}, task ${head.group + 1} of ${head.groups}` : `Step ${part.step}`
  });
  const other = makeGrid(send, {other: true, choose: () => {}, title: part => `Step ${part.step}`});
  const pane = makePane(send, {choose, opened: () => Boolean(get('row').thoughts?.[0])});
  row = makeRow(send, {focused});

  // The line of controls.
  const title = make('h3');
  const where = make('span', {class: 'ts-soft'});
  const banner = make('div', {class: 'ts-banner'});
  const message = make('p', {class: 'ts-message', role: 'status'});
  const select = (label, act) => {
    const box = make('select', {'aria-label': label, onchange: event => send(act, {to: event.target.value})});
    return [box, make('label', {class: 'ts-control'}, make('span', {}, label), box)];
  };
  const [first, firstLabel] = select('advantage by', 'estimate');
  const [second, secondLabel] = select('against', 'pin');
  const search = make('input', {
    type: 'search',
    placeholder: 'words of this step',
    'aria-label': 'search the texts of this step',
    onkeydown: event => {
      event.stopPropagation();
      if (event.key === 'Enter') {
        event.preventDefault();
        send('search', {text: search.value, by: event.shiftKey ? -1 : 1});
      }
      if (event.key === 'Escape') {
        search.value = '';
        send('search', {text: ''});
        grid.show(true);
      }
    }
  });
  const besideStep = make('input', {
    type: 'number',
    class: 'ts-step',
    'aria-label': 'step to show beside this one',
    placeholder: '–',
    onkeydown: event => {
      event.stopPropagation();
      if (event.key === 'Enter') {
        event.preventDefault();
        send('beside', {to: Number(besideStep.value)});
      }
    }
  });
  const button = (label, hint, act, extra) =>
    make('button', {type: 'button', class: 'ts-button', title: hint, onclick: () => send(act, extra ?? {})}, label);
  const close = button('close', 'show one step only', 'beside', {to: null});
  const step = make('output', {class: 'ts-at'});
  const task = make('output', {class: 'ts-at'});
  const bar = make(
    'div',
    {class: 'ts-bar'},
    make(
      'span',
      {class: 'ts-control ts-nav'},
      make('span', {}, 'step'),
      button('‹', 'earlier step', 'step_by', {by: -1}),
      step,
      button('›', 'later step', 'step_by', {by: 1})
    ),
    make(
      'span',
      {class: 'ts-control ts-nav'},
      make('span', {}, 'task'),
      button('‹', 'task before', 'group_by', {by: -1}),
      task,
      button('›', 'next task', 'group_by', {by: 1})
    ),
    firstLabel,
    secondLabel,
    make(
      'span',
      {class: 'ts-control'},
      make('span', {}, 'beside step'),
      besideStep,
      button('find', 'look for this task in other steps', 'find_beside'),
      close
    )
  );

  // Around the levels: keys, legend, and the whole.
  const help = make(
    'div',
    {class: 'ts-help', 'aria-label': 'keys'},
    ...KEYS.map(([keys, what]) => make('span', {}, ...keys.split(' ').map(key => make('kbd', {}, key)), ` ${what}`))
  );
  const legend = make(
    'div',
    {class: 'ts-legend'},
    make('span', {}, make('i', {class: 'ts-demo ts-demo-high'}), 'height: tokens'),
    make('span', {}, make('i', {class: 'ts-demo ts-demo-open'}), 'frame: entropy'),
    make('span', {}, make('span', {class: 'ts-chip'}, '+1'), 'reward'),
    make('span', {}, make('i', {class: 'ts-demo ts-hatch'}), 'cut or failed'),
    make('span', {}, make('i', {class: 'ts-letter'}, 'a'), 'same letter, same state')
  );
  const grids = make('div', {class: 'ts-grids'}, grid.node, other.node);
  const root = make(
    'div',
    {class: 'al ts', 'data-lm-suppress-shortcuts': 'true', role: 'group', 'aria-label': 'TurnScope'},
    make(
      'header',
      {class: 'ts-head'},
      title,
      where,
      make('label', {class: 'ts-control ts-search'}, make('span', {}, 'search'), search)
    ),
    banner,
    strip.node,
    bar,
    message,
    make('div', {class: 'ts-middle'}, make('div', {}, grids, legend), pane.node),
    row.node,
    help
  );

  // Keys work wherever the focus is, but in a field; arrows in the grid only.
  root.addEventListener('keydown', event => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (['SELECT', 'INPUT'].includes(event.target.tagName)) {
      event.stopPropagation();
      return;
    }
    const inGrid = grid.has(event.target);
    const arrow = event.key.startsWith('Arrow');
    event.stopPropagation();
    if (event.key === '/') {
      event.preventDefault();
      search.focus();
      search.select();
      return;
    }
    if (event.key === 'Enter' && inGrid) {
      event.preventDefault();
      const chosen = row.node.querySelector('.ts-token.ts-chosen');
      chosen?.focus();
      chosen?.scrollIntoView({block: 'nearest'});
      return;
    }
    if (event.key === 'Escape') {
      grid.show(true);
      return;
    }
    if ((arrow && !inGrid) || !DO[event.key]) return;
    event.preventDefault();
    follow = true;
    toTokens = event.key.toLowerCase() === 'n' && focused() === 'row';
    send(...DO[event.key]);
  });

  // One function a part: it runs when the part has changed.
  const options = (box, entries, now, none) => {
    const fits = entries.filter(entry => !entry[1]);
    const not = entries.filter(entry => entry[1]);
    box.replaceChildren(
      ...(none ? [make('option', {value: ''}, 'none')] : []),
      ...fits.map(([name]) => make('option', {value: name}, name)),
      ...(not.length
        ? [
            make(
              'optgroup',
              {label: 'cannot read this step'},
              ...not.map(([name, why]) => make('option', {value: name, disabled: true}, `${name} (${why})`))
            )
          ]
        : [])
    );
    box.value = now;
  };
  const draw = {
    menu() {
      const menu = get('menu');
      const head = get('head');
      options(first, menu.estimators ?? [], head.first, false);
      options(second, menu.estimators ?? [], head.second, true);
      row.menu(menu, head);
    },
    strip() {
      strip.draw(get('strip'));
      strip.point(get('head'));
    },
    head() {
      const head = get('head');
      put(title, head.title ?? '');
      put(
        where,
        head.episodes === undefined
          ? ''
          : `${head.steps} saved step${head.steps === 1 ? '' : 's'} · ${many(head.episodes)} episodes in this one`
      );
      put(step, head.step === undefined ? '–' : `${head.step}`);
      put(task, head.groups ? `${head.group + 1} of ${head.groups}` : '–');
      put(message, head.message ?? '');
      message.hidden = !head.message;
      strip.point(head);
      first.value = head.first ?? '';
      second.value = head.second ?? '';
      row.menu(get('menu'), head);
      row.point(head);
      close.hidden = head.beside === null || head.beside === undefined;
      if (document.activeElement !== search) search.value = head.query ?? '';
    },
    banner() {
      const all = get('banner').findings ?? [];
      const found = all.filter(f => f[3]);
      const more = make(
        'details',
        {class: 'ts-checks'},
        make('summary', {}, summaryOf(all)),
        make('table', {}, make('tbody', {}, ...all.map(rowOf)))
      );
      banner.replaceChildren(
        ...found.map(([name, what, meaning, count, total, grave, places]) =>
          make(
            'button',
            {
              type: 'button',
              class: `ts-finding${grave ? ' ts-grave' : ''}`,
              'data-name': name,
              title: `${what}: ${meaning}`,
              disabled: !places,
              onclick: () => {
                follow = true;
                send('to_finding', {name});
              }
            },
            make('b', {}, `${grave ? '!' : '·'} ${countOf(count, total)}`),
            ` ${name}`,
            places ? make('span', {'aria-hidden': 'true'}, ' →') : null
          )
        ),
        more
      );
    },
    grid() {
      const inside = focused() === 'grid';
      grid.draw(get('grid'), get('head'));
      if (follow || inside) {
        grid.show(
          inside ||
            (follow &&
              focused() !== 'row' &&
              root.contains(document.activeElement) &&
              document.activeElement.tagName !== 'INPUT')
        );
      }
      follow = false;
      toTokens = false;
    },
    other() {
      other.draw(get('other'), get('head'));
      root.classList.toggle('ts-two', Boolean(get('other').lines));
      other.show(false);
    },
    pane() {
      pane.draw(get('pane'));
    },
    row() {
      row.draw(get('row'), get('head'));
    }
  };

  for (const name of Object.keys(draw)) model.on(`change:${name}`, draw[name]);
  for (const name of Object.keys(draw)) draw[name]();
  el.append(root);
  requestAnimationFrame(() => {
    grid.show(false);
    other.show(false);
    pane.follow();
  });
  return () => {
    for (const name of Object.keys(draw)) model.off(`change:${name}`, draw[name]);
  };
}

export default {render};
