// All layers and heads as small pictures. One of them has the focus, arrow keys move it, and the map follows.

const HABITS = { itself: 'self', previous: 'prev', next: 'next', first: 'first', last: 'last' };
const HABIT_NAMES = { itself: 'itself', previous: 'the previous token', next: 'the next token', first: 'the first token', last: 'the last token' };
const THUMB_SIDE = 64;  // pixels of a picture at most

class HeadGrid {
  constructor(box, choose) {
    this.box = box;
    this.choose = choose;
    this.thumbs = [];  // { layer, head, button, canvas } row by row
    this.build();
    box.addEventListener('keydown', e => this.key(e));
  }

  build() {
    const heads = Math.max(...facts.layers.map(layer => layer.sequences[0].heads.length));
    const side = Math.max(24, Math.min(56, Math.floor((Math.min(this.box.parentElement.clientWidth, 700) - 36) / heads) - 5));
    this.box.style.setProperty('--thumb', `${side}px`);
    const numbers = element('div', { className: 'layer numbers', role: 'row' });
    numbers.append(element('span', { role: 'columnheader', textContent: facts.layers[0].number === null ? 'H' : 'L\\H' }));
    const longest = facts.layers.find(layer => layer.sequences[0].heads.length === heads);
    for (const head of longest.sequences[0].heads) numbers.append(element('span', { role: 'columnheader', textContent: head.head }));
    this.box.append(numbers);
    facts.layers.forEach((layer, l) => {
      const row = element('div', { className: 'layer', role: 'row' });
      row.append(element('span', { role: 'rowheader', textContent: layer.number ?? '' }));
      if (layer.number === null) row.firstChild.append(element('span', { className: 'unseen', textContent: 'heads' }));
      layer.sequences[0].heads.forEach((head, h) => {
        const button = element('button', { type: 'button', className: 'thumb', role: 'gridcell', tabIndex: -1 });
        const canvas = element('canvas', { width: 1, height: 1 });
        button.append(canvas, ...['unseen', '', 'habit', 'unseen'].map(className => element('span', { className })));
        button.addEventListener('click', () => this.choose(l, h));
        row.append(button);
        this.thumbs.push({ layer: l, head: h, button, canvas });
      });
      this.box.append(row);
    });
  }

  /// Another batch entry: other pictures and other numbers.
  show(sequence) {
    this.sequence = sequence;
    for (const { layer, head, button } of this.thumbs) {
      const f = sequenceOf(facts.layers[layer], sequence).heads[head];
      const entropy = f.entropy === null ? 'NaN' : f.entropy.toFixed(2);
      const texts = ['', `${headName(facts.layers[layer], f)}: entropy `, entropy, f.habit ? HABITS[f.habit] : '', f.habit ? `, looks at ${HABIT_NAMES[f.habit]}` : ''];
      texts.forEach((text, n) => { if (n > 0) button.children[n].textContent = text; });
    }
    this.paintAll();
  }

  select(layer, head) {
    for (const t of this.thumbs) {
      const chosen = t.layer === layer && t.head === head;
      t.button.setAttribute('aria-selected', chosen);
      t.button.tabIndex = chosen ? 0 : -1;
      if (chosen) {
        const b = t.button, box = this.box;  // scrolled into the grid, never the page
        box.scrollTop = Math.max(Math.min(box.scrollTop, b.offsetTop - box.offsetTop - 24), b.offsetTop - box.offsetTop + b.offsetHeight + 6 - box.clientHeight);
        box.scrollLeft = Math.max(Math.min(box.scrollLeft, b.offsetLeft - box.offsetLeft - 40), b.offsetLeft - box.offsetLeft + b.offsetWidth + 6 - box.clientWidth);
      }
    }
  }

  key(e) {
    const at = this.thumbs.findIndex(t => t.button === document.activeElement);
    if (at < 0 || e.ctrlKey || e.altKey || e.metaKey) return;
    const { layer, head } = this.thumbs[at], last = l => facts.layers[l].sequences[0].heads.length - 1;
    const to = { ArrowLeft: [layer, head - 1], ArrowRight: [layer, head + 1], ArrowUp: [layer - 1, head], ArrowDown: [layer + 1, head], Home: [layer, 0], End: [layer, last(layer)] }[e.key];
    if (!to) return;
    e.preventDefault();
    const l = Math.max(0, Math.min(to[0], facts.layers.length - 1)), h = Math.max(0, Math.min(to[1], last(l)));
    this.choose(l, h);
    this.thumbs.find(t => t.layer === l && t.head === h).button.focus();
  }

  /// A few milliseconds of painting a frame, the visible ones first.
  paintAll() {
    const round = this.round = {}, queue = [...this.thumbs];
    const some = () => {
      if (this.round !== round) return;
      const end = performance.now() + 40;
      while (queue.length > 0 && performance.now() < end) this.paint(queue.shift());
      if (queue.length > 0) setTimeout(some);
      else performance.mark('qkv-heads-painted');
    };
    some();
  }

  paint({ layer, head, canvas }) {
    const sequence = sequenceOf(facts.layers[layer], this.sequence), f = sequence.heads[head], scale = scaleOf(usualScale(sequence.keys), { facts: f, keys: sequence.keys });
    canvas.width = canvas.height = 1;  // empty
    if (sequence.queries === 0 || sequence.keys === 0) return;
    let rows, columns, values;
    if (f.cells.overview) {
      const o = new Overview(f.cells.overview, sequence.queries, sequence.keys);
      [rows, columns, values] = [o.rows, o.columns, o.values('largest')];
    } else {
      [rows, columns, values] = [sequence.queries, sequence.keys, new WeightCells(f.cells, sequence.queries, sequence.keys).values];
    }
    const step = Math.ceil(Math.max(rows, columns) / THUMB_SIDE), height = Math.ceil(rows / step), width = Math.ceil(columns / step);
    const most = new Float32Array(height * width).fill(HIDDEN);
    for (let i = 0; i < rows; ++i) {
      const start = Math.floor(i / step) * width;
      for (let j = 0; j < columns; ++j) {
        const w = values[i * columns + j], at = start + (j / step | 0);
        if (Number.isNaN(w) || w > most[at]) most[at] = w;  // a NaN stays: nothing is larger
      }
    }
    canvas.width = width;
    canvas.height = height;
    const context = canvas.getContext('2d'), image = context.createImageData(width, height);
    most.forEach((w, n) => putPixel(image.data, 4 * n, w, 1, scale));
    context.putImageData(image, 0, 0);
  }
}

function element(tag, properties) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === 'role' || name.startsWith('aria-')) node.setAttribute(name, value);
    else node[name] = value;
  }
  return node;
}
