import assert from 'node:assert/strict';
import {readdirSync, readFileSync} from 'node:fs';
import test from 'node:test';
import './page.mjs';
import {
  keyed,
  make,
  marked,
  minus,
  plain,
  put,
  shape,
  tint,
  wash,
  written
} from '../../agentlab/view/static/helpers.js';

const STATIC = new URL('../../agentlab/view/static/', import.meta.url);
const HOSTILE = ['<script>window.hit=1</script>', '"><img src=x onerror="window.hit=1">', '&lt;b&gt;', '</style>', ''];
const texts = nodes => nodes.map(node => (typeof node === 'string' ? node : node.textContent)).join('');

test('no file makes markup of text', () => {
  const bad = /innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|srcdoc|\beval\(|new Function/;
  for (const name of readdirSync(STATIC).filter(file => file.endsWith('.js')))
    assert.doesNotMatch(readFileSync(new URL(name, STATIC), 'utf8'), bad, name);
});

test('untrusted text becomes text nodes and attributes, letter by letter', () => {
  for (const text of HOSTILE) {
    const node = make('p', {title: text}, text);
    assert.deepEqual(
      node.children.map(child => child.tag),
      ['#text']
    );
    assert.equal(node.textContent, text);
    assert.equal(node.attributes.title, text);
    assert.equal(texts(written([['t', text]], 'script')), text);
  }
});

test('make leaves out what is not there, and listens', () => {
  const click = () => {};
  const node = make('b', {hidden: true, id: null, lang: undefined, open: false, onclick: click}, 'a', null, false, 0);
  assert.deepEqual(node.attributes, {hidden: ''});
  assert.equal(node.listeners.click, click);
  assert.equal(node.textContent, 'a0');
  assert.deepEqual(shape('path', {d: 'M0,0'}).attributes, {d: 'M0,0'});
});

test('put writes only what differs', () => {
  const node = make('b', {}, 'same');
  const child = node.firstChild;
  put(node, 'same');
  assert.equal(node.firstChild, child);
  put(node, 'other');
  assert.equal(node.textContent, 'other');
});

test('keyed uses nodes again and keeps the order', () => {
  const list = make('ul');
  const draw = items =>
    keyed(
      list,
      items,
      item => item,
      item => make(`i${item}`),
      () => {}
    );
  const tags = () => list.children.map(child => child.tag).join(' ');
  draw([1, 2, 3]);
  const second = list.children[1];
  draw([4, 3, 2]);
  assert.equal(tags(), 'i4 i3 i2');
  assert.equal(list.children[2], second);
  draw([]);
  assert.equal(tags(), '');
});

test('marked finds a search in any case, and never changes the text', () => {
  const marks = nodes => nodes.filter(node => node.tag === 'mark').map(node => node.textContent);
  assert.deepEqual(marks(marked('Take key, take Key', 'KEY')), ['key', 'Key']);
  assert.deepEqual(marks(marked('aaa', 'aa')), ['aa']);
  for (const query of ['', undefined, 'none', 'aa', 'İ'])
    for (const text of ['', 'aaaa', 'İx i̇x', ...HOSTILE]) assert.equal(texts(marked(text, query)), text);
  assert.deepEqual(marks(marked('İ key', 'key')), []); // lower case is longer: no place is known
});

test('written knows escapes, cuts and roles; plain drops the kinds', () => {
  const pieces = [
    ['t', 'a'],
    ['e', '\\u202e'],
    ['c', '… 9 more'],
    ['r', 'tool']
  ];
  assert.deepEqual(
    written(pieces).map(node => node.attributes?.class ?? ''),
    ['', 'al-esc', 'al-cut', 'al-role']
  );
  assert.equal(plain(pieces), 'a\\u202e… 9 moretool');
  assert.equal(plain([]), '');
});

test('colours: zero is white, the ends are full, no share goes beyond', () => {
  assert.equal(tint(0), 'rgb(255 255 255)');
  assert.equal(tint(100), 'rgb(67 147 195)');
  assert.equal(tint(-100), 'rgb(224 130 20)');
  assert.equal(tint(250), tint(100));
  assert.equal(wash(0), 'rgb(224 130 20 / 0.000)');
  assert.equal(wash(50), 'rgb(67 147 195 / 0.425)');
  assert.equal(wash(-300), wash(-100));
});

test('a minus sign is one', () => {
  assert.equal(minus(-0.5), '\u22120.5');
  assert.equal(minus('1e-7'), '1e\u22127');
  assert.equal(minus(2), '2');
});
