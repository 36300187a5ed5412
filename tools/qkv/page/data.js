// What `qkv see` put into the page: facts as JSON, numbers as base64.

const facts = JSON.parse(document.getElementById('facts').textContent);
const TILE = facts.tile;

// Each piece of bytes is padded by itself, so that a piece is decoded when it is needed and not before.
const bytesText = document.getElementById('bytes').textContent;

function bytesOf(number) {
  const start = number === 0 ? 0 : facts.blob_ends[number - 1];
  const text = bytesText.slice(start, facts.blob_ends[number]);
  if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let n = 0; n < bytes.length; ++n) bytes[n] = binary.charCodeAt(n);
  return bytes;
}

// All float16 numbers by their bits.
let halves = null;
function halfTable() {
  if (halves) return halves;
  halves = new Float32Array(1 << 16);
  for (let bits = 0; bits < 1 << 16; ++bits) {
    const sign = bits & 0x8000 ? -1 : 1, exponent = bits >> 10 & 31, fraction = bits & 1023;
    if (exponent === 31) halves[bits] = fraction ? NaN : sign * Infinity;
    else if (exponent === 0) halves[bits] = sign * fraction * 2 ** -24;
    else halves[bits] = sign * (1 + fraction / 1024) * 2 ** (exponent - 15);
  }
  return halves;
}

function numbersOfHalves(number) {
  const table = halfTable(), bits = new Uint16Array(bytesOf(number).buffer), numbers = new Float32Array(bits.length);
  for (let n = 0; n < bits.length; ++n) numbers[n] = table[bits[n]];
  return numbers;
}

// ---- names ----

const layerName = layer => layer.number === null ? '' : `Layer ${layer.number}`;
const headName = (layer, head) => [layerName(layer), `${layer.number === null ? 'Head' : 'head'} ${head.head}`].filter(Boolean).join(', ');

/// The n-th batch entry, the last where a layer has fewer.
const sequenceOf = (layer, n) => layer.sequences[Math.min(n, layer.sequences.length - 1)];

/// A token by its index, or the index alone.
function tokenOf(list, index) {
  return list === null ? null : facts.tokens[list][index];
}
const queryToken = (sequence, i) => tokenOf(sequence.query_tokens, i);
const keyToken = (sequence, j) => tokenOf(sequence.key_tokens, j);
const named = (token, index) => token === null ? `${index}` : `${token} (${index})`;

// ---- numbers as text ----

const TINY = 5e-7;  // what an 8-bit code for "more than 0, less than 0.000001" is read as

/// `digits`: how many a weight from this source deserves.
function weightText(w, digits) {
  if (w === HIDDEN) return 'hidden';
  if (Number.isNaN(w)) return 'NaN';
  if (!Number.isFinite(w)) return w > 0 ? 'infinite' : 'minus infinite';
  if (w === 0) return '0';
  if (digits < 3 && w <= TINY) return 'under 0.000001';
  if (Math.abs(w) >= 0.0995) return w.toFixed(digits);
  return Math.abs(w) < 1e-4 ? w.toExponential(digits - 1) : w.toPrecision(digits);
}

function liftText(lift) {
  if (!Number.isFinite(lift)) return '';
  return lift >= 9.95 ? lift.toFixed(0) : lift >= .0995 ? lift.toFixed(1) : lift === 0 ? '0' : lift.toPrecision(1);
}
