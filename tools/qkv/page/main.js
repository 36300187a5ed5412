// The state of the page, who changes it, and its address: #layer=4&head=7&pin=5,4. Inside another page (srcdoc) it has none.

const state = { layer: 0, sequence: 0, head: 0, scale: usualScale(facts.layers[0].sequences[0].keys), cells: 'largest', pin: null, cursor: null };

const map = new HeatMap(byId('map'), byId('canvas'), {
  hover(cell, point) {
    state.cursor = cell;
    map.cursor = cell;
    showTip(head(), cell, point, byId('map'));
    later(showCell);
    map.schedule();
  },
  pick(cell) {
    const same = state.pin && state.pin.query === cell.query && state.pin.key === cell.key;
    setPin(same ? null : cell);
  },
  complete() {
    if (legendOf !== `${map.shared}`) legend();
    performance.mark('qkv-map-painted');
  },
});
const grid = new HeadGrid(byId('heads'), (layer, head) => choose(layer, head));

function head() {
  const layer = facts.layers[state.layer], sequence = sequenceOf(layer, state.sequence);
  return headAt(layer, sequence, sequence.heads[state.head]);
}

// Readout and table follow the pointer once a frame, however often it moves.
const waiting = new Set();
function later(f) {
  if (waiting.size === 0) requestAnimationFrame(() => { const all = [...waiting]; waiting.clear(); all.forEach(g => g()); });
  waiting.add(f);
}

let speech = 0;
function say(text) {
  clearTimeout(speech);
  speech = setTimeout(() => { byId('live').textContent = text(); }, 250);
}

function showCell() {
  const h = head();
  showReadout(h, state.cursor, state.pin);
  showRow(h, state.pin ?? state.cursor, state.pin !== null);
}

let legendOf = '';
function legend() {
  legendOf = `${map.shared}`;
  byId('cells-label').hidden = !map.shares();
  showLegend(head(), scaleOf(state.scale, head()), state.cells, map);
}

function choose(layer, number) {
  state.layer = layer;
  state.head = Math.min(number, sequenceOf(facts.layers[layer], state.sequence).heads.length - 1);
  const h = head(), inside = cell => cell && cell.query < h.queries && cell.key < h.keys;
  if (!inside(state.pin)) state.pin = null;
  if (!inside(state.cursor)) state.cursor = null;
  const name = headName(h.layer, h.facts), sequence = facts.layers[0].sequences.length > 1 ? `, batch entry ${h.sequence.batch}` : '';
  byId('map-title').textContent = name + sequence;
  document.title = `${name} · ${facts.file}`;
  byId('what').textContent = describe(h);
  byId('map').setAttribute('aria-label', `Heat map of ${name.toLowerCase()}${sequence}, ${h.queries} queries by ${h.keys} keys`);
  Object.assign(map, { cursor: state.cursor, pin: state.pin });
  map.show(h, scaleOf(state.scale, h), state.cells);
  byId('tip').hidden = true;
  showSource(h);
  grid.select(state.layer, state.head);
  showCell();
  legend();
  writeAddress();
}

function chooseSequence(sequence) {
  state.sequence = sequence;
  byId('batch').value = sequence;
  grid.show(sequence);
  map.zoomed = false;
  choose(state.layer, state.head);
}

function setPin(cell) {
  state.pin = cell;
  map.pin = cell;
  if (cell) say(() => `Pinned ${spoken(head(), cell)}`);
  else say(() => 'Unpinned');
  later(showCell);
  map.schedule();
  writeAddress();
}

function repaint() {
  byId('scale').value = state.scale;
  byId('cells').value = state.cells;
  map.repaint(scaleOf(state.scale, head()), state.cells);
  legend();
  writeAddress();
}

// ---- address ----

function writeAddress() {
  if (location.protocol === 'about:') return;
  const layer = facts.layers[state.layer], parts = [];
  if (layer.number !== null) parts.push(`layer=${layer.number}`);
  const h = head();
  parts.push(`head=${h.facts.head}`);
  if (layer.sequences.length > 1) parts.push(`batch=${h.sequence.batch}`);
  if (state.pin) parts.push(`pin=${state.pin.query},${state.pin.key}`);
  if (state.scale !== usualScale(facts.layers[0].sequences[0].keys)) parts.push(`scale=${state.scale}`);
  if (state.cells !== 'largest') parts.push(`cells=${state.cells}`);
  const address = `#${parts.join('&')}`;
  if (location.hash !== address) history.replaceState(null, '', address);
}

