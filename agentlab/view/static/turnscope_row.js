import {keyed, make, minus, plain, put, wash, written} from './helpers.js';

const FACTS = [
  ['sampler logp', 'sampler_logp'],
  ['trainer logp', 'old_logp'],
  ['difference', 'difference'],
  ['entropy', 'entropy'],
  ['ratio', 'ratio'],
  ['reference logp', 'ref_logp'],
  ['KL', 'kl'],
  ['advantage', 'advantage'],
  ['pinned', 'pinned']
];

// A number of a column as it is told, and as it stands under a token.
export const factOf = (column, i) => {
  if (!column) return 'not recorded';
  return column[i] === null ? 'NaN' : minus(column[i]);
};

export const noteOf = (x, mode, signs, stopped) => {
  if (x === undefined || x === null) return '–';
  const sign = signs && mode !== 'ratio' && x > 0 ? '+' : '';
  return minus(sign + x.toFixed(2)) + (stopped && mode === 'ratio' ? ' clip' : '');
};

// Spaces that would not be seen, and an empty text, as signs.
export const spaced = pieces => {
  if (!pieces) return pieces;
  const text = plain(pieces);
  if (text && !text.trim()) return [['e', '\u2423'.repeat(Math.min(8, text.length))]];
  return pieces.length ? pieces : [['e', '\u2205']];
};

// Where a key leads from a token: along those that are drawn, to another page, to the first or the last.
const STEPS = {ArrowLeft: -1, ArrowRight: 1};
export const aimOf = (key, token, {ats, total, earlier, later}) => {
  if (key === 'Home') return 0;
  if (key === 'End') return total - 1;
  const next = ats.indexOf(token) + STEPS[key];
  if (next < 0) return earlier;
  return next < ats.length ? ats[next] : later;
};

// What stands in the row, in order: folds, names of parts, tokens, and breaks after a line's last token.
export const entriesOf = (part, named) => {
  const entries = [];
  const several = part.legend.length > 1;
  const foldsAt = i => part.folds.filter(fold => fold[0] === i).map(fold => ({key: `f${fold[1]}`, fold}));
  part.ats.forEach((at, i) => {
    const folds = foldsAt(i);
    entries.push(...folds);
    const begins = (part.parts[i] && part.parts[i] !== part.parts[i - 1]) || folds.length > 0;
    const name = begins ? named(part.parts[i]) : '';
    if (name && !['other', 'markup'].includes(name) && several) entries.push({key: `l${at}`, name});
    entries.push({key: `${at}`, at, i});
    if (part.places[i].includes('b')) entries.push({key: `b${at}`});
  });
  return [...entries, ...foldsAt(part.ats.length)];
};

