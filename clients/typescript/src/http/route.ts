/**
 * Routes: which requests are protected, and where their key is found.
 *
 * A pattern is methods and a path: `POST /charges`, `PUT,PATCH /orders/{order}`, `POST
 * /files/{*path}`. A path is compared as most services would read it: percent-encodings decoded,
 * empty segments and dots resolved. Services differ in how they read case, encoded slashes, `;` and
 * double encodings: a path that only some of them would read as a protected one is found too, and
 * the request refused.
 */

/** The head of a request. Values of headers are characters of one byte each. */
export interface Head {
  method: string;
  /** Without the query. */
  path: string;
  /** With its `?`, or nothing. */
  query: string;
  /** The values of a header, by its name in small letters. */
  values(name: string): string[];
  names(): string[];
}

/** Finds the key of a request in its head and its body; `undefined` if there is none. */
export type KeyFrom = (head: Head, body: Uint8Array) => string | undefined;

/** A route with settings of its own. */
export interface RouteOptions {
  /** Such as `POST /orders/{order}/refunds`. */
  pattern: string;
  /** Whether a request without a key is refused; otherwise it is unprotected. True by default. */
  required?: boolean | undefined;
  /** The header with the key, instead of `Idempotency-Key`. */
  keyHeader?: string | undefined;
  /** Finds the key elsewhere, such as the id of a webhook's event. */
  keyFrom?: KeyFrom | undefined;
}

type Segment = { literal: string } | "any" | "rest";

const SAFE = ["GET", "HEAD", "OPTIONS", "TRACE", "CONNECT"];
/** The most rounds of decoding. */
const DECODED_MAX = 4;

export class Route {
  readonly pattern: string;
  /** The pattern of the path; it is part of a key's scope. */
  readonly path: string;
  readonly isRequired: boolean;
  readonly keyHeader: string | undefined;
  readonly keyFrom: KeyFrom | undefined;
  readonly #methods: string[];
  readonly #segments: Segment[];

  constructor(options: RouteOptions) {
    const words = options.pattern.trim().split(/\s+/);
    const [methods, path] = words;
    if (methods === undefined || path === undefined || words.length !== 2) {
      throw bad(options.pattern, "it is not a method and a path");
    }
    this.#methods = methods.split(",");
    for (const method of this.#methods) {
      if (SAFE.includes(method)) {
        throw bad(options.pattern, `${method} is safe to repeat and needs no key`);
      }
      if (!/^[A-Z]+$/.test(method)) {
        throw bad(options.pattern, `"${method}" is not a method; methods are in upper case`);
      }
    }
    this.#segments = segmentsOf(options.pattern, path);
    this.path = path;
    this.pattern = `${methods} ${path}`;
    this.isRequired = options.required ?? true;
    this.keyFrom = options.keyFrom;
    const header = (options.keyHeader ?? "idempotency-key").toLowerCase();
    this.keyHeader = options.keyFrom === undefined ? header : undefined;
  }

  matches(method: string, path: string[]): boolean {
    return this.#methods.includes(method) && this.#fits(path, (literal) => literal);
  }

  /** Whether some service would read the request as one for this route; the path is read loosely. */
  mayMatch(method: string, path: string[]): boolean {
    const isIt = this.#methods.includes(method.toUpperCase());
    return isIt && this.#fits(path, (literal) => literal.toLowerCase());
  }

  #fits(path: string[], form: (literal: string) => string): boolean {
    for (const [index, segment] of this.#segments.entries()) {
      const part = path[index];
      if (part === undefined) {
        return false;
      }
      if (segment === "rest") {
        return true;
      }
      if (segment !== "any" && form(segment.literal) !== part) {
        return false;
      }
    }
    return path.length === this.#segments.length;
  }
}

function segmentsOf(pattern: string, path: string): Segment[] {
  if (!path.startsWith("/")) {
    throw bad(pattern, `the path "${path}" does not begin with a slash`);
  }
  if (/[?#]/.test(path)) {
    throw bad(pattern, "a path has no query; queries are compared with the key");
  }
  const texts = path === "/" ? [] : path.slice(1).split("/");
  return texts.map((text, index) => {
    const name = /^\{(\*?)([A-Za-z0-9_]*)\}$/.exec(text);
    if (name === null) {
      return literalOf(pattern, text);
    }
    if (name[2] === "") {
      throw bad(pattern, `"${text}" has no name of letters, digits and _`);
    }
    if (name[1] === "*" && index < texts.length - 1) {
      throw bad(pattern, "nothing can follow a {*rest}");
    }
    return name[1] === "*" ? "rest" : "any";
  });
}

function literalOf(pattern: string, text: string): Segment {
  if (/[{}*]/.test(text)) {
    throw bad(pattern, `"${text}" is not valid: a {name} must be a whole segment`);
  }
  if (["", ".", ".."].includes(text)) {
    throw bad(pattern, `a segment must not be "${text}"`);
  }
  return { literal: decoded(text) };
}

function bad(pattern: string, why: string): TypeError {
  const form = "write it as 'POST /charges' or 'PUT,PATCH /orders/{id}'";
  return new TypeError(`"${pattern}" is not a route: ${why}; ${form}`);
}

/** Reads a path as most services do. */
export function segments(path: string): string[] {
  return resolved(path.split("/").map(decoded));
}

/**
 * Reads a path as loosely as any service might: double encodings are decoded before it is split,
 * backslashes are slashes, a fragment (`#`), parameters (`;`) and everything after a zero byte are cut
 * off, and case and white space around names are ignored.
 */
export function looseSegments(path: string): string[] {
  let text = path.split("#")[0] ?? "";
  for (let round = 0; round < DECODED_MAX && text.includes("%"); round += 1) {
    text = decoded(text);
  }
  const parts = text.split(/[/\\]/);
  return resolved(parts.map((part) => (part.split(/[;\0]/)[0] ?? "").trim().toLowerCase()));
}

function resolved(parts: string[]): string[] {
  const segments: string[] = [];
  for (const part of parts) {
    if (part === "..") {
      segments.pop();
    } else if (part !== "" && part !== ".") {
      segments.push(part);
    }
  }
  return segments;
}

/** Decodes percent-encodings; what is not UTF-8 afterwards is replaced, and a lone % stays. */
function decoded(text: string): string {
  const bytes: number[] = [];
  const source = Buffer.from(text);
  for (let index = 0; index < source.length; index += 1) {
    const hex = source.subarray(index + 1, index + 3).toString("latin1");
    if (source[index] === 0x25 && /^[0-9a-f]{2}$/i.test(hex)) {
      bytes.push(Number.parseInt(hex, 16));
      index += 2;
    } else {
      bytes.push(source[index] as number);
    }
  }
  return Buffer.from(bytes).toString();
}
