// What is said about a head and a cell in words: description, readout, the strongest keys of a query, the legend.

const byId = id => document.getElementById(id);

function describe(head) {
  const f = head.facts, share = Object.entries(f.share).sort((a, b) => b[1] - a[1]);
  const parts = [];
  if (f.habit) parts.push(`Looks at ${HABIT_NAMES[f.habit]}, whatever the words are: ${f.share[f.habit].toFixed(2)} of the weight of every query that has one.`);
  else if (share.length > 0) parts.push(`Position alone does not explain this head: its favourite place, ${HABIT_NAMES[share[0][0]]}, gets ${share[0][1].toFixed(2)} of the weight.`);
  if (f.entropy !== null) parts.push(`Entropy ${f.entropy.toFixed(2)} nats, as if a query looked at ${f.effective_keys.toFixed(1)} keys alike.`);
  if (f.padding_rows > 0) parts.push(`${f.padding_rows} queries are padding and left out of this.`);
  if (f.empty_rows > 0) parts.push(`${f.empty_rows} queries see no key.`);
  return parts.join(' ');
}

/// "query not (4), key was (3)": what a screen reader says of a cell.
function spoken(head, { query, key }) {
  const w = head.weight(query, key), names = `query ${named(queryToken(head.sequence, query), query)}, key ${named(keyToken(head.sequence, key), key)}`;
  if (w === HIDDEN || Number.isNaN(w)) return `${names}: ${weightText(w)}`;
  return `${names}: ${weightText(w, head.cells.digits)}, rank ${head.rank(query, key)} of ${head.cells.seen(query)}`;
}

function showReadout(head, cell, pin) {
  const place = byId('readout');
  place.textContent = '';
  const shown = cell ?? pin;
  if (!shown) return;
  const { query, key } = shown, w = head.weight(query, key);
  place.append(cell ? '' : 'Pinned: ', bdi(named(queryToken(head.sequence, query), query)), ' → ', bdi(named(keyToken(head.sequence, key), key)), ': ');
  place.append(element('b', { textContent: weightText(w, head.cells.digits) }));
  if (w === HIDDEN || Number.isNaN(w)) return;
  place.append(` · rank ${head.rank(query, key)} of ${head.cells.seen(query)} · lift ${liftText(head.lift(query, key))}`);
}

const bdi = text => element('bdi', { textContent: text });

function showTip(head, cell, point, box) {
  const tip = byId('tip');
  tip.hidden = !cell || !point;
  if (tip.hidden) return;
  tip.textContent = '';
  const text = (token, index) => bdi(token ?? `${index}`);
  tip.append(text(queryToken(head.sequence, cell.query), cell.query), ' → ', text(keyToken(head.sequence, cell.key), cell.key), ' ', element('b', { textContent: weightText(head.weight(cell.query, cell.key), head.cells.digits) }));
  const x = point.x + box.offsetLeft, y = point.y + box.offsetTop, width = box.offsetLeft + box.offsetWidth;
  tip.style.left = `${Math.max(0, Math.min(x + 14, width - tip.offsetWidth - 2))}px`;
  tip.style.top = `${y + 18 + tip.offsetHeight > box.offsetTop + box.offsetHeight ? y - tip.offsetHeight - 10 : y + 18}px`;
}

const STRONGEST = 10;

function showRow(head, cell, pinned) {
  byId('row-table').hidden = !cell;
  byId('row-hint').hidden = Boolean(cell);
  byId('unpin').hidden = !pinned;
  if (!cell) return;
  const best = head.strongest(cell.query, STRONGEST), most = best.length > 0 ? best[0][1] : 0, seen = head.cells.seen(cell.query);
  byId('row-caption').replaceChildren('Query ', bdi(named(queryToken(head.sequence, cell.query), cell.query)), best.length > 0 ? `: the strongest of ${seen} keys` : seen > 0 ? ': all its weights are NaN' : ' sees no key');
  byId('row-body').replaceChildren(...best.map(([key, w]) => {
    const row = element('tr', { className: pinned && key === cell.key ? 'pinned' : '' }), name = element('th', { scope: 'row' }), bar = element('span', { className: 'strength' });
    bar.style.width = `${most > 0 ? Math.max(0, 100 * w / most) : 0}%`;
    name.append(bdi(named(keyToken(head.sequence, key), key)), bar);
    row.append(name, element('td', { className: 'number', textContent: weightText(w, head.cells.digits) }), element('td', { className: 'number', textContent: liftText(w * seen) }));
    return row;
  }));
}

