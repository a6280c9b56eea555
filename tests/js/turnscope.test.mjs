import assert from 'node:assert/strict';
import test from 'node:test';
import './page.mjs';
import scope, {countOf, summaryOf} from '../../agentlab/view/static/turnscope.js';
import {covers, described, marksOf} from '../../agentlab/view/static/turnscope_grid.js';
import {aimOf, entriesOf, factOf, noteOf, spaced} from '../../agentlab/view/static/turnscope_row.js';
import {pathOf} from '../../agentlab/view/static/turnscope_strip.js';

test('the module is a widget', () => assert.equal(typeof scope.render, 'function'));

test('strip: points become a path', () => {
  assert.equal(
    pathOf([
      [0, 100],
      [500, 2.5]
    ]),
    'M0,100L500,2.5'
  );
  assert.equal(pathOf([]), '');
});

test('grid: a cell in words', () => {
  // turn, column, advantage, share, pinned, share, difference, share, tokens, height, entropy, border, reward, state, flags
  const cell = [7, 0, '+0.5', 50, '', 0, '', 0, 1, 40, '0.71', 30, '', '', '', -1];
  const line = {name: 'episode 2'};
  assert.equal(described(cell, 3, line, ['grpo', '']), 'episode 2, turn 3, advantage +0.5, 1 token, mean entropy 0.71');
  const full = [7, 0, '', 0, '-1', -9, '+1.5', 9, null, 40, '', 0, '+1', 'b', 'rb', 3];
  assert.equal(
    described(full, 0, line, ['grpo', 'gigpo']),
    'episode 2, turn 0, advantage none, gigpo -1, difference +1.5, tokens not recorded, entropy not recorded, ' +
      'reward +1, state b, refused by the environment, copied from another episode'
  );
});

test('grid: marks of a tile stand in one order', () => {
  assert.equal(marksOf(''), '');
  assert.equal(marksOf('bc'), 'cut ↳ copied');
  assert.equal(marksOf('ore'), 'error refused ↱ origin');
});

test('grid: nothing is asked for while all of it was sent', () => {
  assert.ok(covers(0, 7, 0, 16, 400));
  assert.ok(covers(396, 7, 390, 10, 400)); // the last rows: there are no more
  assert.ok(!covers(12, 7, 0, 16, 400));
  assert.ok(!covers(3, 7, 4, 16, 400));
});

test('row: what was not recorded, and what is not a number', () => {
  assert.equal(factOf(undefined, 0), 'not recorded');
  assert.equal(factOf([null], 0), 'NaN');
  assert.equal(factOf([-0.25], 0), '\u22120.25');
});

test('row: the number under a token', () => {
  assert.equal(noteOf(undefined, 'kl', false, false), '–');
  assert.equal(noteOf(null, 'entropy', false, false), '–');
  assert.equal(noteOf(0.456, 'entropy', false, false), '0.46');
  assert.equal(noteOf(0.5, 'advantage', true, false), '+0.50');
  assert.equal(noteOf(-0.5, 'advantage', true, true), '\u22120.50');
  assert.equal(noteOf(1.25, 'ratio', true, false), '1.25');
  assert.equal(noteOf(1.25, 'ratio', true, true), '1.25 clip');
});

test('row: spaces and nothing are seen', () => {
  assert.deepEqual(spaced([['t', '   ']]), [['e', '\u2423\u2423\u2423']]);
  assert.equal(spaced([['t', ' '.repeat(99)]])[0][1].length, 8);
  assert.deepEqual(spaced([]), [['e', '\u2205']]);
  assert.deepEqual(spaced([['t', ' a']]), [['t', ' a']]);
  assert.equal(spaced(null), null);
});

test('row: keys lead along what is drawn, and to other pages', () => {
  const page = {ats: [240, 241, 250], total: 600, earlier: 239, later: 251};
  assert.equal(aimOf('ArrowRight', 241, page), 250);
  assert.equal(aimOf('ArrowLeft', 241, page), 240);
  assert.equal(aimOf('ArrowLeft', 240, page), 239);
  assert.equal(aimOf('ArrowRight', 250, page), 251);
  assert.equal(aimOf('ArrowRight', 250, {...page, later: null}), null);
  assert.equal(aimOf('Home', 241, page), 0);
  assert.equal(aimOf('End', 241, page), 599);
});

test('row: folds, names of parts and breaks stand where they belong', () => {
  const names = {1: 'answer', 2: 'markup', 3: 'tool call'};
  const part = {
    ats: [0, 9, 10],
    parts: [2, 1, 1],
    places: ['', 'b', ''],
    folds: [
      [1, 1, 8],
      [3, 11, 20]
    ],
    legend: [
      [1, 'answer'],
      [2, 'markup']
    ]
  };
  const keys = found => entriesOf(found, code => names[code]).map(entry => entry.key);
  assert.deepEqual(keys(part), ['0', 'f1', 'l9', '9', 'b9', '10', 'f11']);
  assert.deepEqual(keys({...part, legend: [[1, 'answer']]}), ['0', 'f1', '9', 'b9', '10', 'f11']); // one part: no names
  assert.deepEqual(keys({...part, ats: [], parts: [], places: [], folds: [[0, 0, 30]]}), ['f0']);
});

test('banner: checks in a line', () => {
  const checks = [
    ['a', '', '', 0, 10],
    ['b', '', '', null, 0],
    ['c', '', '', 3, 10]
  ];
  assert.equal(summaryOf(checks), '✓ 1 checks found nothing · – 1 not recorded');
  assert.equal(summaryOf([]), 'all checks');
  assert.equal(countOf(null, 0), '– not checked');
  assert.equal(countOf(0, 5), '✓ none');
  assert.equal(countOf(1234, 5678), '1,234 of 5,678');
});