/// What the address says, or else what the page is meant to begin with, as far as this page has it.
function readAddress() {
  const said = new URLSearchParams(location.hash.slice(1) || facts.view), number = name => said.has(name) ? Number(said.get(name)) : -1;
  const at = (list, test) => Math.max(0, list.findIndex(test));
  state.layer = at(facts.layers, layer => layer.number === number('layer'));
  const { sequences } = facts.layers[state.layer];
  state.sequence = at(sequences, s => s.batch === number('batch'));
  const sequence = sequences[state.sequence];
  state.head = at(sequence.heads, h => h.head === number('head'));
  const [query, key] = (said.get('pin') ?? '').split(',').map(Number);
  const inside = Number.isInteger(query) && Number.isInteger(key) && query >= 0 && key >= 0 && query < sequence.queries && key < sequence.keys;
  state.pin = inside && said.has('pin') ? { query, key } : null;
  if (['linear', 'log', 'lift'].includes(said.get('scale'))) state.scale = said.get('scale');
  if (['largest', 'mean'].includes(said.get('cells'))) state.cells = said.get('cells');
}

// ---- keys ----

const PAGE_STEP = 10;
const KEYS = [  // for the map; the help lists them
  [['←', '→', '↑', '↓'], 'move the cell cursor', 'point at a cell'],
  [['Home', 'End'], 'first, last key of the row', 'point at a cell'],
  [['Ctrl Home', 'Ctrl End'], 'first, last cell', 'point at a cell'],
  [['Page Up', 'Page Down'], `${PAGE_STEP} queries up, down`, 'point at a cell'],
  [['Enter', 'Space'], 'pin the cell, or unpin it', 'click, tap'],
  [['Esc'], 'unpin', 'click the pinned cell, or Unpin'],
  [['+', '−'], 'zoom in, out', 'wheel, pinch, + and −'],
  [['0'], 'show all', 'All'],
  [['h', 'l'], 'previous, next head', 'click a small picture'],
  [['k', 'j'], 'previous, next layer', 'click a small picture'],
  [['s'], 'next scale', 'Scale'],
  [['m'], 'largest or mean of pairs that share a pixel', 'Pairs that share a pixel'],
  [['?'], 'this list', 'Help'],
];

function moveCursor(change) {
  const h = head(), at = state.cursor ?? state.pin ?? { query: 0, key: 0 };
  if (h.queries === 0 || h.keys === 0) return;
  const to = state.cursor || state.pin ? change(at, h) : at;  // the first press shows where the cursor is
  const cell = { query: Math.max(0, Math.min(h.queries - 1, to.query)), key: Math.max(0, Math.min(h.keys - 1, to.key)) };
  state.cursor = cell;
  map.cursor = cell;
  map.reveal(cell);
  byId('tip').hidden = true;
  later(showCell);
  say(() => spoken(h, cell));
}

function nextHead(step) {
  const count = sequenceOf(facts.layers[state.layer], state.sequence).heads.length;
  choose(state.layer, (state.head + step + count) % count);
  say(() => byId('map-title').textContent);
}
function nextLayer(step) {
  choose((state.layer + step + facts.layers.length) % facts.layers.length, state.head);
  say(() => byId('map-title').textContent);
}
function zoomAtCursor(factor) {
  const c = state.cursor;
  if (c) map.zoom(factor, map.x(c.key + .5), map.y(c.query + .5));
  else map.zoom(factor);
}
function nextOf(select) {
  select.selectedIndex = (select.selectedIndex + 1) % select.options.length;
  select.dispatchEvent(new Event('change'));
  say(() => `${select.options[select.selectedIndex].text}`);
}

