import {make, plain, written} from './helpers.js';

// Level 3, the turn pane: what the environment said stands left, what the policy answered right.
export const makePane = (send, options) => {
  const node = make('section', {class: 'ts-card ts-pane', 'aria-label': 'the conversation'});

  // Bubbles: one of the environment, and one of the policy with its parts, long thoughts folded.
  const said = (pieces, kind, who, query) => {
    if (pieces === null) return make('p', {class: `ts-bubble ${kind} ts-none`}, `${who}: text not recorded`);
    if (!pieces.length) return null;
    const words = make('bdi', {}, ...written(pieces, query));
    return make('div', {class: `ts-bubble ${kind}`}, make('span', {class: 'al-hide'}, `${who}: `), words);
  };

  const answered = (parts, query) => {
    if (parts === null) return said(null, 'ts-policy', 'policy', query);
    if (!parts.length) return null;
    const shown = ([name, code, text, folded]) => {
      const label = name ? make('b', {class: 'al-part'}, name) : null;
      const words = make('bdi', {class: `al-p${code}`}, ...written(text, query));
      if (!folded) return make('span', {class: 'ts-segment'}, label, words);
      const fold = make(
        'details',
        {class: 'al-fold', open: options.opened()},
        make(
          'summary',
          {},
          label,
          ` ${folded.toLocaleString('en')} tokens: `,
          make('bdi', {}, plain(text).slice(0, 80))
        ),
        words
      );
      fold.firstChild.addEventListener('click', event => event.stopPropagation());
      return fold;
    };
    return make(
      'div',
      {class: 'ts-bubble ts-policy'},
      make('span', {class: 'al-hide'}, 'policy: '),
      ...parts.map(shown)
    );
  };

  // The chosen turn of a step, with its facts and the turns around it.
  const side = (one, query, alone) => {
    const facts = make(
      'dl',
      {class: 'ts-facts'},
      ...one.facts.map(([name, value, act]) =>
        make(
          'div',
          {},
          make('dt', {}, name),
          make(
            'dd',
            {},
            act && alone
              ? make('button', {type: 'button', class: 'ts-link', onclick: () => send(act, {})}, value)
              : value
          )
        )
      )
    );
    const talk = make('div', {class: 'ts-talk', tabindex: 0, role: 'region', 'aria-label': 'what was read and said'});
    for (const bubble of one.bubbles) {
      const turn = make(
        'div',
        {class: `ts-turn${bubble.chosen ? ' ts-now' : ''}`, 'data-turn': bubble.turn},
        make('span', {class: 'ts-number'}, `turn ${bubble.t}`),
        said(bubble.read, 'ts-env', 'environment', query),
        answered(bubble.said, query)
      );
      if (!bubble.chosen && alone) turn.addEventListener('click', () => options.choose(bubble.turn));
      talk.append(turn);
    }
    if (one.final.length)
      talk.append(
        make(
          'div',
          {class: 'ts-turn'},
          make('span', {class: 'ts-number'}, 'end'),
          said(one.final, 'ts-env', 'environment', query)
        )
      );
    if (one.error.length)
      talk.append(
        make(
          'div',
          {class: 'ts-turn'},
          make('span', {class: 'ts-number ts-down'}, 'error'),
          said(one.error, 'ts-env', 'environment', query)
        )
      );
    const state = one.state.length
      ? make(
          'p',
          {class: 'ts-state'},
          make('span', {class: 'ts-soft'}, 'state '),
          make('bdi', {}, ...written(one.state))
        )
      : null;
    return make(
      'div',
      {class: 'ts-side'},
      make(
        'div',
        {class: 'ts-caption'},
        make('h4', {}, `${alone ? '' : `step ${one.step} · `}${one.name}`),
        make('span', {class: 'ts-soft'}, `${one.fate} · turn ${one.at} of ${one.of}`)
      ),
      facts,
      state,
      talk
    );
  };

  const draw = part => {
    node.hidden = !part.sides;
    if (!part.sides) return;
    node.replaceChildren(
      make('div', {class: 'ts-sides'}, ...part.sides.map((one, i) => side(one, part.query, i === 0)))
    );
    follow();
  };
  const follow = () => {
    for (const talk of node.querySelectorAll('.ts-talk')) {
      const now = talk.querySelector('.ts-now');
      if (now) talk.scrollTop = Math.max(0, now.offsetTop - 40);
    }
  };
  return {node, draw, follow};
};
