// @ts-check
// Elements, made from values. Text is only ever set as text: a place that is named like a tag is shown
// like any other. The page's policy refuses everything else.

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, string | number | boolean | null | undefined | ((event: any) => void)>} Attributes */

/**
 * An element with attributes and children. A function is a listener (`onclick`), `false` leaves out.
 * @template {keyof HTMLElementTagNameMap} N
 * @param {N} name
 * @param {Attributes | null} [attributes]
 * @param {...(Child | Child[])} children
 * @returns {HTMLElementTagNameMap[N]}
 */
export function el(name, attributes, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === 'function') element.addEventListener(key.slice(2), value);
    else element.setAttribute(key, value === true ? '' : String(value));
  }
  append(element, children);
  return element;
}

/** @param {Element} parent @param {(Child | Child[])[]} children */
function append(parent, children) {
  for (const child of children.flat()) {
    if (child === null || child === undefined || child === false) continue;
    parent.append(child instanceof Node ? child : String(child));
  }
}

/** Replaces what is inside. @param {Element} parent @param {...(Child | Child[])} children */
export function fill(parent, ...children) {
  parent.replaceChildren();
  append(parent, children);
}

/** Sets text where it differs, so that nothing that a reader has selected moves. @param {Element} element @param {string | number} text */
export function say(element, text) {
  const said = String(text);
  if (element.textContent !== said) element.textContent = said;
}

/** Sets an attribute where it differs. @param {Element} element @param {string} name @param {string} value */
export function mark(element, name, value) {
  if (element.getAttribute(name) !== value) element.setAttribute(name, value);
}

/**
 * One of many things that are shown: its element, and how it is brought up to date.
 * @template T
 * @typedef {{ node: HTMLElement, update: (item: T) => void }} Row
 */

/**
 * Keeps the children of an element in step with a list: an item that stays keeps its element, and with it
 * the focus, the selection and whatever is open.
 * @template T
 * @param {Element} parent
 * @param {(item: T) => string} keyOf
 * @param {(item: T) => Row<T>} make
 * @returns {(items: T[]) => void}
 */
export function keyed(parent, keyOf, make) {
  /** @type {Map<string, Row<T>>} */
  const rows = new Map();
  return (items) => {
    const wanted = new Set(items.map(keyOf));
    for (const [key, row] of rows) {
      if (wanted.has(key)) continue;
      row.node.remove();
      rows.delete(key);
    }
    /** @type {Element | null} */
    let before = parent.firstElementChild;
    for (const item of items) {
      const key = keyOf(item);
      let row = rows.get(key);
      if (!row) {
        row = make(item);
        rows.set(key, row);
      }
      row.update(item);
      if (row.node === before) before = before.nextElementSibling;
      else parent.insertBefore(row.node, before);
    }
  };
}

/** An element by its selector, which is there. @param {ParentNode} within @param {string} selector @returns {HTMLElement} */
export function find(within, selector) {
  const found = within.querySelector(selector);
  if (!(found instanceof HTMLElement)) throw new Error(`there is no ${selector}`);
  return found;
}