// ---- legend ----

const short = x => x === 0 ? '0' : Math.abs(x) >= .0995 && Math.abs(x) < 1000 ? String(+x.toFixed(2)) : x.toPrecision(2);

function swatch(text, paint) {
  const item = element('span', { className: 'swatch' }), canvas = element('canvas', { width: 16, height: 16, 'aria-hidden': 'true' });
  const context = canvas.getContext('2d');
  context.fillStyle = paint(context);
  context.fillRect(0, 0, 16, 16);
  item.append(canvas, text);
  return item;
}

function showLegend(head, scale, which, map) {
  const bar = element('span', { className: 'bar' }), canvas = element('canvas', { width: 256, height: 1, 'aria-hidden': 'true' });
  const context = canvas.getContext('2d'), image = context.createImageData(256, 1);
  for (let n = 0; n < 256; ++n) image.data.set([...scale.colors.subarray(3 * n, 3 * n + 3), 255], 4 * n);
  context.putImageData(image, 0, 0);
  const lift = scale.name === 'lift', ends = lift ? ['1/32', '32'] : [short(scale.low), short(scale.high)];
  bar.append(ends[0], canvas, ends[1]);
  const names = {
    linear: 'weight, linear, up to the largest of this head',
    log: 'weight, logarithmic; smaller ones look like the first',
    lift: 'lift, logarithmic; 1, in the middle, is an equal share of what the query sees',
  };
  const parts = [bar, element('span', { textContent: names[scale.name] }), swatch('exactly 0', () => `rgb(${ZERO_COLOR})`)];
  if (!head.cells.masksUnknown && hidesSomething(head)) parts.push(swatch('hidden', hatching));
  if (head.facts.cells.nan) parts.push(swatch('NaN', () => `rgb(${NAN_COLOR})`));
  if (map.shared > 1) parts.push(element('span', { textContent: map.coarse ? `each square is the ${which} of ${head.overview.cell} × ${head.overview.cell} pairs; zoom in for single ones` : `a pixel is the ${which} of ${map.shared} pairs` }));
  byId('legend').replaceChildren(...parts);
}

function hidesSomething(head) {
  for (let i = 0; i < head.queries; ++i) {
    if (head.cells.seen(i) < head.keys) return true;
  }
  return false;
}

/// Where the numbers come from and how exact they are.
function showSource(head) {
  const c = head.facts.cells, computed = head.layer.formula !== null;
  const formula = computed ? `qkv computed the weights from q and k: ${head.layer.formula}.` : 'The weights come from the file, which does not say who may see whom; lift counts the keys whose weight is not 0.';
  const exact = {
    weights: () => 'This page has each as float16: three digits.',
    codes: () => 'This page has each in 8 bits, in steps of the logarithm: within 3 %, two digits.',
    scores: () => 'This page recomputes those on view from q and k in float16 and the log-sum-exp' + (c.error === null
      ? '; NaN or infinity among them keep it from saying how exactly.'
      : `: in ${c.rows_compared} rows that were compared they differ from the exact ones by at most ${c.error === 0 ? 0 : c.error.toPrecision(1)}.`),
  };
  const texts = [formula, exact[c.kind]()];
  if (head.overview) texts.push('Small pictures, and the map until it is computed, are drawn from 8-bit numbers.');
  byId('source').textContent = texts.join(' ');
}