// Level 4, the token row: every token by one quantity, and one of them told in full.
export const makeRow = (send, options) => {
  const modes = make('div', {class: 'ts-modes', role: 'radiogroup', 'aria-label': 'what colours a token'});
  const title = make('h4');
  const pages = make('span', {class: 'ts-pages'});
  const toggle = (label, hint, act) =>
    make('button', {type: 'button', class: 'ts-button ts-toggle', title: hint, onclick: () => send(act, {})}, label);
  const controls = toggle('control tokens', 'show or hide the marks of the chat template (key c)', 'show_controls');
  const thoughts = toggle(
    'long thoughts',
    'show long thoughts token by token, or as one line (key t)',
    'open_thoughts'
  );
  const legend = make('span', {class: 'ts-parts ts-soft'});
  const row = make('div', {class: 'ts-tokens', role: 'listbox', 'aria-label': 'tokens of the turn'});
  const card = make('div', {class: 'ts-token-card', role: 'status'});
  const node = make(
    'section',
    {class: 'ts-card ts-row-card', 'aria-label': 'tokens'},
    make('div', {class: 'ts-caption'}, title, modes, controls, thoughts, legend, pages),
    row,
    card
  );

  let data = null;
  let token = 0;
  const named = code => data.legend.find(([known]) => known === code)?.[1] ?? 'other';

  // Tell a token in the card below the row.
  const tell = at => {
    const i = data.ats.indexOf(at);
    if (i < 0) {
      card.replaceChildren();
      return;
    }
    const facts = FACTS.filter(([, name]) => name !== 'pinned' || data.columns.pinned).map(([label, name]) => [
      name === 'advantage' && data.names[0]
        ? `advantage (${data.names[0]})`
        : name === 'pinned'
          ? `advantage (${data.names[1]})`
          : label,
      factOf(data.columns[name], i) + (name === 'ratio' && data.stopped?.[i] ? ' clipped' : ''),
      name
    ]);
    const likely = data.likely
      ? data.likely[i].flatMap(([text, logp]) => [
          make('bdi', {class: 'ts-word'}, ...written(text)),
          logp === null ? ' ' : ` ${minus(logp)}  `
        ])
      : ['not recorded'];
    card.replaceChildren(
      make(
        'div',
        {class: 'ts-token-name'},
        make('span', {class: 'ts-soft'}, `token ${at + 1} of ${data.total} · id `),
        make('b', {'data-fact': 'id'}, `${data.ids[i]}`),
        ' ',
        make(
          'bdi',
          {class: 'ts-word', 'data-fact': 'text'},
          ...(data.texts[i] ? written(data.whole[i] ?? data.texts[i]) : ['text not recorded'])
        ),
        data.parts[i] ? make('span', {class: 'ts-soft'}, ` · ${named(data.parts[i])}`) : null
      ),
      make(
        'dl',
        {class: 'ts-facts'},
        ...facts.map(([label, text, name]) =>
          make(
            'div',
            {},
            make('dt', {}, label),
            make('dd', {'data-fact': name, class: text === 'not recorded' ? 'ts-none' : ''}, text)
          )
        ),
        make(
          'div',
          {},
          make('dt', {}, 'most likely'),
          make('dd', {'data-fact': 'likely', class: data.likely ? '' : 'ts-none'}, ...likely)
        )
      )
    );
  };

  // Choose a token, and bring it into view.
  const pick = (at, focus) => {
    token = at;
    for (const one of row.querySelectorAll('.ts-token')) {
      const on = Number(one.dataset.at) === at;
      one.tabIndex = on ? 0 : -1;
      one.setAttribute('aria-selected', on);
      one.classList.toggle('ts-chosen', on);
      if (on && focus) one.focus({preventScroll: true});
      if (on) {
        const top = one.offsetTop - row.offsetTop;
        if (top < row.scrollTop) row.scrollTop = top - 4;
        else if (top + one.offsetHeight > row.scrollTop + row.clientHeight)
          row.scrollTop = top + one.offsetHeight - row.clientHeight + 4;
      }
    }
    tell(at);
  };
  row.addEventListener('keydown', event => {
    if (!(event.key in STEPS || ['Home', 'End'].includes(event.key))) return;
    event.preventDefault();
    event.stopPropagation();
    const to = aimOf(event.key, token, data);
    if (to === null || to === undefined) return;
    if (data.ats.includes(to)) pick(to, true);
    send('choose_token', {to});
  });

  row.addEventListener('mouseleave', () => data?.ids && tell(token));

  // One entry of the row.
  const tokenAt = at => {
    const chosen = () => {
      pick(at);
      send('choose_token', {to: at});
    };
    const events = {onclick: chosen, onmouseenter: () => tell(at), onfocus: () => tell(at)};
    return make(
      'button',
      {class: 'ts-token', type: 'button', role: 'option', 'data-at': at, ...events},
      make('bdi', {class: 'ts-word'}),
      make('small')
    );
  };
  const create = entry => {
    const open = () => send('open_thoughts', {});
    if (entry.fold) return make('button', {type: 'button', class: 'ts-fold', 'aria-expanded': 'false', onclick: open});
    if (entry.name) return make('b', {class: 'al-part'}, entry.name);
    return entry.at === undefined ? make('i', {class: 'al-br', 'aria-hidden': 'true'}) : tokenAt(entry.at);
  };

  // The visible page of tokens.
  const draw = (part, head) => {
    data = part;
    node.hidden = part.turn === undefined;
    if (node.hidden) return;
    put(title, 'Tokens');
    if (part.total === null) {
      row.replaceChildren(make('p', {class: 'ts-none'}, 'tokens not recorded'));
      row.drawn = undefined;
      card.replaceChildren();
      pages.replaceChildren();
      return;
    }
    if (!row.drawn) row.replaceChildren();
    keyed(
      row,
      entriesOf(part, named),
      entry => entry.key,
      create,
      (made, {fold, at, i}) => {
        if (fold)
          made.replaceChildren(
            make('b', {class: 'al-part'}, 'thought'),
            ` ${fold[2].toLocaleString('en')} tokens: `,
            make('bdi', {}, ...written(fold[3]))
          );
        if (at === undefined) return;
        const [word, note] = made.children;
        const text = spaced(part.texts[i]);
        const place = part.places[i];
        const glued = place.includes('g');
        const more = (part.places[i + 1] ?? '').includes('g');
        word.replaceChildren(...(text ? written(text) : [make('span', {class: 'ts-none'}, `#${part.ids[i]}`)]));
        word.className = `ts-word${part.parts[i] ? ` al-p${part.parts[i]}` : ''}`;
        made.style.backgroundColor = part.signs
          ? wash(part.shares[i])
          : `color-mix(in srgb, var(--heat) ${(0.62 * part.shares[i]).toFixed(0)}%, transparent)`;
        put(note, noteOf(part.columns[part.mode]?.[i], part.mode, part.signs, part.stopped?.[i]));
        made.classList.toggle('ts-hatch', Boolean(part.stopped?.[i]) && part.mode === 'ratio');
        for (const [name, on] of [
          ['ts-glued', glued],
          ['ts-more', more],
          ['ts-gap', place.includes('s')],
          ['ts-control-token', place.includes('c')],
          ['ts-slim', (glued || more) && plain(text ?? []).length < 3]
        ])
          made.classList.toggle(name, on);
        if (part.parts[i]) made.title = named(part.parts[i]);
        else made.removeAttribute('title');
      }
    );
    for (const [button, [on, count]] of [
      [controls, part.controls],
      [thoughts, part.thoughts]
    ]) {
      button.hidden = !count && !on;
      button.setAttribute('aria-pressed', on);
      put(button, `${on ? '✓ ' : ''}${button === controls ? 'control tokens' : 'long thoughts'} (${count})`);
    }
    legend.replaceChildren(
      ...part.legend.flatMap(([code, name]) => [make('span', {class: `al-p${code}`}, 'abc'), ` ${name}  `])
    );
    const many = part.ids.length;
    const more = (label, to) =>
      make('button', {type: 'button', class: 'ts-button', onclick: () => send('choose_token', {to})}, label);
    const [from, until, all] = part.page;
    pages.replaceChildren(
      ...(all > until - from + 1
        ? [
            part.earlier !== null ? more('‹ earlier', part.earlier) : null,
            `${from.toLocaleString('en')}–${until.toLocaleString('en')} of ${all.toLocaleString('en')}`,
            part.later !== null ? more('later ›', part.later) : null
          ].filter(Boolean)
        : [`${part.total} · strongest colour ${part.top}`])
    );
    if (!many && !part.folds.length) {
      row.replaceChildren(
        make('p', {class: 'ts-none'}, part.total ? 'only control tokens, which are hidden' : 'this turn has no tokens')
      );
      row.drawn = undefined;
    }
    pick(head.token ?? 0, options.focused() === 'row');
  };

  // The quantities that can colour a token.
  const menu = (part, head) =>
    keyed(
      modes,
      part.modes ?? [],
      mode => mode[0],
      mode =>
        make('button', {
          type: 'button',
          role: 'radio',
          class: 'ts-mode',
          'data-mode': mode[0],
          onclick: () => send('colour', {to: mode[0]})
        }),
      (made, [key, label, missing]) => {
        made.replaceChildren(label, ...(missing.length ? [make('small', {}, ' not recorded')] : []));
        made.title = missing.length ? `not recorded: ${missing.join(', ')}` : `colour the tokens by ${label}`;
        made.setAttribute('aria-disabled', missing.length > 0);
        made.setAttribute('aria-checked', key === head.mode && !missing.length);
      }
    );

  return {
    node,
    draw,
    menu,
    opened: () => Boolean(data?.thoughts?.[0]),
    point: head => {
      if (data?.ids && head.turn === data.turn && head.token !== token)
        pick(head.token ?? 0, options.focused() === 'row');
    }
  };
};
