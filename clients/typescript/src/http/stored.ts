/**
 * A stored response: the bytes of a claim's result, in the format of all layers and of `hapax
 * proxy`, so that each can replay what another stored.
 *
 * | bytes | what |
 * |---|---|
 * | 1 | version: 1 |
 * | 1 | flags: 1 = the body was too large to be kept, and is absent |
 * | 2 | status, big endian |
 * | varint | how many headers follow |
 * | each | varint length, name in small letters; varint length, value |
 * | the rest | body |
 */

export const STORED_TYPE = "application/vnd.hapax.http-response";
/** Names and values of the headers of a stored response, with their lengths. */
export const HEADERS_BYTES_MAX = 32 * 1024;

const VERSION = 1;
const NOT_KEPT = 1;
const VARINT_BYTES_MAX = 4;

/** Headers that are never stored: of one hop, of one response, of one caller, or marks of a replay. */
const NEVER = new Set([
  "set-cookie",
  "date",
  "connection",
  "content-length",
  "transfer-encoding",
  "te",
  "trailer",
  "upgrade",
  "age",
  "proxy-authenticate",
  "proxy-authorization",
  "keep-alive",
  "proxy-connection",
  "set-cookie2",
  "server-timing",
  "clear-site-data",
  "preference-applied",
  "idempotency-replayed",
]);

/** The stored parts of a response. */
export interface Stored {
  status: number;
  headers: [string, string][];
  /** `undefined` if it was too large. */
  body: Uint8Array | undefined;
}

/** Chooses the headers of a response that are stored; `only` is a list in small letters. */
export function storedHeaders(headers: Headers, only: Set<string> | undefined): [string, string][] {
  const named = (headers.get("connection") ?? "")
    .split(",")
    .map((name) => name.trim().toLowerCase());
  return [...headers].filter(([name]) => {
    const isWanted = only === undefined || only.has(name);
    return isWanted && !NEVER.has(name) && !named.includes(name);
  });
}

/** Whether a response can be returned again: not if its body or its headers are too large. */
export function isKept(stored: Stored): boolean {
  const bytes = stored.headers.reduce(
    (sum, [name, value]) => sum + name.length + value.length + 6,
    0,
  );
  return stored.body !== undefined && bytes <= HEADERS_BYTES_MAX;
}

export function encode(stored: Stored): Uint8Array {
  const head = [VERSION, isKept(stored) ? 0 : NOT_KEPT, stored.status >> 8, stored.status & 0xff];
  if (!isKept(stored)) {
    return Uint8Array.from([...head, 0]);
  }
  const parts = [Buffer.from([...head, ...varint(stored.headers.length)])];
  for (const text of stored.headers.flat()) {
    const bytes = Buffer.from(text, "latin1");
    parts.push(Buffer.from(varint(bytes.length)), bytes);
  }
  parts.push(Buffer.from(stored.body ?? []));
  return Buffer.concat(parts);
}

/** Reads a stored response. Throws if it is of a newer release, or damaged. */
export function decode(bytes: Uint8Array): Stored {
  const reader = new Reader(bytes);
  const version = reader.byte();
  if (version !== VERSION) {
    throw new TypeError(`it has version ${version}, which this release does not know`);
  }
  const flags = reader.byte();
  if ((flags & ~NOT_KEPT) !== 0) {
    throw new TypeError(`it has flags that this release does not know: ${flags}`);
  }
  const status = reader.byte() * 256 + reader.byte();
  if (status < 100 || status > 999) {
    throw new TypeError("it has an invalid status");
  }
  const headers: [string, string][] = [];
  const count = reader.varint();
  for (let index = 0; index < count; index += 1) {
    headers.push([reader.text(), reader.text()]);
  }
  return { status, headers, body: flags === NOT_KEPT ? undefined : reader.rest() };
}

class Reader {
  readonly #bytes: Uint8Array;
  #at = 0;

  constructor(bytes: Uint8Array) {
    this.#bytes = bytes;
  }

  byte(): number {
    const byte = this.#bytes[this.#at];
    if (byte === undefined) {
      throw new TypeError("it ends too early");
    }
    this.#at += 1;
    return byte;
  }

  varint(): number {
    let number = 0;
    for (let place = 0; place < VARINT_BYTES_MAX; place += 1) {
      const byte = this.byte();
      number += (byte & 0x7f) * 128 ** place;
      if (byte < 0x80) {
        return number;
      }
    }
    throw new TypeError("it has a length that is too large");
  }

  text(): string {
    const length = this.varint();
    if (this.#at + length > this.#bytes.length) {
      throw new TypeError("it ends too early");
    }
    const part = this.#bytes.subarray(this.#at, this.#at + length);
    this.#at += length;
    return Buffer.from(part).toString("latin1");
  }

  rest(): Uint8Array {
    return this.#bytes.subarray(this.#at);
  }
}

function varint(number: number): number[] {
  const bytes: number[] = [];
  let left = number;
  while (left >= 0x80) {
    bytes.push((left & 0x7f) | 0x80);
    left = Math.floor(left / 128);
  }
  return [...bytes, left];
}
