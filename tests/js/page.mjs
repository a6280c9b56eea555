// As much of a page as the helpers need: elements that remember what was put into them.
class Node {
  constructor(tag) {
    this.tag = tag;
    this.attributes = {};
    this.children = [];
    this.listeners = {};
  }
  setAttribute(name, value) {
    this.attributes[name] = String(value);
  }
  addEventListener(name, work) {
    this.listeners[name] = work;
  }
  append(...children) {
    for (const child of children) this.insertBefore(typeof child === 'object' ? child : new Text(child), null);
  }
  insertBefore(child, next) {
    child.remove();
    child.parent = this;
    this.children.splice(next ? this.children.indexOf(next) : this.children.length, 0, child);
  }
  remove() {
    if (this.parent) this.parent.children.splice(this.parent.children.indexOf(this), 1);
    this.parent = null;
  }
  get firstChild() {
    return this.children[0] ?? null;
  }
  get nextSibling() {
    return this.parent.children[this.parent.children.indexOf(this) + 1] ?? null;
  }
  get textContent() {
    return this.children.map(child => child.textContent).join('');
  }
  set textContent(text) {
    this.children = [];
    this.append(text);
  }
}

class Text extends Node {
  constructor(text) {
    super('#text');
    this.text = String(text);
  }
  get textContent() {
    return this.text;
  }
}

globalThis.document = {createElement: tag => new Node(tag), createElementNS: (_, tag) => new Node(tag)};