const MAP_KEYS = {
  ArrowLeft: () => moveCursor(c => ({ query: c.query, key: c.key - 1 })),
  ArrowRight: () => moveCursor(c => ({ query: c.query, key: c.key + 1 })),
  ArrowUp: () => moveCursor(c => ({ query: c.query - 1, key: c.key })),
  ArrowDown: () => moveCursor(c => ({ query: c.query + 1, key: c.key })),
  Home: e => moveCursor((c, h) => ({ query: e.ctrlKey ? 0 : c.query, key: 0 })),
  End: e => moveCursor((c, h) => ({ query: e.ctrlKey ? h.queries - 1 : c.query, key: h.keys - 1 })),
  PageUp: () => moveCursor(c => ({ query: c.query - PAGE_STEP, key: c.key })),
  PageDown: () => moveCursor(c => ({ query: c.query + PAGE_STEP, key: c.key })),
  Enter: () => state.cursor && map.hooks.pick(state.cursor),
  ' ': () => state.cursor && map.hooks.pick(state.cursor),
  Escape: () => state.pin && setPin(null),
  '+': () => zoomAtCursor(1.5), '=': () => zoomAtCursor(1.5), '-': () => zoomAtCursor(1 / 1.5), '0': () => map.fit(),
  h: () => nextHead(-1), l: () => nextHead(1), k: () => nextLayer(-1), j: () => nextLayer(1),
  s: () => nextOf(byId('scale')), m: () => nextOf(byId('cells')), '?': () => byId('help').showModal(),
};

byId('map').addEventListener('keydown', e => {
  const act = MAP_KEYS[e.key];
  if (!act || e.altKey || e.metaKey || e.ctrlKey && !['Home', 'End'].includes(e.key)) return;
  e.preventDefault();
  act(e);
});

// ---- buttons ----

byId('scale').addEventListener('change', e => { state.scale = e.target.value; repaint(); });
byId('cells').addEventListener('change', e => { state.cells = e.target.value; repaint(); });
byId('batch').addEventListener('change', e => chooseSequence(Number(e.target.value)));
byId('zoom-in').addEventListener('click', () => zoomAtCursor(1.5));
byId('zoom-out').addEventListener('click', () => zoomAtCursor(1 / 1.5));
byId('fit').addEventListener('click', () => map.fit());
byId('unpin').addEventListener('click', () => { setPin(null); byId('map').focus({ preventScroll: true }); });
byId('help-open').addEventListener('click', () => byId('help').showModal());
addEventListener('hashchange', () => { readAddress(); chooseSequence(state.sequence); repaint(); });

const dark = matchMedia('(prefers-color-scheme: dark)');
const isDark = () => (document.documentElement.dataset.theme ?? (dark.matches ? 'dark' : 'light')) === 'dark';
function themeChanged() {
  byId('theme').textContent = isDark() ? 'Light' : 'Dark';
  byId('theme').setAttribute('aria-label', isDark() ? 'Light theme' : 'Dark theme');
  map.readTheme();
  legend();
}
byId('theme').addEventListener('click', () => { document.documentElement.dataset.theme = isDark() ? 'light' : 'dark'; themeChanged(); });
dark.addEventListener('change', themeChanged);
matchMedia('(forced-colors: active)').addEventListener('change', themeChanged);

// ---- start ----

for (const [names, does, mouse] of KEYS) {
  const row = element('tr', {}), keys = element('td', {});
  names.forEach((name, n) => keys.append(n > 0 ? ' ' : '', element('kbd', { textContent: name })));
  row.append(keys, element('td', { textContent: does }), element('td', { textContent: mouse }));
  byId('help-body').append(row);
}
const first = facts.layers[0];
byId('about').textContent = [facts.layers.length > 1 ? `${facts.layers.length} layers` : '', `${first.sequences[0].heads.length} ${first.sequences[0].heads.length > 1 ? 'heads' : 'head'}`, first.sequences.length > 1 ? `${first.sequences.length} batch entries` : '', facts.made_by].filter(Boolean).join(' · ');
byId('batch-label').hidden = first.sequences.length < 2;
first.sequences.forEach((s, n) => byId('batch').append(element('option', { value: n, textContent: s.batch })));
readAddress();
byId('scale').value = state.scale;
byId('cells').value = state.cells;
map.resize();
chooseSequence(state.sequence);
themeChanged();
