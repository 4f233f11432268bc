/**
 * BLAKE3, the plain hash of 32 bytes, as the reference implementation defines it.
 *
 * The digests of the HTTP layer and of the first release are BLAKE3, which Node does not have; the
 * keys of a service must be the same whichever of the clients or `hapax proxy` computes them.
 */

const IV = Uint32Array.of(
  0x6a09e667,
  0xbb67ae85,
  0x3c6ef372,
  0xa54ff53a,
  0x510e527f,
  0x9b05688c,
  0x1f83d9ab,
  0x5be0cd19,
);
const PERMUTATION = [2, 6, 3, 10, 7, 0, 4, 13, 1, 11, 12, 5, 9, 14, 15, 8];
/** The words of the block that each mix of each of the seven rounds uses. */
const SCHEDULE = schedule();
/** The columns, then the diagonals, of the state. */
const MIXES = [
  [0, 4, 8, 12],
  [1, 5, 9, 13],
  [2, 6, 10, 14],
  [3, 7, 11, 15],
  [0, 5, 10, 15],
  [1, 6, 11, 12],
  [2, 7, 8, 13],
  [3, 4, 9, 14],
].flat();

const CHUNK_BYTES = 1024;
const BLOCK_BYTES = 64;
const CHUNK_START = 1;
const CHUNK_END = 2;
const PARENT = 4;
const ROOT = 8;

/** The inputs of the last compression of a node: whether it is the root is known later. */
interface Output {
  chaining: Uint32Array;
  block: Uint32Array;
  counter: number;
  length: number;
  flags: number;
}

/** Returns the lowercase hex of the 32 bytes of BLAKE3. */
export function blake3Hex(bytes: Uint8Array): string {
  const stack: Uint32Array[] = [];
  const chunks = Math.max(1, Math.ceil(bytes.length / CHUNK_BYTES));
  for (let index = 0; index < chunks - 1; index += 1) {
    const start = index * CHUNK_BYTES;
    let done = chaining(chunk(bytes.subarray(start, start + CHUNK_BYTES), index));
    // A subtree is complete as often as the count of chunks can be halved.
    for (let total = index + 1; total % 2 === 0; total /= 2) {
      done = chaining(parent(stack.pop() as Uint32Array, done));
    }
    stack.push(done);
  }
  let output = chunk(bytes.subarray((chunks - 1) * CHUNK_BYTES), chunks - 1);
  for (let left = stack.pop(); left !== undefined; left = stack.pop()) {
    output = parent(left, chaining(output));
  }
  const words = compress({ ...output, counter: 0, flags: output.flags | ROOT });
  const hash = new DataView(new ArrayBuffer(32));
  for (let index = 0; index < 8; index += 1) {
    hash.setUint32(index * 4, words[index] as number, true);
  }
  return Buffer.from(hash.buffer).toString("hex");
}

function chunk(bytes: Uint8Array, counter: number): Output {
  const blocks = Math.max(1, Math.ceil(bytes.length / BLOCK_BYTES));
  let value: Uint32Array = IV;
  for (let index = 0; ; index += 1) {
    const part = bytes.subarray(index * BLOCK_BYTES, (index + 1) * BLOCK_BYTES);
    const start = index === 0 ? CHUNK_START : 0;
    const block = words(part);
    if (index === blocks - 1) {
      const flags = start | CHUNK_END;
      return { chaining: value, block, counter, length: part.length, flags };
    }
    value = chaining({ chaining: value, block, counter, length: BLOCK_BYTES, flags: start });
  }
}

function parent(left: Uint32Array, right: Uint32Array): Output {
  const block = new Uint32Array(16);
  block.set(left);
  block.set(right, 8);
  return { chaining: IV, block, counter: 0, length: BLOCK_BYTES, flags: PARENT };
}

function chaining(output: Output): Uint32Array {
  return compress(output).slice(0, 8);
}

function words(bytes: Uint8Array): Uint32Array {
  const block = new Uint32Array(16);
  for (let index = 0; index < bytes.length; index += 1) {
    const word = index >> 2;
    block[word] = (block[word] as number) | ((bytes[index] as number) << ((index & 3) * 8));
  }
  return block;
}

function compress({ chaining, block, counter, length, flags }: Output): Uint32Array {
  const s = new Uint32Array(16);
  s.set(chaining);
  s.set(IV.subarray(0, 4), 8);
  s[12] = counter;
  s[13] = Math.floor(counter / 0x1_0000_0000);
  s[14] = length;
  s[15] = flags;
  for (let round = 0; round < 7; round += 1) {
    for (let mix = 0; mix < 8; mix += 1) {
      const at = round * 16 + mix * 2;
      const x = block[SCHEDULE[at] as number] as number;
      const y = block[SCHEDULE[at + 1] as number] as number;
      quarter(s, mix * 4, x, y);
    }
  }
  for (let index = 0; index < 8; index += 1) {
    s[index] = (s[index] as number) ^ (s[index + 8] as number);
  }
  return s;
}

function quarter(s: Uint32Array, mix: number, x: number, y: number): void {
  const a = MIXES[mix] as number;
  const b = MIXES[mix + 1] as number;
  const c = MIXES[mix + 2] as number;
  const d = MIXES[mix + 3] as number;
  let sa = s[a] as number;
  let sb = s[b] as number;
  let sc = s[c] as number;
  let sd = s[d] as number;
  sa = (sa + sb + x) | 0;
  sd = rotate(sd ^ sa, 16);
  sc = (sc + sd) | 0;
  sb = rotate(sb ^ sc, 12);
  sa = (sa + sb + y) | 0;
  sd = rotate(sd ^ sa, 8);
  sc = (sc + sd) | 0;
  sb = rotate(sb ^ sc, 7);
  s[a] = sa;
  s[b] = sb;
  s[c] = sc;
  s[d] = sd;
}

function rotate(word: number, bits: number): number {
  return (word >>> bits) | (word << (32 - bits));
}

function schedule(): Uint8Array {
  const all = new Uint8Array(7 * 16);
  let order = Array.from({ length: 16 }, (_, index) => index);
  for (let round = 0; round < 7; round += 1) {
    all.set(order, round * 16);
    order = PERMUTATION.map((from) => order[from] as number);
  }
  return all;
}
