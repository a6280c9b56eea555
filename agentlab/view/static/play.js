// The controls of a game: moves as buttons, a box for anything else, and what can be done with the game as a whole.
import {make, put} from './helpers.js';

const FIELDS = ['INPUT', 'TEXTAREA', 'SELECT'];

// Whether a key plays a move: a digit without a modifier, while no field has the focus that digits are typed into.
export const plays = event => {
  if (event.ctrlKey || event.metaKey || event.altKey || !/^[0-9]$/.test(event.key)) return false;
  return !FIELDS.includes(event.target.tagName) || event.target.type === 'checkbox';
};

// What the box says while it is empty, and whom the first button lets move.
export const hintOf = state => {
  if (state.moves.length) return 'or say anything else';
  return state.over ? 'the game is over' : 'what do you say?';
};
export const letOf = who => (who ? `Let ${who} move` : 'Let the policy move');

// A move as the content of its button: key, text, and how likely it is.
export const contentOf = move => [
  move.key ? make('kbd', {}, move.key) : null,
  make('span', {class: 'al-pl-move'}, move.text),
  ...(move.share === undefined ? [] : [make('small', {}, move.share), make('i', {style: `width:${100 * move.p}%`})])
];

const button = (key, text, title, onclick, more = {}) =>
  make('button', {class: 'al-pl-b', type: 'button', 'data-key': key, title, onclick, ...more}, ...[text].flat());
const labelled = (...parts) => make('label', {class: 'al-pl-label'}, ...parts);
const named = text => make('span', {}, text);

function render({model, el}) {
  const now = () => model.get('state');
  const tell = content => model.send({at: now().at, ...content});
  const check = key =>
    make('input', {type: 'checkbox', 'data-key': key, onchange: event => tell({do: key, on: event.target.checked})});

  // What is told, and the moves.
  const status = make('p', {class: 'al-pl-status', role: 'status'});
  const fault = make('p', {class: 'al-pl-fault', role: 'alert'});
  const moves = make('div', {class: 'al-pl-moves', role: 'group', 'aria-label': 'legal texts'});
  const note = make('p', {class: 'al-pl-rest'});

  // Anything else.
  const box = make('textarea', {
    class: 'al-pl-text',
    rows: 1,
    'data-key': 'text',
    'aria-label': 'say anything; Enter sends, Shift and Enter begins a line'
  });
  const say = () => {
    tell({do: 'say', text: box.value});
    box.value = '';
  };
  box.addEventListener('keydown', event => {
    if (event.key !== 'Enter' || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    say();
  });
  const send = button('say', 'Say', 'Say this text', say);

  // The game as a whole.
  const letMove = button('let', '', 'The policy moves for the seat that moves', () => tell({do: 'let'}));
  const end = button('end', 'To the end', 'The policy plays on', () => tell({do: 'end'}));
  const undo = button('undo', 'Undo', 'Back to the move before', () => tell({do: 'undo'}));
  const redo = button('redo', 'Redo', 'Forward again', () => tell({do: 'redo'}));
  const seed = make('input', {class: 'al-pl-seed', type: 'number', min: 0, 'data-key': 'seed'});
  const again = () => tell({do: 'new', seed: Number(seed.value)});
  const fresh = button('fresh', 'New game', 'Begin anew from this seed', again);
  seed.addEventListener('keydown', event => {
    if (event.key === 'Enter') fresh.click();
  });
  const sit = () => tell({do: 'sit', seat: seat.value});
  const seat = make('select', {class: 'al-pl-select', 'data-key': 'seat', onchange: sit});
  const odds = check('chances');
  const all = check('all');
  const map = check('map');
  const plan = labelled(map, named('map'));
  const you = labelled(named('you play'), seat);
  const others = labelled(all, named('show all seats'));

  const row = (...parts) => make('div', {class: 'al-pl-row'}, ...parts);
  const root = make(
    'div',
    {class: 'al al-pl-table', 'data-lm-suppress-shortcuts': 'true', role: 'group', 'aria-label': 'moves'},
    status,
    fault,
    moves,
    note,
    row(box, send),
    row(letMove, end, undo, redo, labelled(odds, named('probabilities')), plan),
    row(labelled(named('seed'), seed), fresh, you, others)
  );

  const moveOf = (move, i) =>
    button('move', contentOf(move), move.note || 'Say this', () => tell({do: 'move', i}), {
      'aria-keyshortcuts': move.key || null
    });
  const option = (name, chosen) => make('option', {value: name, selected: name === chosen}, name);

  // The focus stays on the control of its kind, or goes to what can be done next.
  const hold = (held, over) => {
    const has = document.activeElement;
    if (!held || (root.contains(has) && !has.disabled)) return;
    const same = [...root.querySelectorAll(`[data-key="${held}"]`)].find(one => !one.disabled && !one.hidden);
    (same || moves.querySelector('button') || (over ? fresh : box)).focus();
  };
  const draw = () => {
    const state = now();
    const held = root.contains(document.activeElement) ? document.activeElement.dataset.key : undefined;
    status.replaceChildren(named(state.status), make('span', {class: 'al-hide'}, ` ${state.heard}`));
    fault.textContent = state.message; // set anew: what is said twice is an alert twice
    fault.hidden = !state.message;
    put(note, state.rest);
    note.hidden = !state.rest;
    moves.replaceChildren(...state.moves.map(moveOf));
    moves.hidden = !state.moves.length;
    box.placeholder = hintOf(state);
    box.disabled = state.over;
    send.disabled = state.over;
    put(letMove, letOf(state.who));
    letMove.disabled = !state.who;
    end.disabled = !state.who;
    undo.disabled = !state.undo;
    redo.disabled = !state.redo;
    if (document.activeElement !== seed) seed.value = state.seed;
    seat.replaceChildren(...state.seats.map(name => option(name, state.seat)));
    odds.checked = state.chances;
    odds.disabled = !state.odds;
    all.checked = state.all;
    map.checked = state.map;
    plan.hidden = !state.drawn;
    you.hidden = state.seats.length < 2;
    others.hidden = you.hidden;
    hold(held, state.over);
  };
  root.addEventListener('keydown', event => {
    event.stopPropagation();
    if (!plays(event)) return;
    const one = moves.children[now().moves.findIndex(move => move.key === event.key)];
    if (!one) return;
    event.preventDefault();
    one.focus();
    one.click();
  });
  model.on('change:state', draw);
  el.append(root);
  draw();
  return () => model.off('change:state', draw);
}

export default {render};
