/**
 * Keys: new ones, those derived from others, their syntax, and the date that a key tells.
 *
 * The arithmetic is the broker's: a key that is derived here is the key that the broker, the Rust
 * client and every other client derive.
 */

import { createHash, randomUUID } from "node:crypto";
import { blake3Hex } from "./blake3.js";
import { byteLength } from "./content.js";
import { MalformedKeyError } from "./errors.js";

/** The longest key, in bytes. */
const KEY_BYTES_MAX = 255;
/** The first part of every derived key. */
const VERSION = "hapax-2";
/** Dates read from keys are believed from 2016 on. */
const DATED_FROM_MS = 1_451_606_400_000;
/** A word of 26 letters that would be a ULID of a time further ahead is none. */
const ULID_AHEAD_MS = 366 * 24 * 60 * 60 * 1_000;

/** The message that follow-ups derive their keys from. */
export interface Parent {
  queue: string;
  /** The group, where the queue deduplicates per group. */
  group?: string | null | undefined;
  key: string;
  generation?: number;
}

/** Derives the key of a follow-up or a step: the same in every attempt and in every language. */
export function derive(parent: Parent, name: string): string {
  const { queue, key } = parent;
  const parts = [VERSION, queue, parent.group ?? "", key, String(parent.generation ?? 0), name];
  const hash = createHash("sha256");
  for (const part of parts) {
    hash
      .update(`${byteLength(part)}:`)
      .update(part)
      .update(",");
  }
  return hash.digest("hex").slice(0, 32);
}

/** Derives a key as release 0.1 did: what its steps have saved stays valid. */
export function deriveFirst(key: string, generation: number, name: string): string {
  return blake3Hex(new TextEncoder().encode(`${key}\0${generation}\0${name}`)).slice(0, 32);
}

/**
 * Generates a key: a UUIDv7. It contains its date, so that a retry that comes too late is refused
 * instead of being processed twice.
 */
export function newKey(): string {
  // Of a random UUID only the version differs. Its randomness is drawn for many at once.
  const time = Date.now().toString(16).padStart(12, "0");
  return `${time.slice(0, 8)}-${time.slice(8)}-7${randomUUID().slice(15)}`;
}

/** Throws {@link MalformedKeyError} if a text is not a valid key. */
export function checkKey(key: string): void {
  if (typeof key !== "string" || !key.isWellFormed()) {
    // Replacing half of a character would make two keys one.
    throw new MalformedKeyError("a key is a text of whole characters");
  }
  const bytes = byteLength(key);
  if (bytes < 1 || bytes > KEY_BYTES_MAX) {
    throw new MalformedKeyError(`a key has 1 to ${KEY_BYTES_MAX} bytes, this one has ${bytes}`);
  }
  if (hasControls(key)) {
    throw new MalformedKeyError("a key must not have control characters");
  }
}

/**
 * Reads the value of a key's header: a structured-field string (`"order-42"`) or the bare value.
 * Throws {@link MalformedKeyError} if it is neither.
 */
export function readKey(value: string): string {
  const text = value.replace(/^[ \t]+|[ \t]+$/g, "");
  const key = text.startsWith('"') ? unquote(text.slice(1)) : bare(text);
  checkKey(key);
  return key;
}

/** A text as a structured-field string, for a header. Its bytes are those of UTF-8. */
export function quoteKey(key: string): string {
  const quoted = `"${key.replace(/["\\]/g, "\\$&")}"`;
  // A header holds bytes, written as characters of one byte each.
  return Buffer.from(quoted).toString("latin1");
}

/**
 * Returns when a key was made, in milliseconds since 1970, where it tells: a UUIDv7 or a ULID of a
 * believable time.
 */
export function dateMs(key: string, nowMs: number): number | undefined {
  const uuid = uuidMs(key);
  if (uuid !== undefined && uuid >= DATED_FROM_MS) {
    return uuid;
  }
  const ulid = ulidMs(key);
  const isBelievable = ulid !== undefined && ulid >= DATED_FROM_MS && ulid <= nowMs + ULID_AHEAD_MS;
  return isBelievable ? ulid : undefined;
}

function uuidMs(key: string): number | undefined {
  const form = /^([0-9a-f]{8})-([0-9a-f]{4})-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$/i;
  const found = form.exec(key);
  return found === null ? undefined : Number.parseInt(`${found[1]}${found[2]}`, 16);
}

function ulidMs(key: string): number | undefined {
  if (!/^[0-7][0-9A-HJKMNP-TV-Z]{25}$/i.test(key)) {
    return undefined;
  }
  const digits = "0123456789ABCDEFGHJKMNPQRSTVWXYZ";
  let value = 0;
  for (const letter of key.slice(0, 10).toUpperCase()) {
    value = value * 32 + digits.indexOf(letter);
  }
  return value;
}

function hasControls(key: string): boolean {
  for (let index = 0; index < key.length; index += 1) {
    const unit = key.charCodeAt(index);
    if (unit < 0x20 || unit === 0x7f) {
      return true;
    }
  }
  return false;
}

function unquote(quoted: string): string {
  let key = "";
  for (let index = 0; index < quoted.length; index += 1) {
    const character = quoted.charAt(index);
    if (character === '"') {
      if (index === quoted.length - 1) {
        return key;
      }
      throw new MalformedKeyError("the key has text after its closing quote");
    }
    if (character === "\\") {
      index += 1;
      const escaped = quoted.charAt(index);
      if (escaped !== '"' && escaped !== "\\") {
        const detail = 'the key has a backslash before a character other than \\" or \\\\';
        throw new MalformedKeyError(detail);
      }
      key += escaped;
    } else {
      key += character;
    }
  }
  throw new MalformedKeyError("the key has no closing quote");
}

function bare(text: string): string {
  if (/[ \t,"]/.test(text)) {
    const detail = 'a key with spaces, commas or quotes must be quoted: "KEY"';
    throw new MalformedKeyError(detail);
  }
  return text;
}
