// SHA-256 (FIPS 180-4) piece by piece: the browser's own needs the whole file in memory, and a page over TLS.

const K = new Uint32Array(64);
const START = new Uint32Array(8);

(function constants() {
  // Fractions of the square roots (start) and cube roots (K) of the first primes.
  const fraction = (value) => Math.floor((value - Math.floor(value)) * 2 ** 32);
  let count = 0;
  for (let candidate = 2; count < 64; candidate++) {
    let isPrime = true;
    for (let divisor = 2; divisor * divisor <= candidate; divisor++) if (candidate % divisor === 0) isPrime = false;
    if (!isPrime) continue;
    if (count < 8) START[count] = fraction(Math.sqrt(candidate));
    K[count++] = fraction(Math.cbrt(candidate));
  }
})();

const turn = (x, n) => (x >>> n) | (x << (32 - n));

export class Sha256 {
  #state = START.slice();
  #block = new Uint8Array(64);
  #filled = 0;
  #length = 0;
  #words = new Uint32Array(64);

  update(bytes) {
    this.#length += bytes.length;
    let at = 0;
    if (!this.#filled) for (; at + 64 <= bytes.length; at += 64) this.#mix(bytes, at);
    while (at < bytes.length) {
      const take = Math.min(64 - this.#filled, bytes.length - at);
      this.#block.set(bytes.subarray(at, at + take), this.#filled);
      this.#filled += take;
      at += take;
      if (this.#filled === 64) this.#mix(this.#block, 0);
    }
  }

  hex() {
    const bits = this.#length * 8;
    this.update(new Uint8Array([0x80]));
    while (this.#filled !== 56) this.update(new Uint8Array(1));
    const end = new DataView(new ArrayBuffer(8));
    end.setUint32(0, Math.floor(bits / 2 ** 32));
    end.setUint32(4, bits >>> 0);
    this.update(new Uint8Array(end.buffer));
    return [...this.#state].map((word) => word.toString(16).padStart(8, "0")).join("");
  }

  #mix(bytes, at) {
    const w = this.#words;
    for (let i = 0, j = at; i < 16; i++, j += 4)
      w[i] = (bytes[j] << 24) | (bytes[j + 1] << 16) | (bytes[j + 2] << 8) | bytes[j + 3];
    for (let i = 16; i < 64; i++) {
      const a = w[i - 15];
      const b = w[i - 2];
      w[i] = w[i - 16] + (turn(a, 7) ^ turn(a, 18) ^ (a >>> 3)) + w[i - 7] + (turn(b, 17) ^ turn(b, 19) ^ (b >>> 10));
    }
    const s = this.#state;
    let a = s[0], b = s[1], c = s[2], d = s[3], e = s[4], f = s[5], g = s[6], h = s[7];
    for (let i = 0; i < 64; i++) {
      const first = (h + (turn(e, 6) ^ turn(e, 11) ^ turn(e, 25)) + ((e & f) ^ (~e & g)) + K[i] + w[i]) | 0;
      const second = ((turn(a, 2) ^ turn(a, 13) ^ turn(a, 22)) + ((a & b) ^ (a & c) ^ (b & c))) | 0;
      h = g;
      g = f;
      f = e;
      e = (d + first) | 0;
      d = c;
      c = b;
      b = a;
      a = (first + second) | 0;
    }
    s[0] += a;
    s[1] += b;
    s[2] += c;
    s[3] += d;
    s[4] += e;
    s[5] += f;
    s[6] += g;
    s[7] += h;
    this.#filled = 0;
  }
}
