// Numbers to colours. The tables are those of the command: cividis (Nunez, Anderton, Renslow 2018, PLOS ONE 13(7)), in which
// equal steps look equal, also with a colour vision deficiency, also in grey; for lift blue below 1, orange above.
const CIVIDIS = unpackColors(facts.colors.sequential), AROUND_ONE = unpackColors(facts.colors.diverging);

function unpackColors(hex) {
  const colors = new Uint8Array(hex.length / 2);
  for (let n = 0; n < colors.length; ++n) colors[n] = parseInt(hex.slice(2 * n, 2 * n + 2), 16);
  return colors;
}

const NAN_COLOR = [255, 0, 255], ZERO_COLOR = [0, 0, 0];
const LIFT_REACH = 5;  // lift from 2^-5 to 2^5

/// Where rows have many keys most weights are small beside the largest one, and linear colours show nothing but that.
const usualScale = keys => keys > 64 ? 'log' : 'linear';

/// How numbers of a head become places in a colour table. place(w, seen): 0 to 255; `seen` is the row's number of keys.
function scaleOf(name, head) {
  const { low, high } = head.facts.cells;
  if (name === 'lift') {
    return { name, colors: AROUND_ONE, low: 2 ** -LIFT_REACH, high: 2 ** LIFT_REACH, place: (w, seen) => w > 0 ? (Math.log2(w * seen) / LIFT_REACH + 1) * 127.5 : 0 };
  }
  const floor = Math.max(1e-6, 1 / (16 * Math.max(1, head.keys)));
  if (name === 'log' && floor < high) {
    const factor = 255 / Math.log(high / floor);
    return { name, colors: CIVIDIS, low: floor, high, place: w => w > floor ? Math.log(w / floor) * factor : 0 };
  }
  const factor = high > low ? 255 / (high - low) : 0;
  return { name: 'linear', colors: CIVIDIS, low, high, place: w => (w - low) * factor };
}

/// Writes the pixel of one number; what is hidden stays transparent, so that the hatching behind it shows.
function putPixel(pixels, at, w, seen, scale) {
  if (w === HIDDEN) return;
  pixels[at + 3] = 255;
  if (Number.isNaN(w) || w === 0) {
    const color = w === 0 ? ZERO_COLOR : NAN_COLOR;
    pixels[at] = color[0]; pixels[at + 1] = color[1]; pixels[at + 2] = color[2];
    return;
  }
  const place = scale.place(w, seen), entry = 3 * (place <= 0 ? 0 : place >= 255 ? 255 : Math.round(place)), colors = scale.colors;
  pixels[at] = colors[entry]; pixels[at + 1] = colors[entry + 1]; pixels[at + 2] = colors[entry + 2];
}

/// Black or white, whichever is easier to read on the colour of this number.
function inkOn(w, seen, scale) {
  const pixel = [0, 0, 0, 0];
  putPixel(pixel, 0, w, seen, scale);
  const [r, g, b] = pixel.map(v => (v / 255) ** 2.2);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b > 0.179 ? '#000' : '#fff';
}

/// A colour of the style sheet, as it is in this theme.
function themeColor(name) {
  const probe = document.createElement('span');
  probe.style.forcedColorAdjust = 'none';
  probe.style.color = `var(--${name})`;
  document.body.append(probe);
  const color = getComputedStyle(probe).color;
  probe.remove();
  return color;
}

/// Slanted lines: what a mask hides.
function hatching(context) {
  const side = 8, canvas = new OffscreenCanvas(side, side), c = canvas.getContext('2d');
  c.fillStyle = themeColor('hidden');
  c.fillRect(0, 0, side, side);
  c.strokeStyle = themeColor('hidden-line');
  c.lineWidth = 1;
  c.beginPath();
  for (let x = -side; x <= side; x += side) {
    c.moveTo(x, side);
    c.lineTo(x + side, 0);
  }
  c.stroke();
  return context.createPattern(canvas, 'repeat');
}
