/**
 * Bytes with their content type: bodies, results and recovery points.
 *
 * In JSON they are `body` if they are UTF-8, otherwise `body_base64`. Text is never encoded and
 * decoded again on the way, since most bodies are text and stay so.
 */

import { InvalidError } from "./errors.js";

const ENCODER = new TextEncoder();
const DECODER = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const JSON_TYPE = "application/json";
/** Text above this size is sent as base64 where escapes would make it longer than that. */
const ESCAPED_BYTES_MIN = 16 * 1024;

/**
 * What a body, a result or a recovery point may be given as: text and bytes as they are, a
 * {@link Content} with its content type, and any other value as JSON, with the content type
 * `application/json`.
 */
export type Payload = string | ArrayBufferView | ArrayBuffer | Content | Jsonable;

/** A value that `JSON.stringify` writes. */
export type Jsonable = object | number | boolean | null;

/** Bytes in JSON, as the broker writes them. */
export interface WireContent {
  body?: string | null;
  body_base64?: string | null;
  content_type?: string | null;
}

/** Bytes with their content type. */
export class Content {
  readonly contentType: string | null;
  readonly #text: string | null;
  #bytes: Uint8Array | null;

  constructor(body: string | ArrayBufferView | ArrayBuffer, contentType: string | null = null) {
    this.contentType = contentType;
    if (typeof body === "string") {
      this.#text = body.toWellFormed();
      this.#bytes = null;
    } else {
      this.#text = null;
      this.#bytes = bytesOf(body);
    }
  }

  /** A value as JSON. Throws {@link InvalidError} if it cannot be written so. */
  static json(value: unknown): Content {
    let text: string | undefined;
    try {
      text = JSON.stringify(value);
    } catch (error) {
      throw new InvalidError(`cannot be written as JSON: ${reasonOf(error)}`);
    }
    if (text === undefined) {
      throw new InvalidError(`a ${typeof value} cannot be written as JSON`);
    }
    return new Content(text, JSON_TYPE);
  }

  /** Turns what a caller gave into content; `contentType` goes before the one it would have. */
  static of(payload: Payload, contentType?: string): Content {
    let content: Content;
    if (payload instanceof Content) {
      content = payload;
    } else if (
      typeof payload === "string" ||
      payload instanceof ArrayBuffer ||
      ArrayBuffer.isView(payload)
    ) {
      content = new Content(payload);
    } else {
      content = Content.json(payload);
    }
    return contentType === undefined ? content : content.withType(contentType);
  }

  /** Reads content as the broker writes it. */
  static read(wire: WireContent): Content {
    const type = wire.content_type ?? null;
    if (typeof wire.body_base64 === "string") {
      return new Content(fromBase64(wire.body_base64), type);
    }
    return new Content(wire.body ?? "", type);
  }

  get bytes(): Uint8Array {
    this.#bytes ??= ENCODER.encode(this.#text ?? "");
    return this.#bytes;
  }

  /** The bytes as text. Throws {@link InvalidError} if they are not UTF-8. */
  get text(): string {
    const text = this.#text ?? utf8(this.bytes);
    if (text === null) {
      throw new InvalidError("the bytes are not UTF-8");
    }
    return text;
  }

  /** The value of bytes that are JSON. Throws {@link InvalidError} if they are not. */
  json<T = unknown>(): T {
    try {
      return JSON.parse(this.text) as T;
    } catch (error) {
      throw new InvalidError(`not the expected JSON: ${(error as Error).message}`);
    }
  }

  /** The fields of the bytes in JSON, with their content type. */
  write(): WireContent {
    const wire: WireContent = this.writeBody();
    if (this.contentType !== null) {
      wire.content_type = this.contentType;
    }
    return wire;
  }

  /** The fields of the bytes in JSON, without their content type. */
  writeBody(): WireContent {
    const text = this.#text ?? utf8(this.bytes);
    const isText = text !== null && !(text.length >= ESCAPED_BYTES_MIN && isMostlyEscapes(text));
    return isText ? { body: text } : { body_base64: toBase64(this.bytes) };
  }

  /** Size in bytes, without making a copy of text. */
  get length(): number {
    return this.#bytes?.length ?? Buffer.byteLength(this.#text ?? "");
  }

  private withType(contentType: string): Content {
    return new Content(this.#text ?? this.bytes, contentType);
  }
}

/** Counts the bytes of a text in UTF-8. */
export function byteLength(text: string): number {
  return Buffer.byteLength(text);
}

/** Whether a text is longer in JSON than in base64. */
function isMostlyEscapes(text: string): boolean {
  let more = 0;
  for (let index = 0; index < text.length; index += 1) {
    const unit = text.charCodeAt(index);
    if (unit < 0x20) {
      more += unit >= 8 && unit <= 13 && unit !== 11 ? 1 : 5;
    } else if (unit === 0x22 || unit === 0x5c) {
      more += 1;
    }
  }
  return more * 3 > byteLength(text);
}

/** The text of whatever was thrown. */
function reasonOf(error: unknown): string {
  try {
    return error instanceof Error ? String(error.message) : "it threw no error";
  } catch {
    return "it threw what cannot be read";
  }
}

function bytesOf(body: ArrayBufferView | ArrayBuffer): Uint8Array {
  if (body instanceof ArrayBuffer) {
    return new Uint8Array(body);
  }
  return body instanceof Uint8Array
    ? body
    : new Uint8Array(body.buffer, body.byteOffset, body.byteLength);
}

function utf8(bytes: Uint8Array): string | null {
  try {
    return DECODER.decode(bytes);
  } catch {
    return null;
  }
}

function fromBase64(text: string): Uint8Array {
  const buffer = Buffer.from(text, "base64");
  return new Uint8Array(buffer.buffer, buffer.byteOffset, buffer.byteLength);
}

function toBase64(bytes: Uint8Array): string {
  return Buffer.from(bytes.buffer, bytes.byteOffset, bytes.byteLength).toString("base64");
}
