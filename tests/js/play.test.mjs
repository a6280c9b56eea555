import assert from 'node:assert/strict';
import test from 'node:test';
import './page.mjs';
import table, {contentOf, hintOf, letOf, plays} from '../../agentlab/view/static/play.js';

const press = (key, tagName = 'DIV', more = {}, type = '') => plays({key, target: {tagName, type}, ...more});

test('the module is a widget', () => assert.equal(typeof table.render, 'function'));

test('digits play a move, but not while they are typed', () => {
  assert.ok(press('1') && press('0') && press('9', 'BUTTON') && press('5', 'INPUT', {}, 'checkbox'));
  for (const key of ['a', 'Enter', '10', '', ' ']) assert.ok(!press(key), key);
  for (const field of ['INPUT', 'TEXTAREA', 'SELECT']) assert.ok(!press('1', field), field);
  for (const held of ['ctrlKey', 'metaKey', 'altKey']) assert.ok(!press('1', 'DIV', {[held]: true}), held);
});

test('what is asked for', () => {
  assert.equal(hintOf({moves: [{}], over: false}), 'or say anything else');
  assert.equal(hintOf({moves: [], over: false}), 'what do you say?');
  assert.equal(hintOf({moves: [], over: true}), 'the game is over');
  assert.equal(letOf('novice 0'), 'Let novice 0 move');
  assert.equal(letOf(''), 'Let the policy move');
});

test('a move: its key and share where it has them, its text letter by letter', () => {
  const tags = move => contentOf(move).map(node => node?.tag ?? null);
  const hostile = '<img src=x onerror="window.hit=1">';
  assert.deepEqual(tags({text: 'go', key: ''}), [null, 'span']);
  assert.deepEqual(tags({text: 'go', key: '1', p: 0.5, share: '50.0 %'}), ['kbd', 'span', 'small', 'i']);
  assert.deepEqual(tags({text: 'go', key: '1', p: 0, share: '0 %'}), ['kbd', 'span', 'small', 'i']);
  const [, text, , bar] = contentOf({text: hostile, key: '', p: 0.25, share: '25.0 %'});
  assert.equal(text.textContent, hostile);
  assert.equal(bar.attributes.style, 'width:25%');
});
