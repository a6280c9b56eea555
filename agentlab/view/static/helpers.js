// What every view of agentlab shares. Text that a model or an environment wrote enters a page only as a text node
// (`append`, `textContent`) or as an attribute, never as HTML.

// Colours of a positive and of a negative advantage, as in agentlab.view.run_report.
export const PRAISE = [67, 147, 195];
export const BLAME = [224, 130, 20];

// Elements: make one, draw an SVG shape, change a text only where it differs.
export const make = (tag, attributes = {}, ...children) => {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith('on')) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? '' : value);
  }
  node.append(...children.filter(child => child !== null && child !== undefined && child !== false));
  return node;
};

export const shape = (tag, attributes) => {
  const node = document.createElementNS('http://www.w3.org/2000/svg', tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  return node;
};

export const put = (node, text) => {
  if (node.textContent !== text) node.textContent = text;
};

// Draw a list and reuse the nodes that it has, by key, so that the focus stays where it is.
export const keyed = (parent, items, key, create, update) => {
  const old = parent.drawn ?? new Map();
  const fresh = new Map();
  let next = parent.firstChild;
  for (const item of items) {
    const name = key(item);
    const node = old.get(name) ?? create(item);
    old.delete(name);
    update(node, item);
    fresh.set(name, node);
    if (node === next) next = next.nextSibling;
    else parent.insertBefore(node, next);
  }
  for (const node of old.values()) node.remove();
  parent.drawn = fresh;
};

// Text with the words of a search marked. Where lower case has another length, places would be wrong: no marks.
export const marked = (text, query) => {
  const nodes = [];
  const low = text.toLowerCase();
  const wanted = (query ?? '').toLowerCase();
  let from = 0;
  let at = wanted && low.length === text.length ? low.indexOf(wanted) : -1;
  while (at >= 0) {
    nodes.push(text.slice(from, at), make('mark', {}, text.slice(at, at + wanted.length)));
    from = at + wanted.length;
    at = low.indexOf(wanted, from);
  }
  return [...nodes, text.slice(from)];
};

// Pieces of text, [kind, text], as nodes: t text, e an escaped character, c a cut, r a role.
const KINDS = {e: ['b', 'al-esc'], c: ['em', 'al-cut'], r: ['b', 'al-role']};
export const written = (pieces, query) =>
  pieces.flatMap(([kind, text]) => {
    if (!KINDS[kind]) return marked(text, query);
    const [tag, name] = KINDS[kind];
    return [make(tag, {class: name}, text)];
  });

export const plain = pieces => pieces.map(piece => piece[1]).join('');

// Colours of a share from -100 to 100: on white, and as a wash over any ground; a minus sign as it is set.
export const tint = share => {
  const part = Math.min(1, Math.abs(share) / 100);
  const end = share > 0 ? PRAISE : BLAME;
  return `rgb(${end.map(v => Math.round(255 + (v - 255) * part)).join(' ')})`;
};

export const wash = share =>
  `rgb(${(share > 0 ? PRAISE : BLAME).join(' ')} / ${((Math.min(100, Math.abs(share)) * 0.85) / 100).toFixed(3)})`;

export const minus = text => String(text).replace('-', '\u2212');
