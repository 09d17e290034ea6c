// Shows /openapi.json. Everything is set as text; nothing is ever read as HTML.

const METHODS = ['get', 'post', 'put', 'patch', 'delete'];

/** An element with attributes and children. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children.filter((child) => child !== null));
  return element;
}

/** What a schema refers to. */
function resolve(api, schema) {
  let found = schema;
  while (found?.$ref) found = found.$ref.split('/').slice(1).reduce((part, key) => part?.[key], api);
  return found ?? {};
}

/** An example of what a schema describes. */
function example(api, schema, depth = 0) {
  const found = resolve(api, schema);
  if (depth > 6) return '…';
  if (found.oneOf) return example(api, found.oneOf.find((one) => one.type !== 'null') ?? {}, depth + 1);
  if (found.allOf) return Object.assign({}, ...found.allOf.map((one) => example(api, one, depth + 1)));
  if (found.enum) return found.enum[0];
  const kinds = [found.type].flat().filter((kind) => kind !== 'null');
  if (kinds[0] === 'object' || found.properties) {
    const fields = Object.entries(found.properties ?? {});
    return Object.fromEntries(fields.map(([key, value]) => [key, example(api, value, depth + 1)]));
  }
  if (kinds[0] === 'array') return [example(api, found.items ?? {}, depth + 1)];
  if (found.format === 'date-time') return '2026-01-31T12:00:00.000Z';
  return { integer: 1, number: 1, boolean: false, string: 'text' }[kinds[0]] ?? {};
}

function jsonOf(content) {
  return content?.['application/json']?.schema;
}

function block(title, api, schema) {
  if (!schema) return null;
  return make('div', {}, make('h4', {}, title), make('pre', {}, JSON.stringify(example(api, schema), null, 2)));
}

function table(title, rows) {
  if (rows.length === 0) return null;
  const cells = rows.map((row) => make('tr', {}, ...row.map((cell) => make('td', {}, cell ?? ''))));
  return make('div', {}, make('h4', {}, title), make('table', {}, make('tbody', {}, ...cells)));
}

function scopeOf(operation) {
  const key = operation.security?.[0]?.key;
  if (!key) return 'open';
  return key[0] ?? 'any key';
}

function route(api, method, path, operation) {
  const parameters = (operation.parameters ?? []).map((one) => [
    one.name, one.in, one.required ? 'required' : 'optional', one.description,
  ]);
  const answers = Object.entries(operation.responses ?? {}).map(([status, one]) => [status, resolve(api, one).description]);
  const success = Object.entries(operation.responses ?? {}).find(([status]) => status.startsWith('2'))?.[1];
  return make(
    'details', { id: `${method}${path}` },
    make(
      'summary', {},
      make('span', { class: 'method' }, method.toUpperCase()), make('span', { class: 'path' }, path),
      make('span', { class: 'what' }, operation.summary ?? ''), make('span', { class: 'scope' }, scopeOf(operation)),
    ),
    make(
      'div', { class: 'inside' },
      operation.description ? make('p', {}, operation.description) : null,
      table('Parameters', parameters),
      block('Body', api, jsonOf(operation.requestBody?.content)),
      block('Answer', api, jsonOf(resolve(api, success)?.content)),
      table('Statuses', answers),
    ),
  );
}

async function show() {
  const main = document.getElementById('routes');
  const answer = await fetch('/openapi.json');
  if (!answer.ok) {
    main.replaceChildren(make('p', {}, `The description could not be loaded (${answer.status}). Reload to try again.`));
    return;
  }
  const api = await answer.json();
  document.getElementById('version').textContent = `version ${api.info.version}`;
  const sections = (api.tags ?? []).map((tag) => {
    const routes = Object.entries(api.paths).flatMap(([path, item]) => METHODS
      .filter((method) => item[method]?.tags?.includes(tag.name))
      .map((method) => route(api, method, path, item[method])));
    return { tag, routes };
  }).filter(({ routes }) => routes.length > 0);
  document.getElementById('tags').replaceChildren(
    ...sections.map(({ tag }) => make('a', { href: `#${tag.name}` }, tag.name)),
  );
  main.replaceChildren(...sections.flatMap(({ tag, routes }) => [
    make('h2', { id: tag.name }, tag.name), make('p', { class: 'what' }, tag.description ?? ''), ...routes,
  ]));
}

show();
