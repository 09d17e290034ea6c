// @ts-check
// Where a server asks for keys, the dashboard asks for one, once.

import { login } from './api.js';
import { el, fill } from './dom.js';
import { problem } from './parts.js';

/** @param {() => void} then */
export function loginPage(then) {
  const trouble = el('div', { 'aria-live': 'assertive' });
  const key = el('input', {
    id: 'key', type: 'password', autocomplete: 'current-password', required: true, spellcheck: 'false', placeholder: 'solely_…',
  });
  const button = el('button', { class: 'button primary' }, 'Log in');
  const form = el('form', {
    class: 'login card', onsubmit: async (/** @type {SubmitEvent} */ event) => {
      event.preventDefault();
      button.disabled = true;
      try {
        await login(key.value.trim());
        then();
      } catch (error) {
        button.disabled = false;
        fill(trouble, problem(error));
        key.focus();
      }
    },
  },
  el('h1', {}, 'solely'),
  el('p', { class: 'about' }, 'This server knows its callers by keys. One with the scope ', el('code', {}, 'admin:read'), ' sees the dashboard, ',
    el('code', {}, 'admin:write'), ' may act.'),
  el('label', { for: 'key' }, 'Key'), key, button, trouble,
  el('p', { class: 'hint' }, 'There is none yet? ', el('code', {}, 'solely keys create --name me --scope admin')));
  return el('main', { id: 'main', class: 'alone' }, form);
}
