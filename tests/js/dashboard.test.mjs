import assert from 'node:assert/strict';
import test from 'node:test';
import './page.mjs';
import board, {aimOf, columns, joined, wordsOf} from '../../agentlab/view/static/dashboard.js';
import {
  cellsOf,
  frameOf,
  keyOf,
  nearest,
  pathOf,
  scales,
  tableWords
} from '../../agentlab/view/static/dashboard_plots.js';

const same = v => v;

test('the module is a widget', () => assert.equal(typeof board.render, 'function'));

test('a line has gaps, and dots stand alone', () => {
  const points = [
    [0, 1],
    [1, 2],
    [2, null],
    [3, 4],
    [4, null]
  ];
  assert.equal(pathOf(points, same, same), 'M0,1h0L1,2M3,4h0');
  assert.equal(pathOf(points, same, same, true), 'M0,1h0M1,2h0M3,4h0');
  assert.equal(pathOf([[0, null]], same, same), '');
  assert.equal(pathOf([], same, same), '');
});

test('scales: updates from left to right, values upward, small powers on the lowest line', () => {
  const [px, py] = scales({low: 0, high: 2}, [10, 20]);
  assert.deepEqual([px(10), px(15), px(20)], [0, 500, 1000]);
  assert.deepEqual([py(0), py(1), py(2)], [400, 200, 0]);
  const [, log] = scales({log: true, low: -4, high: 0}, [0, 1]);
  assert.deepEqual([log(1), log(1e-2), log(1e-4), log(1e-9), log(0), log(-1)], [0, 200, 400, 400, 400, 400]);
});

test('nearest: the first of two that are as near', () => {
  assert.deepEqual(
    nearest(
      [
        [0, 'a'],
        [4, 'b'],
        [9, 'c']
      ],
      5
    ),
    [4, 'b']
  );
  assert.deepEqual(
    nearest(
      [
        [0, 'a'],
        [2, 'b']
      ],
      1
    ),
    [0, 'a']
  );
});

test('table: one path a colour, nothing for what was not reached', () => {
  const px = step => 500 * step;
  const cells = cellsOf(
    {turns: 2, top: 1},
    [
      [0, [1, null]],
      [1, [0, 0.5]],
      [2, [9, null]]
    ],
    px
  );
  assert.deepEqual(
    [...cells.keys()].sort((a, b) => a - b),
    [0, 10, 20]
  );
  assert.equal(cells.get(0), 'M250.0,200.0h500.0v200.0h-500.0z');
  assert.equal(cells.get(10), 'M250.0,0.0h500.0v200.0h-500.0z');
  assert.equal(cells.get(20).match(/M/g).length, 2); // more than the largest is the largest
});

test('table in words: the turn that is pointed at, else the first and the last', () => {
  assert.equal(tableWords([1, 2, null], null, same), 'turn 0: 1, turn 1: 2');
  assert.equal(tableWords([1, 2, null], 9, same), 'turn 2: –');
  assert.equal(tableWords([1, 2, null], 1, same), 'turn 1: 2');
  assert.equal(tableWords([1], null, same), 'turn 0: 1');
  assert.equal(tableWords([null, null], 0, same), '–');
});

test('a frame has a line and a word for every tick; a table has no lines', () => {
  const pane = {
    ticks: [
      [0, '0'],
      [1, '<b>1</b>']
    ],
    lines: []
  };
  const [svg, box] = frameOf(pane, {ticks: [[0.5, '30']]});
  assert.equal(svg.children[0].attributes.d, 'M0,400H1000M0,0H1000');
  assert.deepEqual(
    box.children.slice(1).map(node => node.textContent),
    ['0', '<b>1</b>', '30', 'update']
  );
  assert.equal(frameOf({...pane, turns: 3}, {ticks: []})[0].children.length, 0);
});

test('lines are named where there are several', () => {
  assert.deepEqual(keyOf({lines: [['reward', '']]}), []);
  const key = keyOf({
    lines: [
      ['kl_median', 'median'],
      ['kl_max', 'largest']
    ]
  });
  assert.deepEqual(
    key.map(node => node.textContent),
    ['median', 'largest']
  );
});

test('parts of a run are joined; a part that lacks a metric is a gap', () => {
  const parts = [{lines: {reward: [[0, 1]]}}, {lines: {reward: []}}, {}, {lines: {reward: [[9, 2]]}}];
  assert.deepEqual(joined(parts, 'reward'), [
    [0, 1],
    [0, null],
    [9, 2]
  ]);
  const table = [{steps: [0, 1], table: [[1, 2], [3]]}, {}];
  assert.deepEqual(columns(table), [
    [0, [1, 3]],
    [1, [2, null]]
  ]);
});

test('a pane in words: the last numbers shortened, those of an update exact', () => {
  const found = [
    {
      label: '1',
      points: [
        [0, -0.123456],
        [1, 0.5]
      ]
    },
    {
      label: '2',
      points: [
        [0, 1],
        [1, 1234.5678]
      ]
    }
  ];
  assert.equal(wordsOf({pane: {}, found}, null, null), '1 0.5, 2 1235');
  assert.equal(wordsOf({pane: {}, found}, 0.4, null), 'update 0: 1 \u22120.123456, 2 1');
  assert.equal(wordsOf({pane: {}, found: []}, 0, null), '');
  const table = {pane: {turns: 2}, found: [{label: '', points: [[7, [0.25, null]]]}]};
  assert.equal(wordsOf(table, null, null), 'turn 0: 0.25');
  assert.equal(wordsOf(table, 7, 1), 'update 7: turn 1: –');
});

test('keys lead from update to update', () => {
  const points = [
    [4, 1],
    [0, 1],
    [2, 1],
    [4, 2]
  ];
  assert.equal(aimOf('ArrowLeft', null, points), 4);
  assert.equal(aimOf('ArrowLeft', 2, points), 0);
  assert.equal(aimOf('ArrowLeft', 0, points), 0);
  assert.equal(aimOf('ArrowRight', 3.9, points), 4);
  assert.equal(aimOf('Home', 4, points), 0);
  assert.equal(aimOf('End', 0, points), 4);
  assert.equal(aimOf('Escape', 2, points), null);
  assert.equal(aimOf('a', 2, points), undefined);
  assert.equal(aimOf('Escape', null, []), undefined);
});
